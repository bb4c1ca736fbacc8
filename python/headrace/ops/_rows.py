"""Ops on rows: rms_norm and rotary_embedding."""

from typing import Any

from headrace import _core
from headrace.ops._tensors import empty_like, expect_tensor, torch_of, wrong_number


def rms_norm(
    x: Any,
    weight: Any,
    *,
    eps: float = 1e-6,
    gate: Any = None,
    plus_one: bool = False,
    out: Any = None,
) -> Any:
    """Root-mean-square norm over the last dimension, plain or gated.

    out = x / sqrt(mean(x^2) + eps) * weight, in float32, multiplied by silu(gate) if there is a gate.

    Arguments:
        x: [tokens, dim] or [tokens, heads, dim], float32, bfloat16 or float16; all but the last may be strided.
        weight: [dim], a float dtype.
        gate: shape and dtype of x, or None.
        plus_one: multiply by 1 + weight, as the zero-centred norms of Qwen3-Next and Qwen3.5 do.
        out: shape and dtype of x, and may be x; by default a new tensor.

    Returns `out`. Raises `InvalidArgumentError` if shapes, dtypes or devices disagree.
    """
    torch = torch_of(x)
    if out is None:
        expect_tensor("rms_norm", "x", x)
        out = empty_like(x)
    run = _core.rms_norm if torch is None else torch.kernel("rms_norm", x)
    try:
        run(x, weight, gate, out, x.ndim, eps, plus_one)
    except TypeError as error:
        raise wrong_number("rms_norm", error, eps=(eps, float), plus_one=(plus_one, bool)) from None
    return out


def rotary_embedding(x: Any, positions: Any, inv_freq: Any, *, magnitude: float = 1.0) -> Any:
    """Rotates the heads of x in place, half-split as in Llama and Qwen.

    With R = 2 * len(inv_freq), the pairs (x_i, x_(i + R/2)) of each head's first R elements are rotated by
    positions[t] * inv_freq[i] and multiplied by magnitude. Other elements do not change. Angles are float32.

    Arguments:
        x: [tokens, heads, dim], float32, bfloat16 or float16, updated in place; all but the last may be strided.
        positions: int32 [tokens].
        inv_freq: float32 [R / 2], R at most dim.
        magnitude: YaRN's attention factor.

    Returns x. Raises `InvalidArgumentError` if shapes, dtypes or devices disagree.
    """
    torch = torch_of(x)
    run = _core.rotary_embedding if torch is None else torch.kernel("rotary_embedding", x)
    try:
        run(x, positions, inv_freq, magnitude)
    except TypeError as error:
        raise wrong_number("rotary_embedding", error, magnitude=(magnitude, float)) from None
    return x
