"""Diffulex's attention on torch tensors, over headrace's kernels.

A strategy's runner installs a function that returns the step's metadata (set_fetch_fn_for_attn_metadata); every
Attention layer reads it. `headrace.compat.install()` answers imports of `diffulex.attention`.
"""

from headrace.diffusion.attn_impl import (
    ATTN_IMPLS,
    Attention,
    triton_attention,
    triton_grouped_attention,
)
from headrace.diffusion.metadata import (
    AttnMetaDataBase,
    fetch_attn_metadata,
    infer_prefill_flags,
    is_warming_up,
    reset_warming_up,
    set_fetch_fn_for_attn_metadata,
    set_warming_up,
)
from headrace.diffusion.multi_block import (
    FastDLLMV2AttnMetaData,
    MultiBlockAttnMetaData,
    MultiBlockAttnMetaDataMixin,
)
from headrace.diffusion.reference import reference_torch_attention

__all__ = [
    "ATTN_IMPLS",
    "Attention",
    "AttnMetaDataBase",
    "FastDLLMV2AttnMetaData",
    "MultiBlockAttnMetaData",
    "MultiBlockAttnMetaDataMixin",
    "fetch_attn_metadata",
    "infer_prefill_flags",
    "is_warming_up",
    "reference_torch_attention",
    "reset_warming_up",
    "set_fetch_fn_for_attn_metadata",
    "set_warming_up",
    "triton_attention",
    "triton_grouped_attention",
]
