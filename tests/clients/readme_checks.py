"""The commands and programs of README.md and docs/server.md that talk to a server, as they stand there."""

import os
import pathlib
import re
import subprocess
import sys

from serving import PROGRAM, ROOT, Server, finish, run_checks

PRINTED = "http://127.0.0.1:8000"
RUNS = {"sh": ["bash", "-ec"], "python": [sys.executable, "-c"]}


def examples(page):
    """(language, text) of each block that names the server's address; load is for quiet machines."""
    text = (pathlib.Path(ROOT) / page).read_text()
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(language, block) for language, block in blocks if PRINTED in block and "headrace bench" not in block]


def without_serve(block):
    """The server of the page runs already."""
    return "".join(line for line in block.splitlines(keepends=True) if not line.startswith("headrace serve"))


def check_page(page, languages, url):
    """what a page prints runs, and prints an answer"""
    found = examples(page)
    assert {language for language, _ in found} == languages, f"{page} has examples in {found}"
    for language, block in found:
        program = without_serve(block).replace(PRINTED, url)
        done = subprocess.run([*RUNS[language], program], capture_output=True, text=True, timeout=60, cwd="/",
                              env={**os.environ, "PATH": f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}"})
        assert done.returncode == 0, f"{page}: {block}: {done.stderr}"
        assert len(done.stdout) > 20 and '"error"' not in done.stdout, f"{page}: {block}: {done.stdout}"


with Server(words=()) as server:
    pages = {"README.md": {"sh"}, "docs/server.md": {"sh", "python"}}
    failed = run_checks("readme", [(check_page, page, languages, server.url) for page, languages in pages.items()])
finish(failed)
