"""pymllm's name of the full-attention backend, and the names that headrace lacks."""

from __future__ import annotations

from typing import NoReturn

from headrace.attention.headrace_backend import HeadraceAttnBackend

FlashInferAttnBackend = HeadraceAttnBackend

_OF_FLASHINFER = ("DecodeMetadata", "PrefillMetadata", "WrapperDispatch", "should_use_tensor_core")


def __getattr__(name: str) -> NoReturn:
    """Refuses the names of pymllm's module that are about FlashInfer's kernels."""
    if name in _OF_FLASHINFER:
        raise ImportError(f"headrace.attention has no {name}: it is about FlashInfer's kernels, which headrace lacks")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
