"""NVIDIA's libraries of the Python index, for the CUDA part."""

import ctypes
import importlib.util
import pathlib

_CUDA_PART = pathlib.Path(__file__).resolve().parent / "lib" / "libheadrace_cuda.so"
_LIBRARY = "libcublasLt.so.13"


def cublas_path() -> pathlib.Path | None:
    """Returns cuBLASLt of the package nvidia-cublas (`pip install headrace[cuda]`); None without it."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec is not None else []:
        for found in sorted(pathlib.Path(folder).glob(f"*/lib/{_LIBRARY}")):
            return found
    return None


def load_libraries() -> None:
    """Loads what the CUDA part needs, so that its loader finds it by name.

    Does nothing where there is no CUDA part, or no package with it: then the system's libraries count."""
    if _CUDA_PART.exists() and (path := cublas_path()) is not None:
        ctypes.CDLL(str(path))
