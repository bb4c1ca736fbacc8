"""The ops as custom operators of torch. Imported when the first tensor of torch comes, never before torch."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, empty_like

from headrace import _core
from headrace.errors import InvalidArgumentError

__all__ = ["Tensor", "arange", "as_tensor", "empty", "empty_like", "is_integer", "kernel", "one_token_each", "zeros"]

# Of each op the schema; arguments are those of _core, in this order. (a!): written.
_SCHEMAS = {
    "paged_attention": "Tensor q, Tensor? k_cache, Tensor? v_cache, Tensor? page_table, Tensor spans, Tensor? k_new, "
    "Tensor? v_new, Tensor? k_token_scales, Tensor? v_token_scales, Tensor(a!) out, Tensor(b!)? lse, float? scale, "
    "float logit_cap, int window, int type, int keys, bool grouped, float k_scale, float v_scale, int max_q_len, "
    "int max_kv_len, bool strict",
    "store_kv": "Tensor k, Tensor v, Tensor slots, Tensor(a!) k_cache, Tensor(b!) v_cache, "
    "Tensor(c!)? k_token_scales, Tensor(d!)? v_token_scales, float k_scale, float v_scale",
    "causal_conv1d": "Tensor x, Tensor weight, Tensor(a!) state, Tensor? spans, Tensor slots, Tensor? snapshots, "
    "Tensor(b!) out, int max_q_len",
    "gated_delta_rule": "Tensor qkv, Tensor a, Tensor b, Tensor a_log, Tensor dt_bias, Tensor(a!) state, "
    "Tensor? spans, Tensor slots, Tensor? snapshots, Tensor(b!) out, int num_k_heads, int max_q_len, bool strict",
    "rms_norm": "Tensor x, Tensor weight, Tensor? gate, Tensor(a!) out, int rank, float eps, bool plus_one",
    "rotary_embedding": "Tensor(a!) x, Tensor positions, Tensor inv_freq, float magnitude",
}
_KERNELS = {name: getattr(_core, name) for name in _SCHEMAS}
_PLAIN = (Tensor, torch.nn.Parameter)  # types whose memory is theirs; subclasses go through torch's dispatcher
_torch_library: Any = torch.library  # its classes have no types
_library = _torch_library.Library("headrace", "DEF")


def _run_on_gpu(name: str, *arguments: Any) -> None:
    """Runs a kernel, which makes its device current, and makes torch's device current again."""
    device = arguments[0].device
    if device.index == torch.cuda.current_device():
        _KERNELS[name](*arguments)
        return
    with torch.cuda.device(device):
        _KERNELS[name](*arguments)


_GPU_KERNELS = {name: functools.partial(_run_on_gpu, name) for name in _SCHEMAS}


def _register(name: str, schema: str) -> None:
    _library.define(f"{name}({schema}) -> ()")
    _library.impl(name, _KERNELS[name], "CPU")
    _library.impl(name, _GPU_KERNELS[name], "CUDA")
    torch.library.register_fake(f"headrace::{name}", lambda *arguments: None, lib=_library)


for _name, _schema in _SCHEMAS.items():
    _register(_name, _schema)


def _dispatch(name: str, *arguments: Any) -> None:
    """Runs the custom operator. Kernels refuse gradients themselves; torch.compile must refuse them before."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
        raise InvalidArgumentError(
            f"{name}: a tensor requires a gradient, and headrace's ops have none; expected detached tensors, or a call "
            "under torch.no_grad() or torch.inference_mode()"
        )
    getattr(torch.ops.headrace, name).default(*arguments)


_DISPATCHERS = {name: functools.partial(_dispatch, name) for name in _SCHEMAS}


def kernel(name: str, first: Tensor) -> Callable[..., None]:
    """Returns what runs an op on `first`: the kernel itself, or under torch.compile and for subclasses of Tensor the
    custom operator."""
    if torch.compiler.is_compiling() or type(first) not in _PLAIN:
        return _DISPATCHERS[name]
    return (_GPU_KERNELS if first.is_cuda else _KERNELS)[name]


def empty(like: Tensor, shape: tuple[int, ...], dtype: str | None) -> Tensor:
    """Returns a new tensor on the device of `like`."""
    if dtype is not None:
        return like.new_empty(shape, dtype=getattr(torch, dtype))
    return like.new_empty(shape)


def zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns int32 zeros on the device of `like`."""
    return like.new_zeros(shape, dtype=torch.int32)


def arange(like: Tensor, count: int) -> Tensor:
    """Returns 0 to count - 1 on the device of `like`."""
    return torch.arange(count, dtype=torch.int32, device=like.device)


def as_tensor(value: Any, like: Tensor) -> Tensor:
    """Returns `value`, a tensor or a list, on the device of `like`."""
    return value if isinstance(value, Tensor) else torch.as_tensor(value, device=like.device)


def is_integer(x: Tensor) -> bool:
    """Returns True for dtypes of whole numbers."""
    return not (x.is_floating_point() or x.is_complex() or x.dtype is torch.bool)


def one_token_each(x: Tensor, slots: Tensor) -> tuple[Tensor | None, Tensor]:
    """Returns spans and state slots of requests of one token; the CPU's kernels take slots [num_requests] instead."""
    if not x.is_cuda:
        return None, slots
    num = x.shape[0]
    spans = zeros(x, (num, 15))
    spans[:, 0] = arange(x, num)
    spans[:, 1] = 1
    spans[:, 8] = 1
    return spans, torch.stack((slots, slots), 1)
