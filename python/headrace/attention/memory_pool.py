"""pymllm's pools on torch tensors: K and V, the request table, recurrent states.

Slot 0 of every pool and row 0 of the request table are dummies for padding: no allocator hands them out.
"""

from __future__ import annotations

import torch

from headrace.attention.gdn_pool import GDNPool
from headrace.attention.kv_pool import KVPool
from headrace.attention.req_to_token_pool import ReqToTokenPool
from headrace.attention.slot_allocator import TokenToKVPoolAllocator

__all__ = [
    "GDNPool",
    "KVPool",
    "ReqToTokenPool",
    "TokenToKVPoolAllocator",
    "make_full_attention_net_mem_pool",
    "make_req_to_token_pool",
]


def make_full_attention_net_mem_pool(
    size: int,
    layer_num: int,
    k_head_num: int,
    k_head_dim: int,
    v_head_num: int | None = None,
    v_head_dim: int | None = None,
    device: str | torch.device = "cuda",
    dtype: torch.dtype = torch.float16,
    page_size: int = 1,
    need_sort: bool = True,
    pin_memory: bool = True,
) -> tuple[KVPool, TokenToKVPoolAllocator]:
    """Returns a KVPool and the allocator of its slots."""
    pool = KVPool(size, layer_num, k_head_num, k_head_dim, device, dtype, v_head_num, v_head_dim, pin_memory)
    return pool, TokenToKVPoolAllocator(size, device, page_size, need_sort)


def make_req_to_token_pool(max_reqs: int, max_context_len: int, device: str | torch.device = "cuda") -> ReqToTokenPool:
    """Returns a ReqToTokenPool."""
    return ReqToTokenPool(max_reqs, max_context_len, device)
