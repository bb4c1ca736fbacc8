"""Where the CUDA part finds NVIDIA's libraries."""

import pathlib

import pytest

from headrace import _cuda


def test_cublas_is_found_in_the_package_of_the_python_index(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libcublasLt.so.13"
    library.parent.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = _cuda.cublas_path()
    library.touch()
    assert before != library
    assert _cuda.cublas_path() == library
