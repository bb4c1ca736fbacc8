"""Diffulex's metadata of one step, and the package's fetch hook. Strategies subclass AttnMetaDataBase."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.errors import InvalidArgumentError

_SIZES = (4, 8, 16, 32, 256)  # of pages and blocks, as in Diffulex's configuration


@dataclasses.dataclass
class AttnMetaDataBase:
    """What attention must know of a step besides q, k and v. R: requests, T: packed tokens.

    Tensors lie on the device of q. A subclass may add fields and replace any by a property; Attention reads those of
    MultiBlockAttnMetaData and FastDllmV2AttnMetaData, too, where they exist.
    """

    is_prefill: bool | Sequence[bool] = False  # per request, or of all
    enforce_eager: bool = False
    cu_seqlens_q: torch.Tensor | None = None  # int32 [R + 1]: first packed row of each request, then T
    cu_seqlens_k: torch.Tensor | None = None  # int32 [R + 1]; not read
    max_seqlen_q: int = 0  # most rows of a request; 0: not known
    max_seqlen_k: int = 0
    slot_mapping: torch.Tensor | None = None  # int [T]: page * page_size + offset of a row's K and V; -1: not stored
    context_lens: torch.Tensor | None = None  # int32 [R]: readable cached tokens; None: none
    page_tables: torch.Tensor | None = None  # int32 [R, pages]: physical page of each logical one; -1: none
    status_table: torch.Tensor | None = None  # int32 [R]: 0 prefill, 1 decode, 2 refine; None: by is_prefill
    page_size: int = 32
    block_size: int = 32  # tokens of a diffusion block, for masks
    kv_cache_layout: str = "unified"
    mask_prefix_hole: bool = False  # no row sees the cached positions [prefix_lens, padded_prefix_lens)
    prefix_causal: bool = False  # rows of status 0 are causal

    # Override what is derived from the fields above; None: derived.
    need_kv_cache_store_static: bool | None = None
    has_prefill_static: bool | None = None
    all_prefill_static: bool | None = None

    # Soft embeddings of a step, for the embedding layer: attention does not read them.
    token_merge_enabled: bool = False
    token_merge_mask: torch.Tensor | None = None  # bool [T]
    token_merge_topk_ids: torch.Tensor | None = None  # int64 [T, K]
    token_merge_topk_probs: torch.Tensor | None = None  # float32 [T, K]
    token_merge_residual_probs: torch.Tensor | None = None  # float32 [T, 1]
    token_merge_mask_token_id: int | None = None
    token_merge_renormalize: bool = True
    token_merge_mode: str | None = None
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
        return self.is_prefill if isinstance(self.is_prefill, bool) else any(self.is_prefill)

    @property
    def all_prefill(self) -> bool:
        """True if every request is a prefill."""
        if self.all_prefill_static is not None:
            return self.all_prefill_static
        return self.is_prefill if isinstance(self.is_prefill, bool) else all(self.is_prefill)

    @property
    def need_kv_cache_store(self) -> bool:
        """True if K and V of rows with a slot are to be stored."""
        if self.need_kv_cache_store_static is not None:
            return self.need_kv_cache_store_static
        return self.slot_mapping is not None and self.slot_mapping.numel() > 0


@dataclasses.dataclass
class MultiBlockAttnMetaData(AttnMetaDataBase):
    """Metadata of strategies that denoise several blocks at once (d2f, multi_bd, dmax, diffusion_gemma)."""

    use_multi_block: bool = True
    valid_slices: torch.Tensor | None = None  # int32 [R]: packed row behind a request's last valid one; None: all valid
    buffer_size: int = 1  # blocks in flight
    is_block_causal: bool = True  # a row sees new rows to the end of its own block
    is_prefix_full: bool = False  # rows of status 0: prompt rows see the whole prompt, padding rows the padded prompt
    prefix_lens: torch.Tensor | None = None  # int32 [R]: tokens of the prompt
    padded_prefix_lens: torch.Tensor | None = None  # int32 [R]: the prompt's tokens, rounded up to blocks

    def __post_init__(self) -> None:
        self.init_multi_block()

    def init_multi_block(self) -> None:
        """Checks page_size, block_size and kv_cache_layout."""
        for name in ("page_size", "block_size"):
            if getattr(self, name) not in _SIZES:
                raise InvalidArgumentError(
                    f"attention metadata: {name} is {getattr(self, name)}, expected one of {list(_SIZES)}"
                )
        if self.block_size > self.page_size:
            raise InvalidArgumentError(
                f"attention metadata: block_size is {self.block_size}, expected at most page_size ({self.page_size})"
            )


@dataclasses.dataclass
class FastDllmV2AttnMetaData(MultiBlockAttnMetaData):
    """Metadata of Fast-dLLM v2. block_size is that of the whole buffer."""

    fdv2_cache_only: bool = False  # rows see the cache only, which holds their own keys, too
    fdv2_mode: int = 0


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


def set_warming_up(is_warming_up: bool = True) -> None:
    """Marks the steps that follow as those of a warm-up."""
    _State.warming_up = is_warming_up


def is_warming_up() -> bool:
    """True between set_warming_up() and reset_warming_up()."""
    return _State.warming_up


def reset_warming_up() -> None:
    """Ends a warm-up."""
    _State.warming_up = False
