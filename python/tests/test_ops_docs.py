"""The examples of docs/python_ops.md run, and print what stands below them."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "python_ops.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize(("code", "output"), EXAMPLES, ids=["numpy", "torch"])
def test_example_prints_what_the_page_says(code: str, output: str) -> None:
    library = re.findall(r"^import (numpy|torch)", code, re.MULTILINE)[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == output, done.stderr
