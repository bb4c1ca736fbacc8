"""Attention in plain torch, for debugging: the shortest correct code, in float32 or wider."""

from __future__ import annotations

import torch

from headrace import ops
from headrace.diffusion.metadata import AttnMetaDataBase
from headrace.diffusion.step_plan import make_plan
from headrace.errors import InvalidArgumentError


def reference_torch_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    scale: float,
    mask: torch.Tensor | None = None,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """Attention of one sequence that sees all its rows, without cache or metadata, with Diffulex's arguments.

    q [T, num_heads, dim]; k, v [T, num_kv_heads, dim]. mask, [T, T] or [num_heads, T, T], is added to the scores.
    sliding_window: a row sees no key so many positions before it, or more. None or 0: no window. Returns [T,
    num_heads, dim] in q's dtype.
    """
    if q.shape[1] != num_heads or k.shape[1] != num_kv_heads:
        raise InvalidArgumentError(
            f"reference_torch_attention: q has {q.shape[1]} heads and k has {k.shape[1]}, expected {num_heads} and "
            f"{num_kv_heads}"
        )
    at = torch.arange(q.shape[0], device=q.device)
    visible = torch.ones((len(at), len(at)), dtype=torch.bool, device=q.device)
    if sliding_window:
        visible = at[:, None] - at[None, :] < sliding_window
    return _softmax_attention(q, k, v, scale, visible, mask)


def reference_paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor | None,
    v_cache: torch.Tensor | None,
    scale: float,
    sliding_window: int | None,
    attn_metadata: AttnMetaDataBase,
) -> torch.Tensor:
    """What triton_attention returns for this metadata. Nothing is stored; lengths are copied to the host."""
    plan = make_plan(attn_metadata, q.shape[0], q.device)
    out = torch.zeros((q.shape[0], q.shape[1], v.shape[2]), dtype=q.dtype, device=q.device)
    for values in plan.spans.tolist():
        span = dict(zip(ops.SPAN_FIELDS, values, strict=True))
        rows = slice(span["q_off"], span["q_off"] + span["q_len"])
        keys, cached_values = k[rows], v[rows]
        if span["ctx_len"] > 0:
            if plan.page_table is None or k_cache is None or v_cache is None:
                raise InvalidArgumentError(
                    f"attention: a request has {span['ctx_len']} cached tokens, but page_tables or a cache is None"
                )
            slots = _cached_slots(plan.page_table[span["page_row"]], plan.page_size, span["ctx_len"])
            keys = torch.cat((k_cache.flatten(0, 1)[slots].to(k.dtype), keys))
            cached_values = torch.cat((v_cache.flatten(0, 1)[slots].to(v.dtype), cached_values))
        if span["q_len"] > 0:
            visible = visible_keys(span, sliding_window).to(q.device)
            out[rows] = _softmax_attention(q[rows], keys, cached_values, scale, visible)
    return out


def visible_keys(span: dict[str, int], sliding_window: int | None = None) -> torch.Tensor:
    """Returns what each row of a span sees, bool [q_len, ctx_len + q_len]: cached keys, then new ones."""
    rows = torch.arange(span["q_len"])
    at = span["phys0"] + rows
    block_end = (at // span["block_size"] + 1) * span["block_size"]
    full = torch.full_like(at, span["phys0"] + span["q_len"])
    prompt, padded = span["prompt_len"], span["padded_prompt_len"]
    prompt_end = torch.where(at < prompt, prompt, torch.where(at < padded, padded, block_end))
    none = torch.zeros_like(at)
    ends = (at + 1, block_end, full, prompt_end, none)[span["kind"]]  # by KeySpan::Kind
    new = span["phys0"] + rows < ends[:, None]
    cached = torch.arange(span["ctx_len"])
    outside_hole = (cached < span["hole_begin"]) | (cached >= span["hole_end"])
    visible = torch.cat((outside_hole.expand(span["q_len"], -1), new), dim=1)
    if sliding_window:
        positions = torch.cat((cached, at))
        logical = torch.where(positions < span["hole_begin"], positions, positions - span["log_shift"])
        visible &= logical[span["ctx_len"] :, None] - logical[None, :] < sliding_window
    return visible


def _cached_slots(pages: torch.Tensor, page_size: int, tokens: int) -> torch.Tensor:
    positions = torch.arange(tokens, device=pages.device)
    return pages[positions // page_size].long() * page_size + positions % page_size


def _softmax_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    visible: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    k, v = (x.to(wide).repeat_interleave(group, dim=1) for x in (k, v))
    v = v.masked_fill(~visible.any(dim=0)[:, None, None], 0.0)  # it may hold NaN where no row looks
    scores = torch.einsum("ihd,jhd->hij", q.to(wide), k) * scale
    if mask is not None:
        scores = scores + mask.to(wide)
    scores = scores.masked_fill(~visible, -torch.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)  # a row that sees no key yields zeros
    return torch.einsum("hij,jhd->ihd", weights, v).to(q.dtype)
