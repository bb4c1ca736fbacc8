"""The pools of headrace.attention: shapes of pymllm's, dummies that nobody gets, refusals."""

import pytest

torch = pytest.importorskip("torch")

from headrace.errors import InvalidArgumentError  # noqa: E402

from headrace.attention import (  # noqa: E402
    GDNPool,
    KVPool,
    ReqToTokenPool,
    TokenToKVPoolAllocator,
    make_full_attention_net_mem_pool,
    make_req_to_token_pool,
)


def test_kv_pool_has_a_dummy_slot_and_rows_of_eight() -> None:
    pool = KVPool(10, 2, 2, 4, "cpu", torch.float32, v_head_dim=6)
    assert pool.get_key_buffer(1).shape == (16, 2, 4)
    assert pool.get_value_buffer(1).shape == (16, 2, 6)
    assert pool.mem_bytes() == 2 * 16 * 2 * (4 + 6) * 4
    assert not any(x.any() for x in pool.get_kv_buffer(0))
    assert pool.get_kv_buffer(0)[0].data_ptr() == pool.get_key_buffer(0).data_ptr() != pool.get_key_buffer(1).data_ptr()


def test_kv_pool_stores_rows_of_any_leading_shape() -> None:
    pool = KVPool(10, 1, 2, 4, "cpu", torch.float32)
    k, v = torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    pool.set_kv_buffer(0, torch.tensor([[3, 5], [7, 1]], dtype=torch.int32), k, v)
    assert torch.equal(pool.get_key_buffer(0)[[3, 5, 7, 1]], k.reshape(4, 2, 4))
    assert torch.equal(pool.get_value_buffer(0)[[3, 5, 7, 1]], v.reshape(4, 2, 4))
    assert not pool.get_key_buffer(0)[[0, 2, 4, 6, 8]].any()


def test_kv_pool_of_a_hybrid_holds_its_attention_layers_only() -> None:
    pool = KVPool(10, 4, 1, 4, "cpu", torch.float32, layer_ids=[3])
    assert pool.mem_bytes() == 2 * 16 * 4 * 4
    with pytest.raises(InvalidArgumentError, match=r"layer 0 has no K and V here; those with are \[3\]"):
        pool.get_key_buffer(0)
    with pytest.raises(InvalidArgumentError, match="expected 0 to 3"):
        KVPool(10, 4, 1, 4, "cpu", layer_ids=[4])


def test_allocator_hands_out_the_smallest_slots_and_never_the_dummy() -> None:
    allocator = TokenToKVPoolAllocator(6, "cpu")
    first = allocator.alloc(4)
    assert first.tolist() == [1, 2, 3, 4]
    assert first.dtype == torch.int32
    assert allocator.alloc(3) is None
    assert allocator.available_size() == 2
    allocator.free(first[[3, 0]])
    assert allocator.alloc(4).tolist() == [1, 4, 5, 6]
    allocator.clear()
    assert allocator.available_size() == 6


def test_allocator_defers_the_slots_of_a_group() -> None:
    allocator = TokenToKVPoolAllocator(6, "cpu", need_sort=False)
    slots = allocator.alloc(6)
    allocator.free_group_begin()
    allocator.free(slots[4:])
    allocator.free(slots[:1])
    assert allocator.available_size() == 0
    allocator.free_group_end()
    assert allocator.alloc(3).tolist() == [5, 6, 1]


def test_pages_stay_inside_the_pool() -> None:
    allocator = TokenToKVPoolAllocator(63, "cpu", page_size=16)
    assert allocator.available_size() == 48
    slots = allocator.alloc(40)
    assert slots.tolist() == list(range(16, 56))
    assert allocator.alloc(1) is None
    allocator.free(slots[20:])
    assert allocator.available_size() == 32
    with pytest.raises(InvalidArgumentError, match="page_size is 64, expected 1 to 32 for 63 slots"):
        TokenToKVPoolAllocator(63, "cpu", page_size=64)


@pytest.mark.parametrize("slots", [[0], [7], [2, 2], [5]], ids=["dummy", "beyond", "twice", "free"])
def test_allocator_refuses_slots_that_are_not_allocated(slots: list[int]) -> None:
    allocator = TokenToKVPoolAllocator(6, "cpu")
    allocator.alloc(3)
    with pytest.raises(InvalidArgumentError, match="not allocated, expected slots of alloc"):
        allocator.free(torch.tensor(slots))
    assert allocator.available_size() == 3


def test_request_table_keeps_row_0_and_forgets_freed_rows() -> None:
    table = ReqToTokenPool(2, 8, "cpu")
    assert table.req_to_token.shape == (3, 8)
    assert table.req_to_token.dtype == torch.int32
    assert table.alloc(2) == [1, 2]
    assert table.alloc(1) is None
    table.write((2, slice(1, 4)), torch.tensor([7, 8, 9]))
    assert table.req_to_token[2].tolist() == [0, 7, 8, 9, 0, 0, 0, 0]
    table.free(2)
    assert not table.req_to_token.any()
    assert table.available_size() == 1
    for row in (0, 2, 3):
        with pytest.raises(InvalidArgumentError, match=f"row {row} is not allocated"):
            table.free(row)
    table.clear()
    assert table.alloc(2) == [1, 2]


def test_state_pool_resets_and_copies_slots_of_all_layers() -> None:
    pool = GDNPool(2, 3, 4, 8, 6, 20, 4, "cpu", torch.float32, max_track_slots=2)
    assert pool.recurrent_state.shape == (3, 5, 4, 6, 8)
    assert pool.recurrent_state.dtype == torch.float32
    assert pool.conv_state.shape == (3, 5, 20, 3)
    assert pool.mem_bytes() == 3 * 5 * (4 * 6 * 8 + 20 * 3) * 4
    pool.recurrent_state.normal_()
    pool.conv_state.normal_()
    slots = [pool.alloc_track_slot(), pool.alloc_track_slot()]
    assert sorted(slots) == [3, 4]
    assert pool.alloc_track_slot() is None
    pool.copy_states(1, slots[0])
    recurrent, conv = pool.get_layer_state(2)
    assert torch.equal(recurrent[slots[0]], recurrent[1])
    assert torch.equal(conv[slots[0]], conv[1])
    pool.reset_states(torch.tensor([1]))
    pool.reset_states(torch.tensor([], dtype=torch.int64))
    assert not recurrent[1].any()
    assert not conv[1].any()
    assert recurrent[2].any()
    assert recurrent[slots[0]].any()
    pool.free_track_slot(slots[0])
    for slot in (slots[0], 2, 5):
        with pytest.raises(InvalidArgumentError, match="not an allocated track slot"):
            pool.free_track_slot(slot)
    with pytest.raises(InvalidArgumentError, match="gdn_layer_idx is 3, expected 0 to 2"):
        pool.get_layer_state(3)


def test_makers_return_the_pools() -> None:
    pool, allocator = make_full_attention_net_mem_pool(10, 2, 1, 4, device="cpu", dtype=torch.float32)
    assert pool.size == allocator.size == 10
    assert pool.layer_num == 2
    assert make_req_to_token_pool(3, 5, "cpu").req_to_token.shape == (4, 5)
