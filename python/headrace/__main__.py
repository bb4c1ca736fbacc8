"""`python -m headrace` is the program headrace."""

from headrace._program import main

main()
