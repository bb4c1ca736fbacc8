"""headrace.diffusion: the Attention module, its metadata and the fetch hook."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

import headrace.diffusion as hd  # noqa: E402
from attention_reference import assert_close, attend  # noqa: E402
from diffusion_engine import DIM, HEADS, KV_HEADS, SCALE, STEPS, Cache, Packed, Rule, check_step, filled, rand  # noqa: E402
from headrace.errors import InvalidArgumentError, UnsupportedError  # noqa: E402


def test_block_diffusion_loop_stores_finished_blocks_only() -> None:
    """Prompts, then blocks: two denoising steps, then the step that stores the block and opens the next one."""
    rule, block = Rule(), 4
    cache = Cache(2, 8, KV_HEADS, DIM, 64)
    layer = hd.Attention(HEADS, DIM, SCALE, KV_HEADS)
    layer.k_cache, layer.v_cache = cache.k, cache.v
    oracle = Cache(2, 8, KV_HEADS, DIM, 64)
    seed = 0

    def step(requests: list[Packed], stored: list[int]) -> None:
        nonlocal seed
        seed += 10
        slots = []
        for index, (request, count) in enumerate(zip(requests, stored, strict=True)):
            rows = [cache.slot(index, request.context + i) for i in range(count)]
            slots += rows + [-1] * (request.valid + request.padding - count)
        metadata = rule.metadata(
            requests, page_tables=cache.table, page_size=8, slot_mapping=torch.tensor(slots, dtype=torch.int32)
        )
        hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
        total = len(slots)
        drawn = rand(total, HEADS, DIM, seed=seed), *(rand(total, KV_HEADS, DIM, seed=seed + i) for i in (1, 2))
        check_step(layer(*drawn), drawn, requests, rule, oracle, SCALE)
        begin = 0
        for index, (request, count) in enumerate(zip(requests, stored, strict=True)):
            for i in range(count):
                oracle.write(index, request.context + i, drawn[1][begin + i], drawn[2][begin + i])
            begin += request.valid + request.padding
        assert torch.equal(cache.k.nan_to_num(9.0), oracle.k.nan_to_num(9.0))
        assert torch.equal(cache.v.nan_to_num(9.0), oracle.v.nan_to_num(9.0))

    step([Packed(0, 12, status=0), Packed(0, 8, 4, status=0)], [8, 4])
    for done in range(3):
        contexts = [8 + block * done, 4 + block * done]
        for _ in range(2):
            step([Packed(c, block, block) for c in contexts], [0, 0])
        step([Packed(c, 2 * block) for c in contexts], [block, block])


def test_soft_prefix_page_is_read_after_the_same_call_stored_it() -> None:
    """Two requests share a page; one stores it in the layer call in which the other reads it."""
    rule, requests = Rule(), [Packed(0, 4, status=0), Packed(4, 4, status=0)]
    cache = Cache(2, 4, KV_HEADS, DIM, 16)
    cache.table[1, 0] = cache.table[0, 0]
    slots = [cache.slot(0, i) for i in range(4)] + [-1] * 4
    metadata = rule.metadata(requests, page_tables=cache.table, page_size=4, slot_mapping=torch.tensor(slots))
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    layer = hd.Attention(HEADS, DIM, SCALE, KV_HEADS)
    layer.k_cache, layer.v_cache = cache.k, cache.v
    q, k, v = rand(8, HEADS, DIM), rand(8, KV_HEADS, DIM, seed=2), rand(8, KV_HEADS, DIM, seed=3)
    out = layer(q, k, v)
    want = attend(q[4:], k, v, torch.ones(4, 8, dtype=torch.bool), SCALE)
    assert_close(out[4:], want.flatten(1))


def test_cache_larger_than_the_layer_and_more_slots_than_rows() -> None:
    rule, requests = Rule(), [Packed(8, 4)]
    large = filled(requests, 8, rule, heads=3, dim=24)
    metadata = rule.metadata(
        requests, page_tables=large.table, page_size=8, slot_mapping=torch.tensor([-1, -1, *range(4)])
    )
    metadata.slot_mapping[2:] = torch.tensor([large.slot(0, 8 + i) for i in range(4)])
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    layer = hd.Attention(HEADS, DIM, SCALE, KV_HEADS)
    layer.k_cache, layer.v_cache = large.k, large.v
    drawn = rand(4, HEADS, DIM), rand(4, KV_HEADS, DIM, seed=2), rand(4, KV_HEADS, DIM, seed=3)
    out = layer(*drawn)
    small = Cache(1, 8, KV_HEADS, DIM, 64)
    small.k, small.v = large.k[:, :, :KV_HEADS, :DIM], large.v[:, :, :KV_HEADS, :DIM]
    check_step(out, drawn, requests, rule, small, SCALE)
    assert torch.equal(small.keys(0, 12)[0][8:], drawn[1])


def test_python_subclass_of_the_metadata_base() -> None:
    @dataclasses.dataclass
    class Canvas(hd.AttnMetaDataBase):
        """Every row sees the cache and all new rows; the strategy names its contexts as it likes."""

        cached: int = 0

        @property
        def context_lens(self) -> torch.Tensor:
            return torch.full((self.num_reqs,), self.cached, dtype=torch.int32)

        @context_lens.setter
        def context_lens(self, value: object) -> None:
            assert value is None or isinstance(value, property)

    rule, requests = Rule(block_causal=False), [Packed(8, 5), Packed(8, 2)]
    cache = filled(requests, 8, rule)
    current = Canvas(cached=8, cu_seqlens_q=torch.tensor([0, 5, 7]), page_tables=cache.table, page_size=8, block_size=4)
    hd.set_fetch_fn_for_attn_metadata(lambda: current)
    layers = [hd.Attention(HEADS, DIM, SCALE, KV_HEADS, impl) for impl in ("triton_grouped", "naive")]
    drawn = rand(7, HEADS, DIM), rand(7, KV_HEADS, DIM, seed=2), rand(7, KV_HEADS, DIM, seed=3)
    for layer in layers:
        layer.k_cache, layer.v_cache = cache.k, cache.v
        check_step(layer(*drawn), drawn, requests, rule, cache, SCALE)


def test_lengths_that_change_between_passes_are_read_again() -> None:
    rule = Rule()
    cache = filled([Packed(12, 4)], 8, rule)
    metadata = rule.metadata([Packed(4, 4)], page_tables=cache.table, page_size=8)
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    layers = [hd.Attention(HEADS, DIM, SCALE, KV_HEADS) for _ in range(2)]
    for layer in layers:
        layer.k_cache, layer.v_cache = cache.k, cache.v
    drawn = rand(4, HEADS, DIM), rand(4, KV_HEADS, DIM, seed=2), rand(4, KV_HEADS, DIM, seed=3)
    for context in (4, 12, 8):
        metadata.context_lens[0] = context
        for layer in layers:
            check_step(layer(*drawn), drawn, [Packed(context, 4)], rule, cache, SCALE)


def test_compiled_layers_read_lengths_again() -> None:
    rule = Rule()
    cache = filled([Packed(12, 4)], 8, rule)
    metadata = rule.metadata([Packed(4, 4)], page_tables=cache.table, page_size=8)
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    layers = torch.nn.ModuleList(hd.Attention(HEADS, DIM, SCALE, KV_HEADS) for _ in range(2))
    for layer in layers:
        layer.k_cache, layer.v_cache = cache.k, cache.v

    @torch.compile(fullgraph=True, backend="aot_eager")
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        return [layer(q, k, v) for layer in layers]

    drawn = rand(4, HEADS, DIM), rand(4, KV_HEADS, DIM, seed=2), rand(4, KV_HEADS, DIM, seed=3)
    for context in (4, 12, 8):
        metadata.context_lens[0] = context
        with torch.no_grad():
            for out in model(*drawn):
                check_step(out, drawn, [Packed(context, 4)], rule, cache, SCALE)


def test_mask_is_added_to_the_scores_of_one_sequence() -> None:
    layer = hd.Attention(HEADS, DIM, SCALE, KV_HEADS, "naive", sliding_window=3)
    q, k, v = rand(5, HEADS, DIM), rand(5, KV_HEADS, DIM, seed=2), rand(5, KV_HEADS, DIM, seed=3)
    causal = torch.full((5, 5), -torch.inf).triu(1)
    seen = torch.ones(5, 5).tril().bool() & ~torch.ones(5, 5).tril(-3).bool()
    assert_close(layer(q, k, v, mask=causal), attend(q, k, v, seen, SCALE).flatten(1))
    with pytest.raises(UnsupportedError, match="mask is given with attn_impl 'triton', expected 'naive'"):
        hd.Attention(HEADS, DIM, SCALE, KV_HEADS, "triton")(q, k, v, mask=causal)


def test_naive_without_metadata_sees_one_sequence() -> None:
    layer = hd.Attention(HEADS, DIM, SCALE, KV_HEADS, "naive")
    drawn = rand(5, HEADS, DIM), rand(5, KV_HEADS, DIM, seed=2), rand(5, KV_HEADS, DIM, seed=3)
    want = attend(*drawn, torch.ones(5, 5, dtype=torch.bool), SCALE)
    for fetch in (None, hd.AttnMetaDataBase):
        hd.set_fetch_fn_for_attn_metadata(fetch)
        assert_close(layer(*drawn), want.flatten(1))
    heads = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "scale": SCALE}
    assert_close(hd.reference_torch_attention(*drawn, **heads), want)
    seen = torch.ones(5, 5).triu(-1).bool()
    windowed = hd.reference_torch_attention(*drawn, **heads, sliding_window=2)
    assert_close(windowed, attend(*drawn, seen, SCALE))


def test_metadata_of_a_strategy_of_diffulex() -> None:
    """A strategy's own class; its runner makes an object per step, then calls init_multi_block."""

    @dataclasses.dataclass
    class Strategy(hd.MultiBlockAttnMetaDataMixin):
        merged: bool = False

        def __post_init__(self) -> None:
            self.init_multi_block()

    rule, requests = STEPS["gemma_denoise"]
    cache = filled(requests, 8, rule)
    made = rule.metadata(requests, page_tables=cache.table, page_size=8)
    metadata = Strategy(
        is_prefill=made.is_prefill,
        has_prefill_static=False,
        cu_seqlens_q=made.cu_seqlens_q,
        max_seqlen_q=made.max_seqlen_q,
        need_kv_cache_store_static=False,
        context_lens=made.context_lens,
        page_tables=made.page_tables,
        page_size=8,
        block_size=8,
        merged=True,
    )
    assert metadata.use_multi_block
    assert metadata.is_block_causal
    assert metadata.valid_slices is None
    names = ("valid_slices", "status_table", "prefix_lens", "padded_prefix_lens", "mask_prefix_hole", "prefix_causal")
    metadata.init_multi_block(**{name: getattr(made, name) for name in names}, buffer_size=2)
    assert metadata.chunk_size == 16
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    drawn = rand(16, HEADS, DIM), rand(16, KV_HEADS, DIM, seed=2), rand(16, KV_HEADS, DIM, seed=3)
    for impl in ("naive", "triton", "triton_grouped"):
        layer = hd.Attention(HEADS, DIM, SCALE, KV_HEADS, impl)
        layer.k_cache, layer.v_cache = cache.k, cache.v
        check_step(layer(*drawn), drawn, requests, rule, cache, SCALE)
    metadata.init_multi_block()
    assert not metadata.mask_prefix_hole
    assert metadata.prefix_lens is None
    with pytest.raises(InvalidArgumentError, match=r"block_size is 8, expected at most page_size \(4\)"):
        Strategy(page_size=4, block_size=8)


def test_hook_and_warm_up() -> None:
    hd.set_fetch_fn_for_attn_metadata(None)
    with pytest.raises(InvalidArgumentError, match="no fetch function is installed"):
        hd.fetch_attn_metadata()
    metadata = hd.AttnMetaDataBase()
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    assert hd.fetch_attn_metadata() is metadata
    assert not hd.is_warming_up()
    hd.set_warming_up()
    assert hd.is_warming_up()
    hd.reset_warming_up()
    assert not hd.is_warming_up()
    empty = hd.Attention(HEADS, DIM, SCALE, KV_HEADS)(rand(0, 64), rand(0, 32), rand(0, 32))
    assert empty.shape == (0, 64)


def test_derived_fields() -> None:
    metadata = hd.MultiBlockAttnMetaData(is_prefill=[True, False], cu_seqlens_q=torch.tensor([0, 4, 8]), buffer_size=2)
    assert metadata.num_reqs == 2
    assert metadata.chunk_size == 64
    assert metadata.has_prefill
    assert not metadata.all_prefill
    assert not metadata.need_kv_cache_store
    metadata.slot_mapping, metadata.all_prefill_static = torch.tensor([-1]), True
    assert metadata.need_kv_cache_store
    assert metadata.all_prefill
    metadata.need_kv_cache_store_static = False
    assert not metadata.need_kv_cache_store
    assert hd.AttnMetaDataBase(is_prefill=True).all_prefill
    flags = {True: (True, True), (True, False): (True, False), (): (False, False), None: (False, False)}
    assert all(hd.infer_prefill_flags(given) == inferred for given, inferred in flags.items())


def test_refusals_say_what_was_expected_and_found() -> None:
    with pytest.raises(UnsupportedError, match="attn_impl is 'flash'; built are"):
        hd.Attention(HEADS, DIM, SCALE, KV_HEADS, "flash")
    with pytest.raises(InvalidArgumentError, match="num_kv_heads is 3, expected a divisor of num_heads"):
        hd.Attention(HEADS, DIM, SCALE, 3)
    with pytest.raises(InvalidArgumentError, match="page_size is 12, expected one of"):
        hd.MultiBlockAttnMetaData(page_size=12)
    with pytest.raises(InvalidArgumentError, match=r"block_size is 32, expected at most page_size \(16\)"):
        hd.MultiBlockAttnMetaData(page_size=16)
    rule, requests = STEPS["multi_bd_decode"]
    drawn = rand(20, HEADS, DIM), rand(20, KV_HEADS, DIM), rand(20, KV_HEADS, DIM)
    layer = hd.Attention(HEADS, DIM, SCALE, KV_HEADS)
    for fields, message in (
        ({"kv_cache_layout": "distinct"}, "kv_cache_layout is 'distinct'; built is 'unified'"),
        ({"slot_mapping": torch.tensor([1, 2])}, "slot_mapping is 2 slots, expected one for 20 rows"),
    ):
        metadata = rule.metadata(requests, **fields)
        hd.set_fetch_fn_for_attn_metadata(lambda found=metadata: found)
        with pytest.raises((InvalidArgumentError, UnsupportedError), match=message):
            layer(*drawn)
    layer.k_cache = layer.v_cache = torch.zeros(2, 16, KV_HEADS, DIM)
    metadata = rule.metadata(requests, page_size=8)
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    with pytest.raises(InvalidArgumentError, match="the cache has pages of 16 tokens, the metadata's page_size is 8"):
        layer(*drawn)
    metadata = rule.metadata(requests)
    with pytest.raises(InvalidArgumentError, match="4 cached tokens, but page_tables or a cache is None"):
        hd.Attention(HEADS, DIM, SCALE, KV_HEADS, "naive")(*drawn)
    with pytest.raises(InvalidArgumentError, match="q has 4 heads and k has 2, expected 2 and 4"):
        hd.reference_torch_attention(*drawn, num_heads=2, num_kv_heads=4, scale=SCALE)
    metadata.mask_prefix_hole, metadata.prefix_lens = True, None
    with pytest.raises(InvalidArgumentError, match="prefix_lens or padded_prefix_lens is None, expected both"):
        hd.triton_attention(*drawn, None, None, SCALE)
    hd.set_fetch_fn_for_attn_metadata(hd.AttnMetaDataBase)
    with pytest.raises(InvalidArgumentError, match="cu_seqlens_q is None"):
        layer(*drawn)
    with pytest.raises(InvalidArgumentError, match=r"q is \[20, 63\]"):
        layer(drawn[0].flatten(1)[:, :63], *drawn[1:])
