"""headrace.diffusion: steps of every kind of metadata, compared with Diffulex's visibility rule in float64."""

import pytest

torch = pytest.importorskip("torch")

import headrace.diffusion as hd  # noqa: E402
from attention_reference import NothingIsReadOnTheHost  # noqa: E402
from diffusion_engine import DIM, HEADS, KV_HEADS, SCALE, STEPS, Packed, Rule, check_step, filled, rand  # noqa: E402


def run(
    rule: Rule, requests: list[Packed], page_size: int, impl: str, window: int | None = None, heads: int = HEADS
) -> None:
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
        hd.set_fetch_fn_for_attn_metadata(lambda metadata=metadata: metadata)
        out = hd.triton_grouped_attention(*drawn, cache.k, cache.v, SCALE)
        check_step(out.flatten(1), drawn, requests, rule, cache, SCALE)


def test_worked_masks_of_the_specification() -> None:
    """Six masks that were worked out by hand."""
    seen = Rule().visible(Packed(4, 8), None)
    assert seen[0].nonzero().flatten().tolist() == [*range(8)]
    assert seen[4].all()
    seen = Rule(prefix_full=True).visible(Packed(0, 12, status=0, prompt=6, padded_prompt=8), None)
    assert [int(row.sum()) for row in seen] == [6] * 6 + [8] * 2 + [12] * 4
    gemma = Rule(block=8, hole=True).visible(Packed(8, 8, prompt=5, padded_prompt=8), None)
    assert gemma[3].nonzero().flatten().tolist() == [*range(5), *range(8, 16)]
    refine = Rule(block=32, cache_only=True).visible(Packed(64, 8, status=2), None)
    assert refine[:, :64].all()
    assert not refine[:, 64:].any()
    windowed = Rule().visible(Packed(8, 4), 4)
    assert windowed[0].nonzero().flatten().tolist() == [5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("name", STEPS)
def test_steps_read_no_length_on_the_host(name: str) -> None:
    rule, requests = STEPS[name]
    cache = filled(requests, max(8, rule.block), rule)
    metadata = rule.metadata(requests, page_tables=cache.table, page_size=cache.page_size)
    total = sum(request.valid + request.padding for request in requests)
    drawn = rand(total, HEADS, DIM), rand(total, KV_HEADS, DIM, seed=2), rand(total, KV_HEADS, DIM, seed=3)
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    with NothingIsReadOnTheHost():
        out = hd.triton_grouped_attention(*drawn, cache.k, cache.v, SCALE)
    check_step(out.flatten(1), drawn, requests, rule, cache, SCALE)


def test_free_functions_store_and_attend() -> None:
    rule, requests = STEPS["multi_bd_decode"]
    total = sum(request.valid + request.padding for request in requests)
    drawn = rand(total, HEADS, DIM), rand(total, KV_HEADS, DIM, seed=2), rand(total, KV_HEADS, DIM, seed=3)
    for function in (hd.triton_attention, hd.triton_grouped_attention):
        cache = filled(requests, 8, rule)
        slots = torch.tensor([cache.slot(0, 4 + i) if i < 4 else -1 for i in range(total)], dtype=torch.int32)
        metadata = rule.metadata(requests, page_tables=cache.table, page_size=8, slot_mapping=slots)
        hd.set_fetch_fn_for_attn_metadata(lambda metadata=metadata: metadata)
        out = function(*drawn, cache.k, cache.v, SCALE, 0)
        check_step(out.flatten(1), drawn, requests, rule, cache, SCALE)
        assert torch.equal(cache.keys(0, 8)[0][4:], drawn[1][:4])
        assert torch.equal(cache.keys(0, 8)[1][4:], drawn[2][:4])
        windowed = function(*drawn, cache.k, cache.v, softmax_scale=SCALE, sliding_window=3)
        check_step(windowed.flatten(1), drawn, requests, rule, cache, SCALE, 3)


def test_free_function_without_a_cache() -> None:
    """Layers that no cache is bound to have empty ones."""
    rule, requests = STEPS["uncached"]
    metadata = rule.metadata(requests, slot_mapping=torch.arange(12))
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    drawn = rand(12, HEADS, DIM), rand(12, KV_HEADS, DIM, seed=2), rand(12, KV_HEADS, DIM, seed=3)
    out = hd.triton_attention(*drawn, torch.tensor([]), torch.tensor([]), SCALE)
    check_step(out.flatten(1), drawn, requests, rule, filled(requests, 8, rule), SCALE)


@pytest.mark.parametrize("impl", ["naive", "triton", "triton_grouped"])
def test_padding_requests_of_a_replay_hide_no_rows(impl: str) -> None:
    """Diffulex's static runner zeroes what describes the requests that a captured batch has too many: they begin behind
    the last row, and their valid slices end at row 0."""
    rule, requests = STEPS["multi_bd_decode"]
    cache = filled(requests, 8, rule)
    metadata = rule.metadata(requests, page_tables=cache.table, page_size=8)
    total = sum(request.valid + request.padding for request in requests)
    zeros = torch.zeros(2, dtype=torch.int32)
    metadata.cu_seqlens_q = torch.cat((metadata.cu_seqlens_q, torch.full_like(zeros, total)))
    for name in ("valid_slices", "context_lens", "status_table", "prefix_lens", "padded_prefix_lens"):
        setattr(metadata, name, torch.cat((getattr(metadata, name), zeros)))
    metadata.page_tables = torch.nn.functional.pad(metadata.page_tables, (0, 0, 0, 2), value=-1)
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    layer = hd.Attention(HEADS, DIM, SCALE, KV_HEADS, impl)
    layer.k_cache, layer.v_cache = cache.k, cache.v
    rows = total + 24  # those of the captured batch
    drawn = rand(rows, HEADS, DIM), rand(rows, KV_HEADS, DIM, seed=2), rand(rows, KV_HEADS, DIM, seed=3)
    out = layer(*drawn)
    check_step(out, drawn, requests, rule, cache, SCALE)
    assert not out[total:].any()
