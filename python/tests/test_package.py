"""What `import headrace` gives, and what the wheel carries."""

import pathlib
import subprocess
import sys

import pytest

import headrace

PACKAGE = pathlib.Path(headrace.__file__).parent


def run(code: str) -> str:
    """Returns what a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_import_loads_neither_numpy_nor_torch() -> None:
    code = "import sys, headrace; headrace.LLM; print([name for name in ('numpy', 'torch') if name in sys.modules])"
    assert run(code) == "[]"


def test_every_public_name_can_be_loaded() -> None:
    assert [name for name in headrace.__all__ if getattr(headrace, name, None) is None] == []
    assert set(headrace.__all__) <= set(dir(headrace))
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'llms'"):
        assert headrace.llms  # type: ignore[attr-defined]


def test_build_info_says_what_the_program_says() -> None:
    info = headrace.build_info()
    assert info["version"] == headrace.__version__
    program = subprocess.run([sys.executable, "-m", "headrace", "version"], check=True, capture_output=True, text=True)
    lines = dict(line.split(maxsplit=1) for line in program.stdout.splitlines())
    assert lines["headrace"] == info["version"]
    assert lines["commit"] == info["commit"]
    assert lines["compiler"] == info["compiler"]
    assert lines["kernels"] == f"{' '.join(info['kernel_sets'])} built in; {info['selected_kernel_set']} is selected"


def test_the_command_is_on_the_path_of_the_environment() -> None:
    command = pathlib.Path(sys.executable).parent / "headrace"
    listed = subprocess.run([command, "list"], check=True, capture_output=True, text=True).stdout
    assert "fairy-hybrid" in listed
    assert subprocess.run([command, "no-such-command"], check=False, capture_output=True).returncode != 0


def test_the_wheel_carries_types_and_models() -> None:
    assert (PACKAGE / "py.typed").exists()
    stub = (PACKAGE / "_core.pyi").read_text(encoding="utf-8")
    assert "def load(model: str, flags: dict[str, Any]) -> Engine" in stub
    assert "def build_info() -> dict[str, Any]" in stub
    assert (PACKAGE / "share" / "headrace" / "demo_models" / "fairy-hybrid" / "tokenizer.json").exists()


def test_errors_are_also_pythons() -> None:
    assert issubclass(headrace.InvalidArgumentError, (headrace.Error, ValueError))
    assert issubclass(headrace.UnsupportedError, NotImplementedError)
    assert issubclass(headrace.OutOfMemoryError, MemoryError)
