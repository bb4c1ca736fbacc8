"""What the tests share: models, the program, fresh interpreters."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import headrace

PROGRAM = pathlib.Path(headrace.__file__).parent / "bin" / "headrace"
os.environ["HF_HUB_OFFLINE"] = "1"  # no test needs a network


@pytest.fixture(scope="session")
def llm() -> Iterator[headrace.LLM]:
    """The bundled hybrid; in batch-invariant mode, so that a request's tokens do not depend on what runs beside it."""
    with headrace.LLM(deterministic=True) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def diffusion_llm() -> Iterator[headrace.LLM]:
    with headrace.LLM("fairy-diffusion", deterministic=True) as loaded:
        yield loaded


def generated(*arguments: str) -> dict[str, Any]:
    """What the program `headrace generate` says, in batch-invariant mode too."""
    command = [PROGRAM, "generate", "--json", "--deterministic", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a fresh interpreter. Its standard error is part of the result, not of the test's."""
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, **options)


def num_threads() -> int:
    """Threads of this process."""
    return len(list(pathlib.Path("/proc/self/task").iterdir()))
