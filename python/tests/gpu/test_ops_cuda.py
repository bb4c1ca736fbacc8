"""headrace.ops on torch's CUDA tensors: against float64, on the caller's stream, in CUDA graphs, without waiting.

Run on a machine with a GPU: pytest -m gpu python/tests/gpu
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import op_references as reference  # noqa: E402
from op_support import ATTENTION, CONV, DENSE, GDN, LSE, assert_close, generator  # noqa: E402

import headrace  # noqa: E402
from headrace import ops  # noqa: E402

pytestmark = pytest.mark.gpu
HALVES = [torch.bfloat16, torch.float16]
FLOATS = [torch.float32, *HALVES]


def on_gpu(tensors: dict) -> dict:
    return {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in tensors.items()}


def attention_problem(
    seed: int,
    dtype: torch.dtype,
    requests: list[tuple[int, int]],
    *,
    pool_dtype: torch.dtype | None = None,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 64,
    page_size: int = 16,
    **spans: Any,
) -> dict[str, torch.Tensor]:
    """Arguments on the CPU, and the pool in float64."""
    g = generator(seed)
    q_lens, ctx_lens = (torch.tensor(x, dtype=torch.int32) for x in zip(*requests, strict=True))
    count, tokens = len(requests), int(q_lens.sum())
    pages = max(1, -(-max(q + c for q, c in requests) // page_size))
    table = (torch.randperm(count * pages, generator=g) + 1).reshape(count, pages).to(torch.int32)
    pools = [
        torch.randn((count * pages + 1, kv_heads, page_size, dim), generator=g).to(pool_dtype or dtype) for _ in "kv"
    ]
    new = [torch.randn((tokens, kv_heads, dim), generator=g).to(dtype) for _ in "kv"]
    return {
        "q": torch.randn((tokens, heads, dim), generator=g).to(dtype),
        "k_cache": pools[0],
        "v_cache": pools[1],
        "page_table": table,
        "spans": ops.key_spans(q_lens, ctx_lens, **spans),
        "k_new": new[0],
        "v_new": new[1],
    }


def expected_attention(p: dict, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        pool = p["k_cache"].dtype
        return x.to(pool).double() if pool != torch.float8_e4m3fn else x.float().clamp(-448, 448).to(pool).double()

    new = {name: rounded(p[name]) for name in ("k_new", "v_new") if name in p}
    pools = (p["k_cache"].double(), p["v_cache"].double())
    scale = p["q"].shape[-1] ** -0.5
    return reference.paged_attention(p["q"], *pools, p["page_table"], p["spans"], **new, scale=scale, **options)


REQUESTS = {
    "decode": [(1, 40), (1, 7), (1, 300)],
    "extend": [(70, 0), (5, 33), (130, 17)],
    "mixed": [(1, 90), (33, 12), (0, 5), (2, 0)],
    "one": [(1, 0)],
}


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_paged_attention_is_that_of_float64(dtype: torch.dtype, name: str, bounded: bool) -> None:
    p = attention_problem(1, dtype, REQUESTS[name])
    bounds = {"max_q_len": max(q for q, _ in REQUESTS[name]), "max_kv_len": 512} if bounded else {}
    out, lse = ops.paged_attention(**on_gpu(p), **bounds, return_lse=True)
    want, want_lse = expected_attention(p)
    assert out.is_cuda
    assert lse.is_cuda
    assert_close(out, want, ATTENTION[dtype])
    assert_close(lse, want_lse, LSE[dtype], "lse")


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("kind", ["causal", "block", "full", "prefix_full", "none"])
@pytest.mark.parametrize("window", [None, 9])
def test_every_kind_of_span(kind: str, window: int | None, bounded: bool) -> None:
    requests = [(24, 0), (9, 0)] if kind == "prefix_full" else [(24, 40), (9, 16)]
    options = (
        {"prompt_lens": 10, "padded_prompt_lens": 16} if kind == "prefix_full" else {"hole": (3, 8), "log_shift": 5}
    )
    p = attention_problem(2, torch.bfloat16, requests, kind=kind, block_size=8, **options)
    bounds = {"max_q_len": 24, "max_kv_len": 64} if bounded else {}
    out = ops.paged_attention(**on_gpu(p), window=window, logit_cap=5.0, **bounds)
    assert_close(out, expected_attention(p, window=window, logit_cap=5.0)[0], ATTENTION[torch.bfloat16])


@pytest.mark.parametrize("page_size", [1, 4, 8, 64])
@pytest.mark.parametrize("token_major", [False, True])
def test_pools_of_other_orders(page_size: int, token_major: bool) -> None:
    p = attention_problem(3, torch.bfloat16, REQUESTS["mixed"], page_size=page_size)
    on = on_gpu(p)
    if token_major:
        for name in ("k_cache", "v_cache"):
            on[name] = on[name].transpose(1, 2).contiguous().transpose(1, 2)
    out = ops.paged_attention(**on)
    assert_close(out, expected_attention(p)[0], ATTENTION[torch.bfloat16])


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(32, 8, 128), (8, 2, 256)])
def test_strict_bits_do_not_depend_on_where_keys_lie(heads: int, kv_heads: int, dim: int) -> None:
    """In pages that TMA loads, in smaller ones, beside the pool, or without one."""
    tokens, g = 512, generator(12)
    q, k, v = (torch.randn((tokens, n, dim), generator=g).bfloat16().to("cuda") for n in (heads, kv_heads, kv_heads))
    spans = ops.key_spans(torch.tensor([tokens]), torch.tensor([0])).to("cuda")
    options = {"strict": True, "max_q_len": tokens, "max_kv_len": tokens}
    want = ops.paged_attention(q, None, None, None, spans, k_new=k, v_new=v, **options)
    for page_size in (64, 4, 1):
        pools = [k.new_zeros((tokens // page_size, kv_heads, page_size, dim)) for _ in "kv"]
        ops.store_kv(k, v, torch.arange(tokens, device="cuda"), *pools)
        table = torch.arange(tokens // page_size, dtype=torch.int32, device="cuda")[None]
        assert torch.equal(ops.paged_attention(q, *pools, table, spans, **options), want)
        assert torch.equal(ops.paged_attention(q, *pools, table, spans, k_new=k, v_new=v, **options), want)


def test_pages_of_no_power_of_two_are_refused() -> None:
    with pytest.raises(headrace.UnsupportedError, match="pages of 3 tokens, expected a power of two"):
        ops.paged_attention(**on_gpu(attention_problem(3, torch.bfloat16, [(1, 4)], page_size=3)))


def test_fp8_pool_is_written_and_read() -> None:
    p = on_gpu(attention_problem(4, torch.bfloat16, REQUESTS["extend"], pool_dtype=torch.float8_e4m3fn))
    slots = torch.arange(p["q"].shape[0], device="cuda") + 16
    host = {name: p[name].cpu() for name in ("k_cache", "v_cache")}
    ops.store_kv(p["k_new"], p["v_new"], slots, p["k_cache"], p["v_cache"], k_scale=0.5, v_scale=2.0)
    reference.store_kv(p["k_new"].cpu(), slots.cpu(), host["k_cache"], 0.5)
    reference.store_kv(p["v_new"].cpu(), slots.cpu(), host["v_cache"], 2.0)
    for name, want in host.items():
        assert torch.equal(p[name].cpu().view(torch.uint8), want.view(torch.uint8)), name
    out = ops.paged_attention(**p)
    assert_close(out, expected_attention({k: v.cpu() for k, v in p.items()})[0], ATTENTION[torch.bfloat16])


def test_keys_stored_just_before_are_seen() -> None:
    """Spans, page table and pool are written by the kernels right before: none may be read early."""
    for seed in range(200):
        p = on_gpu(attention_problem(seed, torch.bfloat16, [(1, 255), (1, 255)]))
        k, v = torch.randn(2, 2, 2, 64, device="cuda", dtype=torch.bfloat16)
        table = p["page_table"]
        for _ in range(3):
            slots = table[:, 255 // 16].long() * 16 + 255 % 16
            ops.store_kv(k, v, slots, p["k_cache"], p["v_cache"])
            spans = ops.key_spans(
                torch.ones(2, dtype=torch.int32, device="cuda"), torch.full((2,), 256, device="cuda"), kind="none"
            )
            out = ops.paged_attention(p["q"], p["k_cache"], p["v_cache"], table, spans, max_q_len=1, max_kv_len=256)
            k, v = k + 1, v - 1
        host = {name: value.cpu() for name, value in p.items() if name not in ("k_new", "v_new")}
        assert_close(out, expected_attention({**host, "spans": spans.cpu()})[0], ATTENTION[torch.bfloat16])


def test_ops_run_on_the_current_stream() -> None:
    x, weight = torch.randn(64, 256, device="cuda"), torch.ones(256, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        ops.rms_norm(x, weight)  # the first op of a stream allocates
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        x.mul_(2)
        out = ops.rms_norm(x, weight)
        assert not side.query()  # the op did not wait
    assert torch.cuda.default_stream().query()
    side.synchronize()
    assert_close(out, reference.rms_norm(x.cpu(), weight.cpu(), 1e-6), DENSE[torch.float32])


def test_streams_do_not_share_what_kernels_work_in() -> None:
    problems = [attention_problem(seed, torch.bfloat16, [(1, 5000)] * 2, heads=8) for seed in (20, 21)]
    wanted = [expected_attention(p)[0] for p in problems]
    streams, on = [torch.cuda.Stream() for _ in problems], [on_gpu(p) for p in problems]
    torch.cuda.synchronize()
    outs: list[list[torch.Tensor]] = [[], []]
    for _ in range(50):
        for stream, arguments, out in zip(streams, on, outs, strict=True):
            with torch.cuda.stream(stream):
                out.append(ops.paged_attention(**arguments, max_q_len=1, max_kv_len=5001))
    torch.cuda.synchronize()
    for out, want in zip(outs, wanted, strict=True):
        for each in out:
            assert_close(each, want, ATTENTION[torch.bfloat16])


@pytest.mark.parametrize("warm", [True, False])
def test_a_graph_serves_other_lengths(warm: bool) -> None:
    p = on_gpu(attention_problem(5, torch.bfloat16, [(1, 10), (1, 200), (1, 63)], heads=8))
    del p["k_new"], p["v_new"]
    bounds = {"max_q_len": 1, "max_kv_len": 256}
    p["page_table"] = (torch.arange(3 * 16, dtype=torch.int32, device="cuda") % 13 + 1).reshape(3, 16)
    ctx_lens = torch.tensor([10, 200, 63], device="cuda")
    out = torch.zeros_like(p["q"])

    def step() -> None:
        spans = ops.key_spans(torch.ones(3, dtype=torch.int32, device="cuda"), ctx_lens)
        ops.paged_attention(**{**p, "spans": spans}, **bounds, out=out)

    stream = torch.cuda.Stream()
    if warm:
        with torch.cuda.stream(stream):
            step()
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    for lens in ([10, 200, 63], [255, 0, 1], [3, 3, 254]):
        ctx_lens.copy_(torch.tensor(lens))
        p["q"].normal_()
        graph.replay()
        torch.cuda.synchronize()
        host = {name: value.cpu() for name, value in p.items()}
        host["spans"] = ops.key_spans(torch.ones(3, dtype=torch.int32), torch.tensor(lens))
        assert_close(out, expected_attention(host)[0], ATTENTION[torch.bfloat16])


def test_a_graph_serves_other_splits_of_its_tokens() -> None:
    p = on_gpu(attention_problem(6, torch.bfloat16, [(20, 30), (12, 7), (0, 0)]))
    q_lens, ctx_lens = torch.tensor([20, 12, 0], device="cuda"), torch.tensor([30, 7, 0], device="cuda")
    out, state = torch.zeros_like(p["q"]), torch.zeros(4, 1, 64, 64, device="cuda")
    gates = torch.randn(2, 32, 1, device="cuda", dtype=torch.bfloat16)
    qkv, fixed = torch.randn(32, 192, device="cuda", dtype=torch.bfloat16), torch.randn(2, 1, device="cuda")
    slots = torch.tensor([[-1, 1], [-1, 2], [-1, 3]], dtype=torch.int32, device="cuda")
    gdn_out = torch.zeros(32, 1, 64, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        spans = ops.key_spans(q_lens, ctx_lens)
        ops.paged_attention(**{**p, "spans": spans}, max_q_len=32, max_kv_len=64, out=out)
        ops.gated_delta_rule(qkv, *gates, *fixed, state, spans, slots, num_k_heads=1, max_q_len=32, out=gdn_out)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for lens in ([20, 12, 0], [1, 30, 1], [10, 10, 12]):
        q_lens.copy_(torch.tensor(lens)), state.zero_()
        graph.replay()
        torch.cuda.synchronize()
        spans = ops.key_spans(q_lens.cpu(), ctx_lens.cpu())
        host = {name: value.cpu() for name, value in p.items()} | {"spans": spans}
        assert_close(out, expected_attention(host)[0], ATTENTION[torch.bfloat16])
        want_state = torch.zeros(4, 1, 64, 64).double()
        want = reference.gated_delta_rule(qkv.cpu(), *gates.cpu(), *fixed.cpu(), want_state, spans, slots.cpu(), 1)
        assert_close(gdn_out, want, GDN[torch.bfloat16])
        assert_close(state, want_state, GDN[torch.bfloat16], "state")


def test_a_capture_without_bounds_is_refused() -> None:
    p = on_gpu(attention_problem(7, torch.bfloat16, [(1, 10)]))
    ops.paged_attention(**p)
    graph = torch.cuda.CUDAGraph()
    refusal = pytest.raises(headrace.InvalidArgumentError, match="while a CUDA graph is captured, expected max_q_len")
    with refusal, torch.cuda.graph(graph):
        ops.paged_attention(**p)
    torch.cuda.synchronize()
    ops.paged_attention(**p)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dims", [(128, 128), (64, 32), (24, 40)])
def test_gated_delta_rule_is_that_of_float64(dtype: torch.dtype, dims: tuple[int, int]) -> None:
    g, (k_dim, v_dim), q_lens = generator(8), dims, [1, 70, 0, 5, 200]
    tokens, k_heads, heads = sum(q_lens), 2, 4
    p = {
        "qkv": torch.randn((tokens, 2 * k_heads * k_dim + heads * v_dim), generator=g).to(dtype),
        "a": torch.randn((tokens, heads), generator=g).to(dtype),
        "b": torch.randn((tokens, heads), generator=g).to(dtype),
        "a_log": torch.randn(heads, generator=g),
        "dt_bias": torch.randn(heads, generator=g),
        "state": torch.randn((9, heads, v_dim, k_dim), generator=g),
        "spans": ops.key_spans(torch.tensor(q_lens), 0),
        "slots": torch.tensor([[0, 0], [-1, 1], [2, 3], [3, -1], [4, 5]], dtype=torch.int32),
    }
    snapshots = [[1, 33, 6], [4, 64, 7], [4, 65, 8]]
    want_state = p["state"].double()
    want = reference.gated_delta_rule(**{**p, "state": want_state}, num_k_heads=k_heads, snapshots=snapshots)
    for bounds in ({}, {"max_q_len": 200}):
        on = on_gpu(p)
        tensor = torch.tensor(snapshots, dtype=torch.int32, device="cuda")
        out = ops.gated_delta_rule(**on, num_k_heads=k_heads, snapshots=tensor, **bounds)
        assert_close(out, want, GDN[dtype])
        assert_close(on["state"], want_state, GDN[dtype if dtype == torch.bfloat16 else torch.float32], "state")


@pytest.mark.parametrize("dtype", FLOATS)
def test_causal_conv1d_is_that_of_float64(dtype: torch.dtype) -> None:
    g, q_lens = generator(9), [1, 70, 0, 2]
    p = {
        "x": torch.randn((sum(q_lens), 136), generator=g).to(dtype),
        "weight": torch.randn((136, 4), generator=g).to(dtype),
        "state": torch.randn((6, 136, 3), generator=g).to(dtype),
        "spans": ops.key_spans(torch.tensor(q_lens), 0),
        "slots": torch.tensor([[0, 0], [-1, 1], [2, 3], [3, -1]], dtype=torch.int32),
    }
    want_state = p["state"].clone()
    want = reference.causal_conv1d(**{**p, "state": want_state}, snapshots=[[1, 2, 4]])
    for bounds in ({}, {"max_q_len": 70}):
        on = on_gpu(p)
        snapshots = torch.tensor([[1, 2, 4]], dtype=torch.int32, device="cuda")
        out = ops.causal_conv1d(**on, snapshots=snapshots, **bounds)
        assert_close(out, want, (CONV[dtype][0] + 2e-6, CONV[dtype][1] + 1e-5))
        assert torch.equal(on["state"].cpu(), want_state)


def test_updates_are_requests_of_one_token() -> None:
    g = generator(10)
    x, weight = torch.randn((3, 40), generator=g), torch.randn((40, 4), generator=g)
    slots = torch.tensor([4, -1, 2], dtype=torch.int32)
    states = [torch.randn((5, 40, 3), generator=g), torch.randn((5, 2, 8, 12), generator=g)]
    gates, fixed = torch.randn((2, 3, 2), generator=g), torch.randn((2, 2), generator=g)
    on = [s.cuda() for s in states]
    out = ops.causal_conv1d_update(x.cuda(), weight.cuda(), on[0], slots.cuda())
    assert_close(out, ops.causal_conv1d_update(x, weight, states[0], slots), (1e-5, 1e-5))
    out = ops.gated_delta_rule_update(x.cuda(), *gates.cuda(), *fixed.cuda(), on[1], slots.cuda(), num_k_heads=1)
    assert_close(out, ops.gated_delta_rule_update(x, *gates, *fixed, states[1], slots, num_k_heads=1), (2e-5, 1e-4))
    for got, want in zip(on, states, strict=True):
        assert_close(got, want, (2e-5, 1e-4), "state")


def test_rows() -> None:
    g = generator(11)
    x, weight, gate = (
        torch.randn((7, 3, 128), generator=g),
        torch.randn(128, generator=g),
        torch.randn((7, 3, 128), generator=g),
    )
    out = ops.rms_norm(x.cuda(), weight.cuda(), gate=gate.cuda())
    assert_close(out, reference.rms_norm(x, weight, 1e-6, gate), DENSE[torch.float32])
    positions, inv_freq = torch.arange(7, dtype=torch.int32) * 50, 10000.0 ** (-torch.arange(32) / 32)
    out = ops.rotary_embedding(x.cuda(), positions.cuda(), inv_freq.cuda())
    assert_close(out, reference.rotary_embedding(x, positions, inv_freq), (5e-4, 5e-4))


def test_torch_compile_sees_through() -> None:
    p = on_gpu(attention_problem(12, torch.bfloat16, REQUESTS["decode"]))

    def step(arguments: dict) -> torch.Tensor:
        return ops.paged_attention(**arguments, max_q_len=1, max_kv_len=512).float().cos()

    torch.testing.assert_close(torch.compile(step, fullgraph=True)(p), step(p))
    torch.testing.assert_close(torch.compile(step, fullgraph=True, mode="reduce-overhead")(p), step(p))


def test_tensors_of_two_devices_are_refused() -> None:
    x = torch.ones(2, 8, device="cuda")
    with pytest.raises(headrace.InvalidArgumentError, match=r"weight is on cpu, expected cuda:0"):
        ops.rms_norm(x, torch.ones(8))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_the_current_device_stays() -> None:
    x = torch.ones(2, 8, device="cuda:1")
    assert_close(ops.rms_norm(x, x[0]).cpu(), torch.ones(2, 8), (1e-5, 0))
    assert torch.cuda.current_device() == 0
    assert torch.ones(1, device="cuda").device.index == 0
