"""Finds a model by its name: a path, a bundled model, or one on Hugging Face's hub."""

import json
import os
import pathlib
import re
import subprocess
import sys

from headrace.errors import Error, InvalidArgumentError, error_of

_PACKAGE = pathlib.Path(__file__).resolve().parent
_PROGRAM = _PACKAGE / "bin" / "headrace"
_BUNDLED = _PACKAGE / "share" / "headrace" / "demo_models"
DEFAULT_MODEL = "fairy-hybrid"


def bundled_models() -> dict[str, str]:
    """Returns the directories of the models that come with the package, by name."""
    return {path.parent.name: str(path.parent) for path in sorted(_BUNDLED.glob("*/config.json"))}


def _is_offline() -> bool:
    """Returns True if the environment forbids downloads, as the program reads it."""
    said = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return said.upper() in ("1", "ON", "YES", "TRUE")


def _is_model(path: pathlib.Path) -> bool:
    return path.is_file() or (path / "config.json").exists()


def _failure(said: str) -> Error:
    """Returns the program's sentence as an exception."""
    lines = [line for line in said.splitlines() if line.startswith("headrace: ")]
    return error_of("model_file", lines[-1].removeprefix("headrace: ") if lines else said.strip())


def _downloaded(name: str) -> str:
    """Downloads the model `name` with the program's progress on standard error, and returns its path."""
    shows = sys.stderr is not None and sys.stderr.isatty()
    pull = subprocess.run(
        [_PROGRAM, "pull", name],
        stdout=subprocess.DEVNULL,
        check=False,
        text=True,
        stderr=None if shows else subprocess.PIPE,
    )
    if pull.returncode != 0:
        raise _failure(pull.stderr or f"headrace: {name}: could not be downloaded")
    return _found(name)


def _found(name: str) -> str:
    """Returns the path of a model that is here, as the program finds it."""
    shown = subprocess.run([_PROGRAM, "show", "--json", name], capture_output=True, check=False, text=True)
    if shown.returncode != 0:
        raise _failure(shown.stderr)
    return str(json.loads(shown.stdout)["path"])


def model_path(model: str | os.PathLike[str] | None, revision: str | None = None, offline: bool = False) -> str:
    """Returns the directory of `model`, or its GGUF file. One that is not here and has a hub's name is downloaded.

    Error of code "model_file": there is no such model."""
    bundled = bundled_models()
    name = DEFAULT_MODEL if model is None else os.fspath(model)
    path = pathlib.Path(name).expanduser()
    is_path, is_bundled = model is not None and path.exists(), name in bundled
    if revision is not None and (is_path or is_bundled):
        raise InvalidArgumentError(
            f"revision is {revision!r}, expected None: {name} is not a model of Hugging Face's hub"
        )
    if is_path and _is_model(path):
        return str(path)
    if is_bundled and not is_path:
        return bundled[name]
    if revision is not None:
        name = f"{name}@{revision}"
    try:
        return _found(name)
    except Error:
        on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+([:@][\w./-]+)*", name) and not path.parent.exists()
        if offline or _is_offline() or not on_hub or is_path:
            raise
    return _downloaded(name)
