"""Metadata of strategies that denoise several blocks at once (d2f, multi_bd, dmax, diffusion_gemma, fast_dllm_v2)."""

from __future__ import annotations

import dataclasses

import torch

from headrace.diffusion.metadata import AttnMetaDataBase
from headrace.errors import InvalidArgumentError

_SIZES = (4, 8, 16, 32, 256)  # of pages and blocks, as in Diffulex's configuration


@dataclasses.dataclass
class MultiBlockAttnMetaDataMixin(AttnMetaDataBase):
    """What Diffulex's strategies subclass. It adds no field: init_multi_block sets the attributes."""

    def init_multi_block(
        self,
        valid_slices: torch.Tensor | None = None,
        buffer_size: int = 1,
        is_prefix_full: bool = False,
        status_table: torch.Tensor | None = None,
        prefix_lens: torch.Tensor | None = None,
        padded_prefix_lens: torch.Tensor | None = None,
        mask_prefix_hole: bool = False,
        prefix_causal: bool = False,
    ) -> None:
        """Sets the attributes that MultiBlockAttnMetaData describes, and checks page_size and block_size. What is not
        given gets its default, whatever it was."""
        self.use_multi_block = True
        self.valid_slices = valid_slices
        self.buffer_size = buffer_size
        self.is_block_causal = True
        self.is_prefix_full = is_prefix_full
        self.status_table = status_table
        self.prefix_lens = prefix_lens
        self.padded_prefix_lens = padded_prefix_lens
        self.mask_prefix_hole = mask_prefix_hole
        self.prefix_causal = prefix_causal
        _check_sizes(self)


@dataclasses.dataclass
class MultiBlockAttnMetaData(MultiBlockAttnMetaDataMixin):
    """The same with fields, for the constructor (not in Diffulex)."""

    use_multi_block: bool = True
    valid_slices: torch.Tensor | None = None  # int32 [R]: packed row behind a request's last valid one; None: all valid
    buffer_size: int = 1  # blocks in flight
    is_block_causal: bool = True  # a row sees new rows to the end of its own block
    is_prefix_full: bool = False  # rows of status 0: prompt rows see the whole prompt, padding rows the padded prompt
    prefix_lens: torch.Tensor | None = None  # int32 [R]: tokens of the prompt
    padded_prefix_lens: torch.Tensor | None = None  # int32 [R]: the prompt's tokens, rounded up to blocks

    def __post_init__(self) -> None:
        _check_sizes(self)


@dataclasses.dataclass
class FastDLLMV2AttnMetaData(MultiBlockAttnMetaData):
    """Metadata of Fast-dLLM v2. block_size is that of the whole buffer."""

    fdv2_cache_only: bool = False  # rows see the cache only, which holds their own keys, too
    fdv2_mode: int = 0


def _check_sizes(metadata: AttnMetaDataBase) -> None:
    for name in ("page_size", "block_size"):
        if getattr(metadata, name) not in _SIZES:
            raise InvalidArgumentError(
                f"attention metadata: {name} is {getattr(metadata, name)}, expected one of {list(_SIZES)}"
            )
    if metadata.block_size > metadata.page_size:
        raise InvalidArgumentError(
            f"attention metadata: block_size is {metadata.block_size}, expected at most page_size "
            f"({metadata.page_size})"
        )
