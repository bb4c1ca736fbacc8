"""The attention function of attn_implementation="headrace"."""

from typing import Any

import torch

from headrace import ops
from headrace.errors import InvalidArgumentError, UnsupportedError
from headrace.integrations._cache import PagedLayer, layer_of
from headrace.integrations._steps import Rows, rows_of

_NOT_BUILT = {
    "position_bias": "biases of positions",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "indices": "choices of keys",
    "block_indices": "choices of keys",
    "cu_seq_lens_q": "packed sequences",
}


def _refuse(dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout:
        raise UnsupportedError(f"headrace: dropout is {dropout}, expected 0: training is not built")
    for name, what in _NOT_BUILT.items():
        if kwargs.get(name) is not None:
            raise UnsupportedError(f'headrace: {name}: {what} are not built with attn_implementation="headrace"')
    if kwargs.get("output_attentions"):
        raise UnsupportedError("headrace: output_attentions: the kernels do not make attention weights")


def _by_token(states: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, dim] as [batch * tokens, heads, dim]."""
    batch, heads, tokens, dim = states.shape
    return states.transpose(1, 2).reshape(batch * tokens, heads, dim)


def headrace_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of transformers' layers: query [batch, heads, q_len, head_dim], key and value [batch, kv_heads, q_len,
    ...] as `HeadraceCache` or no cache returns them; attention_mask: None, or of padding [batch, tokens].

    Returns [batch, q_len, heads, head_dim], zeros in rows of padding, and None."""
    layer = layer_of(key, value)
    _refuse(dropout, kwargs)
    batch, heads, q_len, _ = query.shape
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if layer is None and key.shape[2] != q_len:
        raise InvalidArgumentError(
            f"headrace: {q_len} queries came with {key.shape[2]} keys of another cache, expected "
            "headrace.integrations.HeadraceCache(model.config)"
        )
    rows = rows_of(batch, q_len, attention_mask, query.device)
    options = {
        "scale": scaling,
        "logit_cap": softcap or 0.0,
        "window": sliding_window,
        "type": "decoder" if causal else "decoder_bidirectional",
        "max_q_len": q_len,
    }
    q, k, v = (rows.packed(_by_token(states)) for states in (query, key, value))
    result = rows.padded(_attend(q, k, v, layer, rows, options))
    return result.view(batch, q_len, heads, value.shape[3]), None


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: PagedLayer | None, rows: Rows, options: dict[str, Any]
) -> torch.Tensor:
    """Attends to the layer's pool, where it stores k and v; without a layer to k and v alone."""
    if layer is None:
        spans = rows.spans([0] * rows.batch)
        return ops.paged_attention(q, None, None, None, spans, k_new=k, v_new=v, max_kv_len=rows.q_len, **options)
    step = layer.pool_of(rows)
    ops.store_kv(k, v, step.slots, layer.keys, layer.values)
    if not q.is_cuda:  # kernels of a CPU read the new keys where they are, those of a GPU are fastest over a pool alone
        options |= {"k_new": k, "v_new": v}
    return ops.paged_attention(
        q, layer.keys, layer.values, step.page_table, step.spans, max_kv_len=step.max_kv_len, **options
    )
