"""headrace.attention and headrace.diffusion: arguments have the names, the order and the defaults that pymllm (b9c3070)
and Diffulex (184ba97) give them. Ours may add more behind them."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace.diffusion as hd  # noqa: E402

import headrace.attention as ha  # noqa: E402

ATTEND = "q, k, v, layer, forward_batch, save_kv_cache=True"
GDN = "layer, forward_batch, mixed_qkv, a, b"
CAPTURE = "bs, num_tokens, req_pool_indices, seq_lens, forward_mode"
REPLAY = "bs, req_pool_indices, seq_lens, seq_lens_sum, forward_mode, seq_lens_cpu"
DIFFUSION = "q, k, v, k_cache, v_cache, softmax_scale, sliding_window=0"

SIGNATURES: list[tuple[Callable[..., Any], str]] = [
    (
        ha.RadixAttention,
        "num_heads, head_dim, scaling, num_kv_heads, layer_id, logit_cap=0.0, v_head_dim=-1, sliding_window_size=-1, "
        "is_cross_attention=False, attn_type=<AttentionType.DECODER: 'decoder'>",
    ),
    (ha.RadixAttention.forward, "q, k, v, forward_batch, save_kv_cache=True"),
    (
        ha.RadixLinearAttention,
        "layer_id, gdn_layer_idx, num_k_heads, num_v_heads, head_k_dim, head_v_dim, conv_weight, A_log, dt_bias",
    ),
    (ha.RadixLinearAttention.forward, "forward_batch, mixed_qkv, a, b"),
    (
        ha.FlashInferAttnBackend,
        "num_heads, num_kv_heads, head_dim, kv_cache_dtype, q_dtype, max_context_len, req_to_token, device, "
        "max_req_pool_size, sliding_window_size=None, skip_prefill=False, kv_indptr_buf=None, "
        "kv_last_page_len_buf=None, init_new_workspace=False",
    ),
    (ha.FlashInferAttnBackend.init_cuda_graph_state, "max_bs, max_num_tokens, kv_indices_buf=None"),
    (ha.GDNAttnBackend, "gdn_pool, device"),
    (ha.GDNAttnBackend.forward_gdn, GDN),
    (ha.GDNAttnBackend.forward_extend, GDN),
    (ha.GDNAttnBackend.forward_decode, GDN),
    (ha.GDNAttnBackend.init_cuda_graph_state, "max_bs, max_num_tokens"),
    (ha.GDNAttnBackend.init_forward_metadata_capture_cuda_graph, "bs, req_pool_indices, seq_lens"),
    (ha.GDNAttnBackend.init_forward_metadata_replay_cuda_graph, "bs, req_pool_indices, seq_lens"),
    (ha.GDNForwardMetadata, "cache_indices, cu_seqlens=None"),
    (ha.HybridAttnBackend, "full_attn_backend, gdn_backend, full_attn_layer_ids"),
    (ha.HybridAttnBackend.forward_gdn, GDN),
    (
        ha.KVPool,
        "size, layer_num, k_head_num, k_head_dim, device='cuda', dtype=torch.float16, v_head_num=None, "
        "v_head_dim=None, pin_memory=True",
    ),
    (ha.KVPool.set_kv_buffer, "layer_id, indices, k, v"),
    (ha.TokenToKVPoolAllocator, "size, device='cuda', page_size=1, need_sort=True"),
    (ha.TokenToKVPoolAllocator.alloc, "need_size"),
    (ha.TokenToKVPoolAllocator.free, "indices"),
    (ha.TokenToKVPoolAllocator.merge_and_sort_free, ""),
    (ha.ReqToTokenPool, "max_reqs, max_context_len, device='cuda'"),
    (ha.ReqToTokenPool.alloc, "n=1"),
    (ha.ReqToTokenPool.free, "slot"),
    (ha.ReqToTokenPool.write, "index, values"),
    (
        ha.GDNPool,
        "max_reqs, num_gdn_layers, num_v_heads, head_k_dim, head_v_dim, conv_dim, conv_kernel_size, device='cuda', "
        "dtype=torch.bfloat16, max_track_slots=0",
    ),
    (ha.GDNPool.copy_states, "src_index, dst_index"),
    (hd.Attention, "num_heads, head_dim, scale, num_kv_heads, attn_impl='triton_grouped', sliding_window=None"),
    (hd.Attention.forward, "q, k, v, mask=None"),
    (hd.triton_attention, DIFFUSION),
    (hd.triton_grouped_attention, DIFFUSION),
    (
        hd.reference_torch_attention,
        "q, k, v, *num_heads, *num_kv_heads, *scale, *mask=None, *sliding_window=None",
    ),
    (hd.infer_prefill_flags, "is_prefill"),
    (hd.set_fetch_fn_for_attn_metadata, "fn"),
    (
        hd.MultiBlockAttnMetaDataMixin.init_multi_block,
        "valid_slices=None, buffer_size=1, is_prefix_full=False, status_table=None, prefix_lens=None, "
        "padded_prefix_lens=None, mask_prefix_hole=False, prefix_causal=False",
    ),
]
for backend in (ha.AttentionBackend, ha.FlashInferAttnBackend, ha.HybridAttnBackend):
    SIGNATURES += [
        (backend.init_forward_metadata, "forward_batch"),
        (backend.forward, ATTEND),
        (backend.forward_extend, ATTEND),
        (backend.forward_decode, ATTEND),
        (backend.init_cuda_graph_state, "max_bs, max_num_tokens"),
        (backend.init_forward_metadata_capture_cuda_graph, CAPTURE),
        (backend.init_forward_metadata_replay_cuda_graph, REPLAY),
    ]


def described(function: Callable[..., Any]) -> list[str]:
    """The arguments of a function: `name` or `name=default`; those that are given by name only begin with a star."""
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        star = "*" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else ""
        default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}"
        if parameter.name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            shown.append(f"{star}{parameter.name}{default}")
    return shown


@pytest.mark.parametrize(("function", "arguments"), SIGNATURES, ids=[x.__qualname__ for x, _ in SIGNATURES])
def test_arguments_are_those_of_the_origin(function: Callable[..., Any], arguments: str) -> None:
    expected = arguments.split(", ") if arguments else []
    found = described(function)
    assert found[: len(expected)] == expected
    assert all("=" in more for more in found[len(expected) :])


def test_layers_and_backends_take_what_the_origin_passes_on() -> None:
    for function in (ha.RadixAttention.forward, ha.AttentionBackend.forward, ha.FlashInferAttnBackend.forward_decode):
        last = list(inspect.signature(function).parameters.values())[-1]
        assert last.kind is inspect.Parameter.VAR_KEYWORD


FORWARD_BATCH = (
    "forward_mode batch_size input_ids req_pool_indices seq_lens out_cache_loc seq_lens_sum seq_lens_cpu positions "
    "extend_num_tokens extend_seq_lens extend_prefix_lens extend_start_loc extend_prefix_lens_cpu extend_seq_lens_cpu "
    "return_logprob top_logprobs_nums req_to_token_pool token_to_kv_pool attn_backend mrope_position_deltas "
    "pixel_values image_grid_thw"
)
METADATA = {
    "is_prefill": [False],
    "enforce_eager": False,
    "cu_seqlens_q": None,
    "cu_seqlens_k": None,
    "max_seqlen_q": 0,
    "max_seqlen_k": 0,
    "slot_mapping": None,
    "need_kv_cache_store_static": None,
    "has_prefill_static": None,
    "all_prefill_static": None,
    "context_lens": None,
    "page_tables": None,
    "status_table": None,
    "mask_prefix_hole": False,
    "prefix_causal": False,
    "page_size": 32,
    "block_size": 32,
    "kv_cache_layout": "unified",
    "token_merge_enabled": False,
    "token_merge_mask": None,
    "token_merge_topk_ids": None,
    "token_merge_topk_probs": None,
    "token_merge_residual_probs": None,
    "token_merge_mask_token_id": None,
    "token_merge_renormalize": True,
    "token_merge_mode": "dmax_topk",
    "token_merge_weight": 1.0,
}


def test_fields_are_those_of_the_origin() -> None:
    names = [field.name for field in dataclasses.fields(ha.ForwardBatch)]
    assert names[: len(FORWARD_BATCH.split())] == FORWARD_BATCH.split()
    metadata = hd.AttnMetaDataBase()
    assert {
        field.name: getattr(metadata, field.name) for field in dataclasses.fields(metadata) if field.init
    } == METADATA
    assert [field.name for field in dataclasses.fields(metadata)][: len(METADATA)] == list(METADATA)
    assert hd.AttnMetaDataBase().is_prefill is not metadata.is_prefill
    fields = dataclasses.fields(hd.MultiBlockAttnMetaDataMixin)
    assert [field.name for field in fields] == [field.name for field in dataclasses.fields(metadata)]


def test_attributes_that_the_origins_engines_read() -> None:
    pool = ha.GDNPool(2, 3, 4, 8, 6, 20, 4, "cpu")
    assert (pool.num_v_heads, pool.head_k_dim, pool.head_v_dim, pool.conv_dim, pool.conv_kernel_size) == (
        4,
        8,
        6,
        20,
        4,
    )
    keys = ha.KVPool(7, 2, 1, 4, "cpu")
    assert isinstance(keys.k_buffer, list)
    assert [x.shape for x in (*keys.k_buffer, *keys.v_buffer)] == [(8, 1, 4)] * 4
    assert keys._mem_bytes() == keys.mem_bytes()
    table = ha.ReqToTokenPool(2, 8, "cpu")
    backend = ha.FlashInferAttnBackend(
        2, 1, 4, torch.float32, torch.float32, 8, table.req_to_token, "cpu", table.size, 3
    )
    assert (backend.sliding_window_size, backend.skip_prefill, backend.forward_metadata) == (3, False, None)
    layer = hd.Attention(4, 16, 0.25, 2)
    assert (layer.sliding_window, layer.k_cache.numel(), layer.v_cache.numel()) == (0, 0, 0)
