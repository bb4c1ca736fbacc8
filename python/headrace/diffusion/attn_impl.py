"""Diffulex's Attention module and its implementations."""

from __future__ import annotations

import torch

from headrace import ops
from headrace.attention.heads import with_heads
from headrace.diffusion.metadata import fetch_attn_metadata, has_attn_metadata
from headrace.diffusion.reference import reference_paged_attention, reference_torch_attention
from headrace.diffusion.step_plan import StepPlan, make_plan, plan_of
from headrace.errors import InvalidArgumentError, UnsupportedError

__all__ = ["ATTN_IMPLS", "Attention", "reference_torch_attention", "triton_attention", "triton_grouped_attention"]

# Diffulex's names, and headrace's.
ATTN_IMPLS = {
    "naive": "reference",
    "triton": "optimized",
    "triton_grouped": "grouped",
    "reference": "reference",
    "optimized": "optimized",
    "grouped": "grouped",
}


def triton_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor | None,
    v_cache: torch.Tensor | None,
    softmax_scale: float,
    sliding_window: int | None = 0,
) -> torch.Tensor:
    """headrace's attention with one pass over K and V per query head, over the metadata of fetch_attn_metadata().

    q [T, num_heads, dim]; k, v [T, num_kv_heads, dim]; caches [pages, page_size, heads, dim], which may have more heads
    or longer ones; None or empty: nothing is cached. k and v of rows with a slot are stored first. Rows see the cached
    keys and the new rows that the metadata shows them. sliding_window: a row sees no key so many positions before it,
    or more; positions do not count the prompt's padding under mask_prefix_hole. None or 0: no window. Returns [T,
    num_heads, dim] in q's dtype; rows that are padding are zeros.
    """
    return _planned(q, k, v, k_cache, v_cache, softmax_scale, sliding_window, grouped=False)


def triton_grouped_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor | None,
    v_cache: torch.Tensor | None,
    softmax_scale: float,
    sliding_window: int | None = 0,
) -> torch.Tensor:
    """As triton_attention, with one pass over K and V for all query heads of a KV head: the faster one, for any number
    of heads."""
    return _planned(q, k, v, k_cache, v_cache, softmax_scale, sliding_window, grouped=True)


class Attention(torch.nn.Module):
    """One attention layer over the step's metadata, which fetch_attn_metadata() returns.

    num_heads, num_kv_heads: after sharding. attn_impl: "triton_grouped" (the default), "triton" or "naive".
    sliding_window: keys that a row sees to its left, its own included; None or 0: all.
    k_cache, v_cache: the runner binds them to [pages, page_size, heads, dim]; empty: nothing is cached. A cache may
    have more heads or longer ones than the layer, which then uses the first.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        scale: float,
        num_kv_heads: int,
        attn_impl: str = "triton_grouped",
        sliding_window: int | None = None,
    ) -> None:
        super().__init__()
        if attn_impl not in ATTN_IMPLS:
            raise UnsupportedError(f"attention: attn_impl is '{attn_impl}'; built are {list(ATTN_IMPLS)}")
        if num_kv_heads < 1 or num_heads % num_kv_heads != 0:
            raise InvalidArgumentError(
                f"attention: num_kv_heads is {num_kv_heads}, expected a divisor of num_heads ({num_heads})"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.scale = scale
        self.num_kv_heads = num_kv_heads
        self.attn_impl = attn_impl
        self.sliding_window = int(sliding_window or 0)
        self.k_cache = torch.tensor([])
        self.v_cache = torch.tensor([])

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Stores k and v of rows with a slot, then attends. Returns [T, num_heads * head_dim]; padding rows are zeros.

        q: [T, num_heads * head_dim] or 3-D; k, v likewise with num_kv_heads. mask: only for "naive", which then takes
        the rows as one sequence without a cache, as it does where no metadata is set.
        """
        q = with_heads(q, self.num_heads, "attention: q")
        k, v = with_heads(k, self.num_kv_heads, "attention: k"), with_heads(v, self.num_kv_heads, "attention: v")
        if q.shape[0] == 0:
            return q.flatten(1)
        is_reference = ATTN_IMPLS[self.attn_impl] == "reference"
        if mask is not None and not is_reference:
            raise UnsupportedError(
                f"attention: mask is given with attn_impl '{self.attn_impl}', expected 'naive': the others see what "
                "the metadata shows"
            )
        if is_reference and (mask is not None or not has_attn_metadata()):
            return self._one_sequence(q, k, v, mask).flatten(1)
        metadata = fetch_attn_metadata()
        plan = plan_of(metadata, id(self), q)
        k_cache, v_cache = _cache_for(self.k_cache, k), _cache_for(self.v_cache, v)
        _store(k, v, k_cache, v_cache, plan)
        if is_reference:
            window = self.sliding_window
            return reference_paged_attention(q, k, v, k_cache, v_cache, self.scale, window, metadata).flatten(1)
        grouped = ATTN_IMPLS[self.attn_impl] == "grouped"
        return _paged(q, k, v, k_cache, v_cache, plan, self.scale, self.sliding_window, grouped).flatten(1)

    def _one_sequence(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        return reference_torch_attention(
            q,
            k,
            v,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            scale=self.scale,
            mask=mask,
            sliding_window=self.sliding_window,
        )


def _planned(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor | None,
    v_cache: torch.Tensor | None,
    scale: float,
    sliding_window: int | None,
    grouped: bool,
) -> torch.Tensor:
    """Plans the step of fetch_attn_metadata(), stores and attends."""
    plan = make_plan(fetch_attn_metadata(), q.shape[0], q.device)
    k_cache, v_cache = _cache_for(k_cache, k), _cache_for(v_cache, v)
    _store(k, v, k_cache, v_cache, plan)
    return _paged(q, k, v, k_cache, v_cache, plan, scale, sliding_window, grouped)


def _cache_for(cache: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor | None:
    """Returns the part of a cache that rows like these fill, or None if there is no cache."""
    return cache[:, :, : rows.shape[1], : rows.shape[2]] if cache is not None and cache.numel() > 0 else None


def _store(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor | None, v_cache: torch.Tensor | None, plan: StepPlan
) -> None:
    if plan.slots is not None and k_cache is not None:
        ops.store_kv(k, v, plan.slots, _pages(k_cache, plan), _pages(v_cache, plan))


def _paged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor | None,
    v_cache: torch.Tensor | None,
    plan: StepPlan,
    scale: float,
    sliding_window: int | None,
    grouped: bool,
) -> torch.Tensor:
    out: torch.Tensor = ops.paged_attention(
        q,
        _pages(k_cache, plan),
        _pages(v_cache, plan),
        plan.page_table,
        plan.spans,
        k_new=k,
        v_new=v,
        scale=scale,
        window=sliding_window or None,
        grouped=grouped,
        max_q_len=plan.max_q_len,
        max_kv_len=plan.max_kv_len,
    )
    return out


def _pages(cache: torch.Tensor | None, plan: StepPlan) -> torch.Tensor | None:
    """Returns a view of [pages, page_size, heads, dim] in the order of the kernels, [pages, heads, page_size, dim]."""
    if cache is None:
        return None
    if cache.shape[1] != plan.page_size:
        raise InvalidArgumentError(
            f"attention: the cache has pages of {cache.shape[1]} tokens, the metadata's page_size is {plan.page_size}"
        )
    return cache.transpose(1, 2)
