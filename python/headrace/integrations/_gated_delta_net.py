"""Gated DeltaNet layers of Qwen3-Next and Qwen3.5 by headrace's kernels."""

from typing import Any

import torch

from headrace import ops
from headrace.errors import UnsupportedError
from headrace.integrations._cache import StateLayer, require_headrace_cache
from headrace.integrations._steps import Rows, require_batch, rows_of


def _projected(layer: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (qkv, z, a, b) of x [batch, tokens, hidden], as [batch, tokens, ...]."""
    if hasattr(layer, "in_proj_qkv"):
        return layer.in_proj_qkv(x), layer.in_proj_z(x), layer.in_proj_a(x), layer.in_proj_b(x)
    qkvz, ba = layer.in_proj_qkvz(x), layer.in_proj_ba(x)
    query, key, value, z, b, a = layer.fix_query_key_value_ordering(qkvz, ba)
    return torch.cat([part.flatten(2) for part in (query, key, value)], dim=-1), z.flatten(2), a, b


def _states(layer: Any, state: StateLayer | None, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (convolution's states, recurrent states, slots) of the batch; without a cache nothing is kept."""
    batch = x.shape[0]
    conv = (batch, layer.conv_dim, layer.conv_kernel_size - 1)
    recurrent = (batch, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)
    if state is None:
        slots = torch.full((batch, 2), -1, dtype=torch.int32, device=x.device)
        return x.new_zeros((1, *conv[1:])), x.new_zeros((1, *recurrent[1:]), dtype=torch.float32), slots
    if not state.is_initialized:
        state.lazy_initialization(x.new_zeros(conv), x.new_zeros(recurrent, dtype=torch.float32))
    require_batch(state.conv.shape[0], batch)
    slots = torch.arange(batch, dtype=torch.int32, device=x.device)[:, None].expand(batch, 2).contiguous()
    return state.conv, state.recurrent, slots


def _rule(layer: Any, inputs: list[torch.Tensor], rows: Rows, states: Any) -> torch.Tensor:
    """Convolution and gated delta rule of qkv, a and b; returns [batch * q_len, value heads, value dim]."""
    (qkv, a, b), (conv, recurrent, slots) = map(rows.packed, inputs), states
    spans = rows.spans([0] * rows.batch)
    weight = layer.conv1d.weight.squeeze(1)
    mixed = ops.causal_conv1d(qkv, weight, conv, spans, slots, max_q_len=rows.q_len)
    out = ops.gated_delta_rule(
        mixed,
        a,
        b,
        layer.A_log.float(),
        layer.dt_bias.float(),
        recurrent,
        spans,
        slots,
        num_k_heads=layer.num_k_heads,
        max_q_len=rows.q_len,
    )
    return rows.padded(out)


def _gated_norm(norm: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """The layer's norm of x [rows, dim], times silu(gate)."""
    eps = getattr(norm, "variance_epsilon", None)
    # A transformers may take flash-linear-attention's norm, and hooks are those of a module.
    if eps is None or norm._forward_hooks or norm._forward_pre_hooks:
        return norm(x, gate)
    return ops.rms_norm(x, norm.weight, eps=eps, gate=gate)


def gated_delta_net_forward(
    layer: Any,
    hidden_states: torch.Tensor,
    cache: Any = None,
    attention_mask: torch.Tensor | None = None,
    cache_params: Any = None,
    **kwargs: Any,
) -> torch.Tensor:
    """The forward of a layer of transformers: hidden_states [batch, tokens, hidden] in and out; attention_mask of
    padding [batch, tokens], or None."""
    cache = cache_params if cache is None else cache
    require_headrace_cache(cache)
    if layer.activation not in ("silu", "swish") or layer.conv1d.bias is not None:
        raise UnsupportedError("headrace: Gated DeltaNet with a bias or an activation other than SiLU is not built")
    if kwargs.get("cu_seq_lens_q") is not None:
        raise UnsupportedError('headrace: packed sequences are not built with attn_implementation="headrace"')
    batch, q_len, _ = hidden_states.shape
    state = None if cache is None else cache.layers[layer.layer_idx]
    qkv, z, a, b = _projected(layer, hidden_states)
    rows = rows_of(batch, q_len, attention_mask, hidden_states.device)
    flat = [part.reshape(batch * q_len, -1) for part in (qkv, a, b)]
    attended = _rule(layer, flat, rows, _states(layer, state, hidden_states))
    if state is not None:
        state.seen += q_len
    gated = _gated_norm(layer.norm, attended.reshape(-1, layer.head_v_dim), z.reshape(-1, layer.head_v_dim))
    return layer.out_proj(gated.reshape(batch, q_len, -1))
