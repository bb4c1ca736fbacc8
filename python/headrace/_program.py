"""The console command `headrace`: the program that the wheel carries."""

import os
import pathlib
import sys


def main() -> None:
    """Becomes the program: the process stays the same, so its signals and its exit status are the program's."""
    program = pathlib.Path(__file__).resolve().parent / "bin" / "headrace"
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
