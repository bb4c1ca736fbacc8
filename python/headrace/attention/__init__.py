"""pymllm's attention classes on torch tensors, over headrace's kernels.

Constructor arguments, method names, shapes and the life of a CUDA graph are pymllm's, so that its model code runs
unchanged; `headrace.compat.install()` answers its imports. `FlashInferAttnBackend` is HeadraceAttnBackend. Slots and
rows 0 are dummies here: pools never hand them out.
"""

from typing import TYPE_CHECKING

from headrace.attention.attention_backend import AttentionBackend
from headrace.attention.flashinfer_backend import FlashInferAttnBackend
from headrace.attention.forward_batch import ForwardBatch, ForwardMode
from headrace.attention.gdn_backend import GDNAttnBackend, GDNForwardMetadata
from headrace.attention.headrace_backend import HeadraceAttnBackend
from headrace.attention.hybrid_backend import HybridAttnBackend
from headrace.attention.memory_pool import (
    GDNPool,
    KVPool,
    ReqToTokenPool,
    TokenToKVPoolAllocator,
    make_full_attention_net_mem_pool,
    make_req_to_token_pool,
)
from headrace.attention.radix_attention import AttentionType, RadixAttention
from headrace.attention.radix_linear_attention import RadixLinearAttention

if not TYPE_CHECKING:
    from headrace.attention.flashinfer_backend import __getattr__  # noqa: F401 (refuses pymllm's other names)

__all__ = [
    "AttentionBackend",
    "AttentionType",
    "FlashInferAttnBackend",
    "ForwardBatch",
    "ForwardMode",
    "GDNAttnBackend",
    "GDNForwardMetadata",
    "GDNPool",
    "HeadraceAttnBackend",
    "HybridAttnBackend",
    "KVPool",
    "RadixAttention",
    "RadixLinearAttention",
    "ReqToTokenPool",
    "TokenToKVPoolAllocator",
    "make_full_attention_net_mem_pool",
    "make_req_to_token_pool",
]
