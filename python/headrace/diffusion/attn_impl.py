"""Diffulex's Attention module and its implementations."""

from __future__ import annotations

import torch

from headrace import ops
from headrace.attention.heads import with_heads
from headrace.diffusion.metadata import AttnMetaDataBase, fetch_attn_metadata
from headrace.diffusion.reference import reference_torch_attention
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
    attn_metadata: AttnMetaDataBase,
    scale: float,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """headrace's attention with one pass over K and V per query head.

    q [T, num_heads, dim]; k, v [T, num_kv_heads, dim]; caches [pages, page_size, heads, dim] or None. Rows see the
    cached keys and the new rows that attn_metadata shows them. sliding_window: a row sees no key so many positions
    before it, or more; positions do not count the prompt's padding under mask_prefix_hole. None or 0: no window.
    Nothing is stored. Returns [T, num_heads, dim] in q's dtype; rows that are padding are zeros.
    """
    plan = make_plan(attn_metadata, q.shape[0], q.device)
    return _paged(q, k, v, k_cache, v_cache, plan, scale, sliding_window, grouped=False)


def triton_grouped_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor | None,
    v_cache: torch.Tensor | None,
    attn_metadata: AttnMetaDataBase,
    scale: float,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """As triton_attention, with one pass over K and V for all query heads of a KV head: the faster one, for any number
    of heads."""
    plan = make_plan(attn_metadata, q.shape[0], q.device)
    return _paged(q, k, v, k_cache, v_cache, plan, scale, sliding_window, grouped=True)


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
        self.sliding_window = sliding_window
        self.k_cache = torch.tensor([])
        self.v_cache = torch.tensor([])

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Stores k and v of rows with a slot, then attends. Returns [T, num_heads * head_dim]; padding rows are zeros.

        q: [T, num_heads * head_dim] or 3-D; k, v likewise with num_kv_heads. mask: only for "naive", which then takes
        the rows as one sequence without a cache.
        """
        q = with_heads(q, self.num_heads, "attention: q")
        k, v = with_heads(k, self.num_kv_heads, "attention: k"), with_heads(v, self.num_kv_heads, "attention: v")
        if q.shape[0] == 0:
            return q.flatten(1)
        if mask is not None:
            return self._masked(q, k, v, mask).flatten(1)
        metadata = fetch_attn_metadata()
        plan = plan_of(metadata, id(self), q)
        k_cache, v_cache = self._cache(self.k_cache, k), self._cache(self.v_cache, v)
        if plan.slots is not None and k_cache is not None:
            pages = _pages(k_cache, plan), _pages(v_cache, plan)
            ops.store_kv(k, v, plan.slots, *pages)
        impl = ATTN_IMPLS[self.attn_impl]
        if impl == "reference":
            out = reference_torch_attention(q, k, v, self.scale, None, self.sliding_window, k_cache, v_cache, metadata)
        else:
            grouped = impl == "grouped"
            out = _paged(q, k, v, k_cache, v_cache, plan, self.scale, self.sliding_window, grouped)
        return out.flatten(1)

    def _masked(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if ATTN_IMPLS[self.attn_impl] != "reference":
            raise UnsupportedError(
                f"attention: mask is given with attn_impl '{self.attn_impl}', expected 'naive': the others see what "
                "the metadata shows"
            )
        return reference_torch_attention(q, k, v, self.scale, mask, self.sliding_window)

    @staticmethod
    def _cache(cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | None:
        """Returns the part of the cache that this layer uses, or None if none is bound."""
        return cache[:, :, : rows.shape[1], : rows.shape[2]] if cache.numel() > 0 else None


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
