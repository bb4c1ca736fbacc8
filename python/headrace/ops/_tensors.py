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


def wrong_number(op: str, error: TypeError, **given: tuple[Any, type]) -> Exception:
    """Returns what to raise for an `error` of the compiled part: it says which of `given`, (value, kind), is no int,
    float or bool as it should be. None is right, as a value that is not given."""
    for name, (value, kind) in given.items():
        right = (int, float) if kind is float else kind
        if value is not None and (not isinstance(value, right) or (isinstance(value, bool) and kind is not bool)):
            wanted = {int: "an integer", float: "a number", bool: "True or False"}[kind]
            return InvalidArgumentError(f"{op}: {name} is {value!r}, expected {wanted}")
    return error


def expect_tensor(op: str, name: str, x: Any) -> None:
    """Refuses what has no shape."""
    if not hasattr(x, "shape"):
        raise InvalidArgumentError(
            f"{op}: {name} is a {type(x).__name__}, expected a tensor (torch, numpy, or anything with __dlpack__)"
        )
