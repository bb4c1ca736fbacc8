"""headrace.diffusion on a GPU: steps of every kind, eager and in a real CUDA graph."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import headrace.diffusion as hd  # noqa: E402
from diffusion_engine import STEPS, Packed, Rule, check_step, filled, rand  # noqa: E402

pytestmark = pytest.mark.gpu

HEADS, KV_HEADS, DIM, SCALE, TOLERANCE = 4, 2, 64, 0.125, 3e-2


def on_gpu(metadata: hd.AttnMetaDataBase) -> hd.AttnMetaDataBase:
    for name, value in list(vars(metadata).items()):
        if isinstance(value, torch.Tensor):
            setattr(metadata, name, value.cuda())
    return metadata


def draw(total: int) -> tuple[torch.Tensor, ...]:
    shapes = ((total, HEADS, DIM), (total, KV_HEADS, DIM), (total, KV_HEADS, DIM))
    return tuple(rand(*shape, seed=i).bfloat16() for i, shape in enumerate(shapes))


@pytest.mark.parametrize("impl", ["naive", "triton", "triton_grouped"])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("name", STEPS)
def test_step_matches_the_oracle(name: str, window: int | None, impl: str) -> None:
    rule, requests = STEPS[name]
    page_size = max(8, rule.block)
    cache = filled(requests, page_size, rule, KV_HEADS, DIM)
    cache.k, cache.v = cache.k.bfloat16(), cache.v.bfloat16()
    metadata = on_gpu(rule.metadata(requests, page_tables=cache.table, page_size=page_size))
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    layer = hd.Attention(HEADS, DIM, SCALE, KV_HEADS, impl, window)
    layer.k_cache, layer.v_cache = cache.k.cuda(), cache.v.cuda()
    drawn = draw(sum(request.valid + request.padding for request in requests))
    out = layer(*(x.cuda() for x in drawn)).cpu()
    check_step(out, drawn, requests, rule, cache, SCALE, window, TOLERANCE)


def test_replays_of_a_graph_read_the_lengths_of_their_time() -> None:
    """The metadata's tensors change between replays; the graph has made its key spans of them."""
    rule = Rule()
    cache = filled([Packed(24, 8)] * 2, 8, rule, KV_HEADS, DIM)
    cache.k, cache.v = cache.k.bfloat16(), cache.v.bfloat16()
    metadata = on_gpu(rule.metadata([Packed(8, 8), Packed(8, 8)], page_tables=cache.table, page_size=8))
    hd.set_fetch_fn_for_attn_metadata(lambda: metadata)
    layers = [hd.Attention(HEADS, DIM, SCALE, KV_HEADS) for _ in range(2)]
    for layer in layers:
        layer.k_cache, layer.v_cache = cache.k.cuda(), cache.v.cuda()
    drawn = draw(16)
    static = [x.cuda() for x in drawn]
    hd.set_warming_up()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for layer in layers:
            layer(*static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [layer(*static) for layer in layers]
    hd.reset_warming_up()
    for requests in ([Packed(24, 8), Packed(4, 4, 4)], [Packed(0, 8), Packed(16, 8)]):
        changed = on_gpu(rule.metadata(requests))
        for name in ("context_lens", "valid_slices", "status_table"):
            getattr(metadata, name).copy_(getattr(changed, name))
        graph.replay()
        for out in outs:
            check_step(out.cpu(), drawn, requests, rule, cache, SCALE, None, TOLERANCE)
    # A batch of one request in the graph of two, as Diffulex's static runner describes it.
    for name, values in (("cu_seqlens_q", [0, 8, 8]), ("valid_slices", [8, 0]), ("context_lens", [16, 0])):
        getattr(metadata, name).copy_(torch.tensor(values))
    graph.replay()
    for out in outs:
        check_step(out[:8].cpu(), [x[:8] for x in drawn], [Packed(16, 8)], rule, cache, SCALE, None, TOLERANCE)
        assert not out[8:].any()
