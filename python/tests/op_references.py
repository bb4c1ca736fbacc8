"""What the ops of headrace.ops mean, in float64 with torch, written from the headers in include/headrace and
src/headrace/ops: batch/key_span.h, ops/paged_attention.h, ops/store_kv.h, ops/causal_conv1d.h, ops/gated_delta_rule.h,
ops/rms_norm.h and ops/rotary_embedding.h. The shortest correct loops."""

import math
from typing import Any

import torch

from headrace.ops import SPAN_FIELDS

CAUSAL, BLOCK, FULL, PREFIX_FULL, NONE = range(5)


class Span:
    """One request: the fields of KeySpan, and who sees what."""

    def __init__(self, row: list[int]) -> None:
        for name, value in zip(SPAN_FIELDS, row, strict=True):
            setattr(self, name, int(value))

    def new_keys(self, i: int) -> int:
        """Row i sees the new rows below this one."""
        at = self.phys0 + i
        block_end = (at // self.block_size + 1) * self.block_size
        if self.kind == CAUSAL:
            return i + 1
        if self.kind == FULL:
            return self.q_len
        if self.kind == NONE:
            return 0
        end = block_end
        if self.kind == PREFIX_FULL and at < self.prompt_len:
            end = self.prompt_len
        elif self.kind == PREFIX_FULL and at < self.padded_prompt_len:
            end = self.padded_prompt_len
        return min(end - self.phys0, self.q_len)

    def logical(self, position: int) -> int:
        return position if position < self.hole_begin else position - self.log_shift

    def sees_new(self, i: int, j: int, window: int | None) -> bool:
        in_window = window is None or self.window_from == 1 or i - j < window
        return j < self.new_keys(i) and in_window

    def sees_cached(self, i: int, j: int, window: int | None) -> bool:
        if self.hole_begin <= j < self.hole_end:
            return False
        if window is None:
            return True
        origin = self.phys0 if self.window_from == 1 else self.phys0 + i
        return self.logical(origin) - self.logical(j) < window


def paged_attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    page_table: torch.Tensor,
    spans: torch.Tensor,
    *,
    k_new: torch.Tensor | None = None,
    v_new: torch.Tensor | None = None,
    scale: float,
    logit_cap: float = 0.0,
    window: int | None = None,
    type: str = "decoder",
    keys: str = "sequence",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns out and lse. k_pool, v_pool: float64 [pages, kv_heads, page_size, dim], dequantised; k_new, v_new as they
    count after rounding."""
    tokens, heads, _ = q.shape
    v_dim = (v_pool if v_pool is not None else v_new).shape[-1]
    out, lse = torch.zeros(tokens, heads, v_dim).double(), torch.full((tokens, heads), -math.inf).double()
    for row in spans.tolist():
        span = Span(row)
        if type == "decoder_bidirectional" and span.kind == CAUSAL:
            span.kind = FULL
        if type == "encoder_only":
            span.kind, span.ctx_len, span.hole_begin, span.hole_end = FULL, 0, 0, 0
        for i in range(span.q_len):
            k, v = _seen(span, i, k_pool, v_pool, page_table, k_new, v_new, window, keys)
            if not k:
                continue
            t = span.q_off + i
            group = heads // k[0].shape[0]
            k_seen, v_seen = (torch.stack(x).repeat_interleave(group, 1) for x in (k, v))
            scores = scale * torch.einsum("hd,jhd->hj", q[t].double(), k_seen.double())
            if logit_cap > 0:
                scores = logit_cap * torch.tanh(scores / logit_cap)
            out[t] = torch.einsum("hj,jhd->hd", scores.softmax(1), v_seen.double())
            lse[t] = scores.logsumexp(1)
    return out, lse


def _seen(
    span: Span,
    i: int,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    page_table: torch.Tensor,
    k_new: torch.Tensor | None,
    v_new: torch.Tensor | None,
    window: int | None,
    keys: str,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns the keys and values that row i of a request sees, each [kv_heads, dim]."""

    def pooled(row: int, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        page_size = k_pool.shape[2]
        page, at = int(page_table[row, position // page_size]), position % page_size
        return k_pool[page, :, at], v_pool[page, :, at]

    if keys == "encoder":
        pairs = [pooled(span.encoder_page_row, j) for j in range(span.encoder_len)]
    else:
        pairs = [pooled(span.page_row, j) for j in range(span.ctx_len) if span.sees_cached(i, j, window)]
        for j in range(span.q_len):
            if span.sees_new(i, j, window):
                new = k_new is not None
                pairs.append(
                    (k_new[span.q_off + j], v_new[span.q_off + j]) if new else pooled(span.page_row, span.phys0 + j)
                )
    return [k for k, _ in pairs], [v for _, v in pairs]


def int8_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the codes and scales that store_kv gives the rows of x, float32 arithmetic."""
    largest = x.float().abs().amax(-1, keepdim=True)
    factor = torch.full_like(largest, 127) / largest  # 127 / largest is 127 * (1 / largest) in torch
    codes = torch.where(largest < 2.0**-100, 0.0, torch.round(x.float() * factor))
    return codes.to(torch.int8), torch.where(largest < 2.0**-100, 0.0, largest / 127)[..., 0]


def store_kv(x: torch.Tensor, slots: torch.Tensor, pool: torch.Tensor, scale: float = 1.0) -> None:
    """Writes rows to a pool of any dtype but int8."""
    page_size = pool.shape[2]
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            row = x[t].float() / torch.tensor(scale, dtype=torch.float32)
            if pool.dtype == torch.float8_e4m3fn:
                row = row.clamp(-448, 448)
            pool[slot // page_size, :, slot % page_size] = row.to(pool.dtype)


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    spans: torch.Tensor,
    slots: torch.Tensor,
    snapshots: Any = (),
) -> torch.Tensor:
    """Returns out, float64; updates state."""
    width = weight.shape[1]
    out, before = torch.zeros(x.shape).double(), state.clone()
    for r, (row, (read, write)) in enumerate(zip(spans.tolist(), slots.tolist(), strict=True)):
        span = Span(row)
        if span.q_len == 0:
            continue
        past = before[read].double().T if read >= 0 else torch.zeros(width - 1, x.shape[1]).double()
        inputs = torch.cat((past, x[span.q_off : span.q_off + span.q_len].double()))
        for t in range(span.q_len):
            out[span.q_off + t] = torch.nn.functional.silu((inputs[t : t + width].T * weight.double()).sum(1))
        keeps = [(n, slot) for request, n, slot in snapshots if request == r]
        for n, slot in [*keeps, *([(span.q_len, write)] if write >= 0 else [])]:
            state[slot] = inputs[n : n + width - 1].T.to(state.dtype)
    return out


def gated_delta_rule(
    qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    spans: torch.Tensor,
    slots: torch.Tensor,
    num_k_heads: int,
    snapshots: Any = (),
) -> torch.Tensor:
    """Returns out, float64; updates state, float64."""
    _, heads, v_dim, k_dim = state.shape
    tokens, group, before = qkv.shape[0], heads // num_k_heads, state.clone()
    q, k, v = qkv.double().split([num_k_heads * k_dim, num_k_heads * k_dim, heads * v_dim], 1)
    unit = [x.reshape(tokens, num_k_heads, k_dim).repeat_interleave(group, 1) for x in (q, k)]
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in unit)
    q, v = q / k_dim**0.5, v.reshape(tokens, heads, v_dim)
    decay = torch.exp(-a_log.double().exp() * torch.nn.functional.softplus(a.double() + dt_bias.double()))
    beta, out = b.double().sigmoid(), torch.zeros(tokens, heads, v_dim).double()
    for r, (row, (read, write)) in enumerate(zip(spans.tolist(), slots.tolist(), strict=True)):
        span = Span(row)
        if span.q_len == 0:
            continue
        s = before[read].clone() if read >= 0 else torch.zeros_like(state[0])
        keeps = [(n, slot) for request, n, slot in snapshots if request == r]
        for t in range(span.q_off, span.q_off + span.q_len):
            s = decay[t, :, None, None] * s
            d = beta[t, :, None] * (v[t] - torch.einsum("hvk,hk->hv", s, k[t]))
            s = s + d[:, :, None] * k[t][:, None, :]
            out[t] = torch.einsum("hvk,hk->hv", s, q[t])
            for n, slot in keeps:
                if n == t - span.q_off + 1:
                    state[slot] = s
        if write >= 0:
            state[write] = s
    return out


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, gate: torch.Tensor | None = None, plus_one: bool = False
) -> torch.Tensor:
    wide = x.double()
    y = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * (weight.double() + plus_one)
    return y if gate is None else y * torch.nn.functional.silu(gate.double())


def rotary_embedding(
    x: torch.Tensor, positions: torch.Tensor, inv_freq: torch.Tensor, magnitude: float = 1.0
) -> torch.Tensor:
    half = inv_freq.shape[0]
    angles = positions.double()[:, None, None] * inv_freq.double()
    first, second, rest = x.double().split([half, half, x.shape[-1] - 2 * half], -1)
    turned = (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    return torch.cat((turned[0] * magnitude, turned[1] * magnitude, rest), -1)
