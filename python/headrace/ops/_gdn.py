"""Gated DeltaNet: the causal convolution and the gated delta rule."""

from typing import Any

from headrace import _core
from headrace.errors import InvalidArgumentError
from headrace.ops._tensors import empty, empty_like, expect_tensor, torch_of, wrong_number


def _new_out(qkv: Any, state: Any) -> Any:
    expect_tensor("gated_delta_rule", "qkv", qkv)
    expect_tensor("gated_delta_rule", "state", state)
    if state.ndim != 4:
        raise InvalidArgumentError(f"gated_delta_rule: state: shape is {list(state.shape)}, expected 4 dimensions")
    return empty(qkv, (qkv.shape[0], state.shape[1], state.shape[2]))


def causal_conv1d(
    x: Any,
    weight: Any,
    state: Any,
    spans: Any,
    slots: Any,
    *,
    snapshots: Any = None,
    out: Any = None,
    max_q_len: int | None = None,
) -> Any:
    """Causal depthwise convolution of a ragged batch, then SiLU, with the states of requests in a pool.

    out[t, c] = silu(sum over j of weight[c, j] * x[t - (width - 1) + j, c]). Inputs before a request's first new token
    come from its state, or are zero. Sums are float32.

    Arguments:
        x: [num_tokens, channels], float32, bfloat16 or float16; rows may be strided.
        weight: [channels, width], a float dtype; the last column multiplies the newest token.
        state: [num_slots, channels, width - 1], a float dtype: the last inputs of each slot, newest last. Updated in
            place: after the call slot `write` of a request holds the inputs before its next token.
        spans: int32 [num_requests, 15] of `key_spans`; only q_off and q_len are read.
        slots: int32 [num_requests, 2], the slot that a request reads and the one it writes. -1: it starts from zeros,
            or keeps nothing. Two requests must not write one slot.
        snapshots: int32 [n, 3], sorted: (request, num_tokens, slot) also writes the state after the request's first
            num_tokens new tokens to a slot.
        out: [num_tokens, channels], a float dtype; by default a new tensor like x.
        max_q_len: on a GPU, a bound of the spans' q_len. With it nothing waits for the GPU, and a CUDA graph may be
            captured. Without it each call copies spans to the host and waits. Ignored on a CPU.

    Returns `out`. Raises `InvalidArgumentError` if shapes, dtypes or devices disagree, or a slot (on a CPU) is outside
    the pool; `UnsupportedError` for more taps than are built.
    """
    torch = torch_of(x)
    if out is None:
        expect_tensor("causal_conv1d", "x", x)
        out = empty_like(x)
    run = _core.causal_conv1d if torch is None else torch.kernel("causal_conv1d", x)
    try:
        run(x, weight, state, spans, slots, snapshots, out, max_q_len or 0)
    except TypeError as error:
        raise wrong_number("causal_conv1d", error, max_q_len=(max_q_len, int)) from None
    return out


def causal_conv1d_update(x: Any, weight: Any, state: Any, slots: Any, *, out: Any = None) -> Any:
    """`causal_conv1d` of one token for each request: the decode case.

    Arguments:
        x: [num_requests, channels], as in `causal_conv1d`.
        weight: as in `causal_conv1d`.
        state: as in `causal_conv1d`.
        slots: int32 [num_requests], the slot that a request reads and writes; -1: it starts from zeros and keeps
            nothing.
        out: as in `causal_conv1d`.
    """
    torch = torch_of(x)
    if out is None:
        expect_tensor("causal_conv1d_update", "x", x)
        out = empty_like(x)
    spans, pairs = (None, slots) if torch is None else torch.one_token_each(x, slots)
    run = _core.causal_conv1d if torch is None else torch.kernel("causal_conv1d", x)
    run(x, weight, state, spans, pairs, None, out, 1)
    return out


def gated_delta_rule(
    qkv: Any,
    a: Any,
    b: Any,
    a_log: Any,
    dt_bias: Any,
    state: Any,
    spans: Any,
    slots: Any,
    *,
    num_k_heads: int,
    snapshots: Any = None,
    out: Any = None,
    max_q_len: int | None = None,
    strict: bool = False,
) -> Any:
    """The gated delta rule of a ragged batch, in chunks or token by token, with the states of requests in a pool.

    Value head h uses key head h // (num_v_heads // num_k_heads). For its state S [head_v_dim, head_k_dim] and token t:

        decay = exp(-exp(a_log[h]) * softplus(a[t, h] + dt_bias[h])), beta = sigmoid(b[t, h])
        qn = q / sqrt(sum q^2 + 1e-6) / sqrt(head_k_dim), kn = k / sqrt(sum k^2 + 1e-6)
        S = decay * S; S = S + beta * (v - S kn) kn^T; out[t, h] = S qn

    Arithmetic is float32 or wider.

    Arguments:
        qkv: [num_tokens, 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim], q | k | v after the convolution;
            float32, bfloat16 or float16; rows may be strided.
        a: of the decay, [num_tokens, num_v_heads], a float dtype; rows may be strided.
        b: of beta, [num_tokens, num_v_heads], the dtype of `a`; rows may be strided.
        a_log: float32 [num_v_heads].
        dt_bias: float32 [num_v_heads].
        state: float32 [num_slots, num_v_heads, head_v_dim, head_k_dim], updated in place.
        spans: as in `causal_conv1d`.
        slots: as in `causal_conv1d`.
        num_k_heads: key heads, a divisor of num_v_heads.
        snapshots: as in `causal_conv1d`.
        out: [num_tokens, num_v_heads, head_v_dim], a float dtype; by default a new tensor of qkv's dtype.
        max_q_len: as in `causal_conv1d`.
        strict: bits do not depend on how a request is split into calls.

    Returns `out`. Raises `InvalidArgumentError` if shapes, dtypes or devices disagree, or a slot (on a CPU) is outside
    the pool; `UnsupportedError` for sizes that the device has no kernel for.
    """
    torch = torch_of(qkv)
    if out is None:
        out = _new_out(qkv, state)
    run = _core.gated_delta_rule if torch is None else torch.kernel("gated_delta_rule", qkv)
    try:
        run(
            qkv,
            a,
            b,
            a_log,
            dt_bias,
            state,
            spans,
            slots,
            snapshots,
            out,
            num_k_heads,
            max_q_len or 0,
            strict,
        )
    except TypeError as error:
        numbers = {"num_k_heads": (num_k_heads, int), "max_q_len": (max_q_len, int), "strict": (strict, bool)}
        raise wrong_number("gated_delta_rule", error, **numbers) from None
    return out


def gated_delta_rule_update(
    qkv: Any,
    a: Any,
    b: Any,
    a_log: Any,
    dt_bias: Any,
    state: Any,
    slots: Any,
    *,
    num_k_heads: int,
    out: Any = None,
) -> Any:
    """`gated_delta_rule` of one token for each request: the decode case.

    Arguments as in `gated_delta_rule`, with row r of qkv, a, b and out for request r. `slots`: int32 [num_requests],
    the slot that a request reads and writes; -1: it starts from zeros and keeps nothing.
    """
    torch = torch_of(qkv)
    if out is None:
        out = _new_out(qkv, state)
    spans, pairs = (None, slots) if torch is None else torch.one_token_each(qkv, slots)
    run = _core.gated_delta_rule if torch is None else torch.kernel("gated_delta_rule", qkv)
    try:
        run(qkv, a, b, a_log, dt_bias, state, spans, pairs, None, out, num_k_heads, 1, False)
    except TypeError as error:
        raise wrong_number("gated_delta_rule_update", error, num_k_heads=(num_k_heads, int)) from None
    return out
