"""Diffulex's metadata of one step, and the package's fetch hook. Strategies subclass AttnMetaDataBase."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from headrace.errors import InvalidArgumentError


@dataclasses.dataclass
class AttnMetaDataBase:
    """What attention must know of a step besides q, k and v: Diffulex's fields in its order.

    R: requests, T: packed tokens.
    Tensors lie on the device of q. A subclass may add fields and replace any by a property; Attention reads those of
    MultiBlockAttnMetaData and FastDLLMV2AttnMetaData, too, where they exist.
    """

    is_prefill: bool | Sequence[bool] = dataclasses.field(default_factory=lambda: [False])  # per request, or of all
    enforce_eager: bool = False
    cu_seqlens_q: torch.Tensor | None = None  # int32 [R + 1]: first packed row of each request, then T
    cu_seqlens_k: torch.Tensor | None = None  # int32 [R + 1]; not read
    max_seqlen_q: int = 0  # most rows of a request; 0: not known
    max_seqlen_k: int = 0
    slot_mapping: torch.Tensor | None = None  # int [T]: page * page_size + offset of a row's K and V; -1: not stored

    # Override what is derived from the other fields; None: derived.
    need_kv_cache_store_static: bool | None = None
    has_prefill_static: bool | None = None
    all_prefill_static: bool | None = None

    context_lens: torch.Tensor | None = None  # int32 [R]: readable cached tokens; None: none
    page_tables: torch.Tensor | None = None  # int32 [R, pages]: physical page of each logical one; -1: none
    status_table: torch.Tensor | None = None  # int32 [R]: 0 prefill, 1 decode, 2 refine; None: by is_prefill
    mask_prefix_hole: bool = False  # no row sees the cached positions [prefix_lens, padded_prefix_lens)
    prefix_causal: bool = False  # rows of status 0 are causal
    page_size: int = 32
    block_size: int = 32  # tokens of a diffusion block, for masks
    kv_cache_layout: str = "unified"

    # Soft embeddings of a step, for the embedding layer: attention does not read them.
    token_merge_enabled: bool = False
    token_merge_mask: torch.Tensor | None = None  # bool [T]
    token_merge_topk_ids: torch.Tensor | None = None  # int64 [T, K]
    token_merge_topk_probs: torch.Tensor | None = None  # float32 [T, K]
    token_merge_residual_probs: torch.Tensor | None = None  # float32 [T, 1]
    token_merge_mask_token_id: int | None = None
    token_merge_renormalize: bool = True
    token_merge_mode: str = "dmax_topk"
    token_merge_weight: float = 1.0

    # Of the running forward pass: a StepPlan. Attention keeps it here.
    step_plan: Any = dataclasses.field(default=None, init=False, repr=False, compare=False)

    @property
    def num_reqs(self) -> int:
        """Requests of the step."""
        return 0 if self.cu_seqlens_q is None else len(self.cu_seqlens_q) - 1

    @property
    def chunk_size(self) -> int:
        """Tokens of a request that may be in flight: block_size * buffer_size."""
        return self.block_size * getattr(self, "buffer_size", 1)

    @property
    def has_prefill(self) -> bool:
        """True if any request is a prefill."""
        if self.has_prefill_static is not None:
            return self.has_prefill_static
        return infer_prefill_flags(self.is_prefill)[0]

    @property
    def all_prefill(self) -> bool:
        """True if every request is a prefill."""
        if self.all_prefill_static is not None:
            return self.all_prefill_static
        return infer_prefill_flags(self.is_prefill)[1]

    @property
    def need_kv_cache_store(self) -> bool:
        """True if K and V of rows with a slot are to be stored."""
        if self.need_kv_cache_store_static is not None:
            return self.need_kv_cache_store_static
        return self.slot_mapping is not None and self.slot_mapping.numel() > 0


def infer_prefill_flags(is_prefill: Any) -> tuple[bool, bool]:
    """Returns whether any request is a prefill, and whether all are, of one flag for all or one for each. Without
    flags both are False."""
    if isinstance(is_prefill, bool):
        return is_prefill, is_prefill
    flags = [bool(flag) for flag in is_prefill] if isinstance(is_prefill, Iterable) else []
    return any(flags), bool(flags) and all(flags)


FetchFn = Callable[[], AttnMetaDataBase]


class _State:
    """The process-wide hook, as in Diffulex."""

    fetch: FetchFn | None = None
    warming_up: bool = False


def set_fetch_fn_for_attn_metadata(fn: FetchFn) -> None:
    """Installs what fetch_attn_metadata() calls. A strategy's runner calls it before its steps."""
    _State.fetch = fn


def fetch_attn_metadata() -> AttnMetaDataBase:
    """Returns the metadata of the running step."""
    if _State.fetch is None:
        raise InvalidArgumentError(
            "attention metadata: no fetch function is installed; call set_fetch_fn_for_attn_metadata first"
        )
    return _State.fetch()


def has_attn_metadata() -> bool:
    """True if a fetch function is installed and its metadata has requests."""
    return _State.fetch is not None and _State.fetch().cu_seqlens_q is not None


def set_warming_up(is_warming_up: bool = True) -> None:
    """Marks the steps that follow as those of a warm-up."""
    _State.warming_up = is_warming_up


def is_warming_up() -> bool:
    """True between set_warming_up() and reset_warming_up()."""
    return _State.warming_up


def reset_warming_up() -> None:
    """Ends a warm-up."""
    _State.warming_up = False
