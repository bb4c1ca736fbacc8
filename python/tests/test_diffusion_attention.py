"""headrace.diffusion: steps of every kind of metadata, compared with Diffulex's visibility rule in float64."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from attention_reference import NothingIsReadOnTheHost, assert_close, attend  # noqa: E402
from diffusion_engine import Cache, Packed, Rule, check_step  # noqa: E402

import headrace.diffusion as hd  # noqa: E402
from headrace.errors import InvalidArgumentError, UnsupportedError  # noqa: E402

HEADS, KV_HEADS, DIM, SCALE = 4, 2, 16, 0.25

STEPS = {
    "multi_bd_prefill": (Rule(), [Packed(0, 8, 4, status=0), Packed(4, 10, status=0)]),
    "multi_bd_decode": (Rule(), [Packed(4, 8), Packed(12, 4, 4), Packed(0, 4, 4)]),
    "d2f_prefill": (Rule(prefix_full=True), [Packed(0, 12, status=0, prompt=6, padded_prompt=8)]),
    "d2f_decode": (Rule(prefix_full=True), [Packed(8, 4, 8)]),
    "d2f_both": (Rule(prefix_full=True), [Packed(0, 12, status=0, prompt=7, padded_prompt=8), Packed(8, 8)]),
    "fdv2_block": (Rule(block=8), [Packed(16, 8, status=1), Packed(8, 8, status=0)]),
    "fdv2_refine": (Rule(block=8, cache_only=True), [Packed(24, 4, status=2), Packed(16, 4, status=2)]),
    "gemma_prefill": (
        Rule(block=8, hole=True, prefix_causal=True),
        [Packed(0, 5, 3, status=0, prompt=5, padded_prompt=8), Packed(4, 6, status=0, prompt=10, padded_prompt=16)],
    ),
    "gemma_denoise": (
        Rule(block=8, hole=True, prefix_causal=True),
        [Packed(8, 8, prompt=5, padded_prompt=8), Packed(24, 8, prompt=12, padded_prompt=16)],
    ),
    "uncached": (Rule(block_causal=False), [Packed(0, 9), Packed(0, 3)]),
    "no_rows": (Rule(), [Packed(4, 0, 4), Packed(8, 4), Packed(0, 0)]),
}


def rand(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def filled(requests: list[Packed], page_size: int, rule: Rule, heads: int = KV_HEADS, dim: int = DIM) -> Cache:
    """A cache with the readable tokens of each request; NaN in the others and in the hole."""
    cache = Cache(len(requests), page_size, heads, dim, 64)
    for index, request in enumerate(requests):
        for position in range(request.context):
            if rule.sees_cached(request, position):
                k, v = rand(2, heads, dim, seed=100 * index + position)
                cache.write(index, position, k, v)
    return cache


def run(rule: Rule, requests: list[Packed], page_size: int, impl: str, window: int | None = None, heads=HEADS) -> None:
    total = sum(request.valid + request.padding for request in requests)
    cache = filled(requests, page_size, rule)
    metadata = rule.metadata(requests, page_tables=cache.table, page_size=page_size)
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    layer = hd.Attention(heads, DIM, SCALE, KV_HEADS, impl, window)
    layer.k_cache, layer.v_cache = cache.k, cache.v
    drawn = rand(total, heads, DIM, seed=1), rand(total, KV_HEADS, DIM, seed=2), rand(total, KV_HEADS, DIM, seed=3)
    out = layer(drawn[0].flatten(1), drawn[1].flatten(1), drawn[2])
    assert out.shape == (total, heads * DIM)
    check_step(out, drawn, requests, rule, cache, SCALE, window)


@pytest.mark.parametrize("impl", ["naive", "triton", "triton_grouped"])
@pytest.mark.parametrize("name", STEPS)
def test_step_matches_the_oracle(name: str, impl: str) -> None:
    rule, requests = STEPS[name]
    run(rule, requests, max(8, rule.block), impl)


@pytest.mark.parametrize("impl", ["naive", "triton_grouped"])
@pytest.mark.parametrize("window", [1, 3, 6])
@pytest.mark.parametrize("name", ["multi_bd_prefill", "multi_bd_decode", "gemma_prefill", "gemma_denoise", "uncached"])
def test_window_counts_logical_positions(name: str, window: int, impl: str) -> None:
    rule, requests = STEPS[name]
    run(rule, requests, max(8, rule.block), impl, window)


@pytest.mark.parametrize("page_size", [4, 8, 16, 32, 256])
def test_pages_of_every_size(page_size: int) -> None:
    run(Rule(), STEPS["multi_bd_decode"][1], page_size, "triton_grouped")


@pytest.mark.parametrize("seed", range(20))
def test_random_steps(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)

    def below(n: int) -> int:
        return int(torch.randint(0, n, (), generator=random))

    block = 4 << below(3)
    rule = Rule(block, below(4) > 0, below(2) > 0, below(4) == 0, below(3) == 0, below(5) == 0)
    requests = []
    for _ in range(1 + below(4)):
        status = below(2)
        prompt = 1 + below(12)
        padded = -(-prompt // block) * block
        begins_after = padded // block if rule.hole and status else 0
        context = 0 if rule.prefix_full and not status else block * (begins_after + below(2))
        if rule.hole and not status:
            context = min(context, (prompt - 1) // block * block)
        rows = prompt - context if rule.hole and not status else 1 + below(10)
        requests.append(Packed(context, rows, below(4), status, prompt, padded))
    window = below(9) or None
    run(rule, requests, max(8, block), "triton_grouped", window)
    run(rule, requests, max(8, block), "naive", window)


def test_seven_query_heads_per_kv_head() -> None:
    run(Rule(), STEPS["multi_bd_decode"][1], 8, "triton_grouped", heads=14)


def test_kinds_follow_is_prefill_without_a_status_table() -> None:
    rule, _ = STEPS["d2f_both"]
    drawn = rand(20, HEADS, DIM), rand(20, KV_HEADS, DIM, seed=2), rand(20, KV_HEADS, DIM, seed=3)
    for status in ([0, 1], [0, 0], [1, 1]):
        prompts = {0: {"context": 0, "prompt": 7, "padded_prompt": 8}, 1: {"context": 8}}
        requests = [Packed(valid=12, status=status[0], **prompts[status[0]])]
        requests.append(Packed(valid=8, status=status[1], **prompts[status[1]]))
        cache = filled(requests, 8, rule)
        metadata = rule.metadata(requests, page_tables=cache.table, page_size=8)
        metadata.status_table = None
        out = hd.triton_grouped_attention(*drawn, cache.k, cache.v, metadata, SCALE)
        check_step(out.flatten(1), drawn, requests, rule, cache, SCALE)


def test_worked_masks_of_the_specification() -> None:
    """Six masks that were worked out by hand."""
    seen = Rule().visible(Packed(4, 8), None)
    assert seen[0].nonzero().flatten().tolist() == [*range(8)] and seen[4].all()
    seen = Rule(prefix_full=True).visible(Packed(0, 12, status=0, prompt=6, padded_prompt=8), None)
    assert [int(row.sum()) for row in seen] == [6] * 6 + [8] * 2 + [12] * 4
    gemma = Rule(block=8, hole=True).visible(Packed(8, 8, prompt=5, padded_prompt=8), None)
    assert gemma[3].nonzero().flatten().tolist() == [*range(5), *range(8, 16)]
    refine = Rule(block=32, cache_only=True).visible(Packed(64, 8, status=2), None)
    assert refine[:, :64].all() and not refine[:, 64:].any()
    windowed = Rule().visible(Packed(8, 4), 4)
    assert windowed[0].nonzero().flatten().tolist() == [5, 6, 7, 8, 9, 10, 11]


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


@pytest.mark.parametrize("name", STEPS)
def test_steps_read_no_length_on_the_host(name: str) -> None:
    rule, requests = STEPS[name]
    cache = filled(requests, max(8, rule.block), rule)
    metadata = rule.metadata(requests, page_tables=cache.table, page_size=cache.page_size)
    total = sum(request.valid + request.padding for request in requests)
    drawn = rand(total, HEADS, DIM), rand(total, KV_HEADS, DIM, seed=2), rand(total, KV_HEADS, DIM, seed=3)
    with NothingIsReadOnTheHost():
        out = hd.triton_grouped_attention(*drawn, cache.k, cache.v, metadata, SCALE)
    check_step(out.flatten(1), drawn, requests, rule, cache, SCALE)


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


def test_free_functions_agree() -> None:
    rule, requests = STEPS["multi_bd_decode"]
    cache = filled(requests, 8, rule)
    metadata = rule.metadata(requests, page_tables=cache.table, page_size=8)
    total = sum(request.valid + request.padding for request in requests)
    drawn = rand(total, HEADS, DIM), rand(total, KV_HEADS, DIM, seed=2), rand(total, KV_HEADS, DIM, seed=3)
    for function in (hd.triton_attention, hd.triton_grouped_attention):
        out = function(*drawn, cache.k, cache.v, metadata, SCALE)
        check_step(out.flatten(1), drawn, requests, rule, cache, SCALE)
    caches = {"k_cache": cache.k, "v_cache": cache.v, "attn_metadata": metadata}
    out = hd.reference_torch_attention(*drawn, SCALE, **caches)
    check_step(out.flatten(1), drawn, requests, rule, cache, SCALE)


def test_mask_is_added_to_the_scores_of_one_sequence() -> None:
    layer = hd.Attention(HEADS, DIM, SCALE, KV_HEADS, "naive", sliding_window=3)
    q, k, v = rand(5, HEADS, DIM), rand(5, KV_HEADS, DIM, seed=2), rand(5, KV_HEADS, DIM, seed=3)
    causal = torch.full((5, 5), -torch.inf).triu(1)
    seen = torch.ones(5, 5).tril().bool() & ~torch.ones(5, 5).tril(-3).bool()
    assert_close(layer(q, k, v, mask=causal), attend(q, k, v, seen, SCALE).flatten(1))
    with pytest.raises(UnsupportedError, match="mask is given with attn_impl 'triton', expected 'naive'"):
        hd.Attention(HEADS, DIM, SCALE, KV_HEADS, "triton")(q, k, v, mask=causal)


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
    assert metadata.num_reqs == 2 and metadata.chunk_size == 64
    assert metadata.has_prefill and not metadata.all_prefill and not metadata.need_kv_cache_store
    metadata.slot_mapping, metadata.all_prefill_static = torch.tensor([-1]), True
    assert metadata.need_kv_cache_store and metadata.all_prefill
    metadata.need_kv_cache_store_static = False
    assert not metadata.need_kv_cache_store
    assert hd.AttnMetaDataBase(is_prefill=True).all_prefill


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
    hd.set_fetch_fn_for_attn_metadata(hd.AttnMetaDataBase)
    with pytest.raises(InvalidArgumentError, match="cu_seqlens_q is None"):
        layer(*drawn)
    with pytest.raises(InvalidArgumentError, match=r"q is \[20, 63\]"):
        layer(drawn[0].flatten(1)[:, :63], *drawn[1:])
