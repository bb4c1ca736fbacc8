"""The examples of the pages about Python run, and print what stands below them."""

import importlib.util
import pathlib
import re
from typing import NamedTuple

import pytest
from conftest import python

PAGES = ("README.md", "docs/python.md", "docs/python_attention.md")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Example(NamedTuple):
    place: str
    code: str
    output: str | None  # None: none is shown, or it is within a session


DOCTEST = """
import doctest, sys
test = doctest.DocTestParser().get_doctest({session!r}, {{}}, "session", None, 0)
runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
sys.exit(runner.run(test).failed > 0 or runner.tries == 0)
"""


def examples() -> list[Example]:
    """Blocks of Python that import headrace, each with the block of text right behind it; and Python sessions."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in re.finditer(r"```(python|pycon)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", text, re.DOTALL):
            if "import headrace" in match[2]:
                place = f"{page}:{text[: match.start()].count(chr(10)) + 1}"
                code = match[2] if match[1] == "python" else DOCTEST.format(session=match[2])
                found.append(Example(place, code, match[3]))
    return found


def test_every_page_has_examples() -> None:
    assert {example.place.split(":")[0] for example in examples()} == set(PAGES)


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.place)
def test_an_example(example: Example) -> None:
    needs = [
        name for name in ("transformers", "torch") if re.search(rf"^(import|from) {name}\b", example.code, re.MULTILINE)
    ]
    if "headrace.compat" in example.code:
        needs.append("torch")
    for name in needs:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    done = python(example.code)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    if example.output is not None:
        assert done.stdout == example.output
