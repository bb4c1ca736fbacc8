"""Which library a tensor is of, and new tensors of that library."""

import sys
from types import ModuleType
from typing import Any

from headrace.errors import InvalidArgumentError

_bridge: ModuleType | None = None  # headrace.ops._torch, once a tensor of torch came


def torch_of(x: Any) -> Any:
    """Returns `headrace.ops._torch` if `x` is a tensor of torch, else None. Never imports torch for other tensors."""
    global _bridge
    if _bridge is not None:
        return _bridge if isinstance(x, _bridge.Tensor) else None
    if not any(base.__module__ == "torch" for base in type(x).__mro__):
        return None
    from headrace.ops import _torch

    _bridge = _torch
    return _torch


def empty(like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """Returns a new tensor of the library and device of `like`, with unspecified contents.

    `dtype` is a name such as "float32"; without it the tensor has that of `like`.
    """
    torch = torch_of(like)
    if torch is not None:
        return torch.empty(like, shape, dtype)
    if type(like).__module__ == "numpy":
        return sys.modules["numpy"].empty(shape, dtype or like.dtype)
    if not hasattr(like, "__array_namespace__"):
        raise InvalidArgumentError(
            f"headrace.ops: a {type(like).__name__} cannot make new tensors (no __array_namespace__), expected out="
        )
    library = like.__array_namespace__()
    return library.empty(shape, dtype=getattr(library, dtype) if dtype else like.dtype)


def empty_like(x: Any) -> Any:
    """Returns a new tensor of the library, device, shape and dtype of `x`, with unspecified contents."""
    torch = torch_of(x)
    if torch is not None:
        return torch.empty_like(x)
    return empty(x, tuple(x.shape))
