"""paged_attention and store_kv against float64 on random shapes."""

import dataclasses
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")

import op_references as reference  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from op_support import ATTENTION, LSE, assert_close, generator, random_shapes  # noqa: E402

from headrace import ops  # noqa: E402

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
POOLS = [*FLOATS, torch.float8_e4m3fn, torch.int8]
KINDS = ["causal", "block", "full", "prefix_full", "none"]


@dataclasses.dataclass
class Case:
    """Sizes and options of one call."""

    seed: int
    dtype: torch.dtype
    pool_dtype: torch.dtype
    kv_heads: int
    group: int
    dim: int
    v_dim: int
    page_size: int
    requests: list[tuple[int, int]]  # q_len, ctx_len
    kind: str
    block_size: int
    window: int | None
    window_from: str
    logit_cap: float
    type: str
    holes: bool
    new_given: bool
    token_major: bool
    grouped: bool
    strict: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dim = draw(st.sampled_from([8, 16, 20, 64, 128]))
    type = draw(st.sampled_from(["decoder", "decoder", "decoder_bidirectional", "encoder_only"]))
    kind = draw(st.sampled_from(KINDS))
    q_len, ctx_len = st.integers(0, 24), st.just(0) if kind == "prefix_full" else st.integers(0, 90)
    dtype = draw(st.sampled_from(FLOATS))
    return Case(
        seed=draw(st.integers(0, 2**31)),
        dtype=dtype,
        pool_dtype=draw(st.sampled_from([dtype, *POOLS])),
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 7)),
        dim=dim,
        v_dim=draw(st.sampled_from([dim, 24])),
        page_size=draw(st.sampled_from([1, 4, 16, 64])),
        requests=draw(st.lists(st.tuples(q_len, ctx_len), min_size=1, max_size=4)),
        kind=kind,
        block_size=draw(st.sampled_from([1, 3, 8, 32])),
        window=draw(st.none() | st.integers(1, 40)),
        window_from=draw(st.sampled_from(["row", "segment"])),
        logit_cap=draw(st.sampled_from([0.0, 3.0])),
        type=type,
        holes=draw(st.booleans()),
        new_given=type == "encoder_only" or draw(st.booleans()),
        token_major=draw(st.booleans()),
        grouped=draw(st.booleans()),
        strict=draw(st.booleans()),
    )


@dataclasses.dataclass
class Problem:
    """Tensors of a case, and the pool and new rows as float64 sees them."""

    q: torch.Tensor
    pool: list[torch.Tensor]
    scales: list  # numbers, or tensors of an int8 pool
    new: list[torch.Tensor]
    page_table: torch.Tensor
    spans: torch.Tensor
    wide_pool: list[torch.Tensor]
    wide_new: list[torch.Tensor]


def new_pool(case: Case, pages: int, dim: int) -> torch.Tensor:
    order = (
        (pages, case.page_size, case.kv_heads, dim) if case.token_major else (pages, case.kv_heads, case.page_size, dim)
    )
    pool = torch.zeros(order, dtype=case.pool_dtype)
    return pool.transpose(1, 2) if case.token_major else pool


def fill_pool(
    case: Case, pool: list[torch.Tensor], rand: Callable[..., torch.Tensor]
) -> tuple[list, list[torch.Tensor]]:
    """Fills every slot by store_kv; returns the scales and the dequantised pool."""
    pages = pool[0].shape[0]
    rows = [rand(pages * case.page_size, case.kv_heads, p.shape[3]).to(torch.float32) for p in pool]
    slots = torch.arange(pages * case.page_size)
    scales = [0.5, 2.0] if case.pool_dtype == torch.float8_e4m3fn else [1.0, 1.0]
    if case.pool_dtype == torch.int8:
        scales = [torch.zeros(pages, case.kv_heads, case.page_size) for _ in pool]
    ops.store_kv(*rows, slots, *pool, k_scale=scales[0], v_scale=scales[1])
    wide = []
    for p, scale in zip(pool, scales, strict=True):
        wide.append(p.double() * (scale.double()[..., None] if isinstance(scale, torch.Tensor) else scale))
    return scales, wide


def as_stored(case: Case, new: torch.Tensor, scale: float) -> torch.Tensor:
    """New rows as they count: rounded to the pool's dtype."""
    if case.pool_dtype == torch.int8:
        codes, scales = reference.int8_rows(new)
        return codes.double() * scales.double()[..., None]
    limit = 448 if case.pool_dtype == torch.float8_e4m3fn else float("inf")
    return (new.float() / scale).clamp(-limit, limit).to(case.pool_dtype).double() * scale


def make_problem(case: Case) -> Problem:
    g = generator(case.seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g)

    q_lens, ctx_lens = (torch.tensor(x, dtype=torch.int32) for x in zip(*case.requests, strict=True))
    count, tokens = len(case.requests), int(q_lens.sum())
    most = max(q + c for q, c in case.requests)
    row_pages = max(1, -(-most // case.page_size))
    page_table = (torch.randperm(count * row_pages, generator=g) + 1).reshape(count, row_pages).to(torch.int32)
    page_table = page_table[torch.randperm(count, generator=g)]
    hole = None
    if case.holes and case.kind != "prefix_full":
        begin = (ctx_lens * 0.3).to(torch.int32)
        hole = (begin, torch.minimum(begin + 5, ctx_lens))
    spans = ops.key_spans(
        q_lens,
        ctx_lens,
        kind=case.kind,
        block_size=case.block_size,
        hole=hole,
        log_shift=hole[1] - hole[0] if hole else 0,
        prompt_lens=q_lens // 2,
        padded_prompt_lens=q_lens // 2 + 3,
        window_from=case.window_from,
        page_rows=torch.randperm(count, generator=g),
    )
    pool = [new_pool(case, count * row_pages + 1, dim) for dim in (case.dim, case.v_dim)]
    scales, wide_pool = fill_pool(case, pool, rand)
    new = [rand(tokens, case.kv_heads, dim).to(case.dtype) for dim in (case.dim, case.v_dim)]
    wide_new = [as_stored(case, x, s if isinstance(s, float) else 1.0) for x, s in zip(new, scales, strict=True)]
    q = rand(tokens, case.kv_heads * case.group, case.dim).to(case.dtype)
    return Problem(q, pool, scales, new, page_table, spans, wide_pool, wide_new)


@random_shapes
@given(cases())
def test_paged_attention_is_that_of_float64(case: Case) -> None:
    p = make_problem(case)
    new = {"k_new": p.new[0], "v_new": p.new[1]} if case.new_given else {}
    wide_new = {"k_new": p.wide_new[0], "v_new": p.wide_new[1]} if case.new_given else {}
    options = {"scale": 0.3, "logit_cap": case.logit_cap, "window": case.window, "type": case.type}
    pools_before = [x.clone() for x in p.pool]
    out, lse = ops.paged_attention(
        p.q, *p.pool, p.page_table, p.spans, **new, **options, k_scale=p.scales[0], v_scale=p.scales[1],
        grouped=case.grouped, return_lse=True, strict=case.strict,
    )  # fmt: skip
    want, want_lse = reference.paged_attention(p.q, *p.wide_pool, p.page_table, p.spans, **wide_new, **options)
    assert_close(out, want, ATTENTION[case.dtype])
    assert_close(lse, want_lse, LSE[case.dtype], "lse")
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(p.pool, pools_before, strict=True))


@random_shapes
@given(st.integers(0, 2**31), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 70)), min_size=1, max_size=3))
def test_cross_attention_reads_the_encoders_pages(seed: int, requests: list[tuple[int, int]]) -> None:
    g, count = generator(seed), len(requests)
    q_lens, encoder_lens = (torch.tensor(x, dtype=torch.int32) for x in zip(*requests, strict=True))
    pool = [torch.randn((5 * count + 1, 2, 16, 32), generator=g) for _ in range(2)]
    table = (torch.randperm(5 * count, generator=g) + 1).reshape(count, 5).to(torch.int32)
    spans = ops.key_spans(
        q_lens, 0, encoder_lens=encoder_lens, encoder_page_rows=torch.arange(count - 1, -1, -1)
    )  # fmt: skip
    q = torch.randn((int(q_lens.sum()), 4, 32), generator=g)
    out = ops.paged_attention(q, *pool, table, spans, keys="encoder")
    want, _ = reference.paged_attention(q, *pool, table, spans, keys="encoder", scale=32**-0.5)
    assert_close(out, want, ATTENTION[torch.float32])


@random_shapes
@given(
    st.integers(0, 2**31),
    st.sampled_from(FLOATS),
    st.sampled_from(POOLS),
    st.integers(1, 9),
    st.sampled_from([1, 4, 16]),
    st.booleans(),
)
def test_store_kv_writes_its_slots_alone(
    seed: int, dtype: torch.dtype, pool_dtype: torch.dtype, tokens: int, page_size: int, token_major: bool
) -> None:
    g = generator(seed)
    k, v = (3 * torch.randn((tokens, 2, dim), generator=g).to(dtype) for dim in (16, 24))
    slots = torch.randperm(4 * page_size + 16, generator=g)[:tokens]
    slots = torch.where(slots < 4 * page_size, slots, -1)
    order = (4, page_size, 2) if token_major else (4, 2, page_size)
    filler = torch.randn((*order, 24), generator=g)
    pools = [filler[..., :dim].to(pool_dtype).contiguous() for dim in (16, 24)]
    pools = [p.transpose(1, 2) if token_major else p for p in pools]
    wanted = [p.clone() for p in pools]
    if pool_dtype == torch.int8:
        scales = [torch.full((4, 2, page_size), 7.0) for _ in range(2)]
        ops.store_kv(k, v, slots, *pools, k_scale=scales[0], v_scale=scales[1])
        for x, pool, want, scale in zip((k, v), pools, wanted, scales, strict=True):
            check_int8(x, slots, pool, want, scale)
        return
    k_scale, v_scale = (0.25, 3.0) if pool_dtype == torch.float8_e4m3fn else (1.0, 1.0)
    ops.store_kv(k, v, slots, *pools, k_scale=k_scale, v_scale=v_scale)
    reference.store_kv(k, slots, wanted[0], k_scale)
    reference.store_kv(v, slots, wanted[1], v_scale)
    for pool, want in zip(pools, wanted, strict=True):
        assert torch.equal(pool.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def check_int8(
    x: torch.Tensor, slots: torch.Tensor, pool: torch.Tensor, want: torch.Tensor, scale: torch.Tensor
) -> None:
    codes, scales = reference.int8_rows(x)
    want_scale, page_size = torch.full_like(scale, 7.0), pool.shape[2]
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            want[slot // page_size, :, slot % page_size] = codes[t]
            want_scale[slot // page_size, :, slot % page_size] = scales[t]
    assert torch.equal(pool, want)
    assert torch.equal(scale, want_scale)
