"""headrace.attention: engine loops to pymllm's interface, compared with float64 oracles."""

import pytest

torch = pytest.importorskip("torch")

from attention_engine import Engine, layer_of  # noqa: E402

from headrace.attention import AttentionType, ForwardMode  # noqa: E402

EXTEND, DECODE, MIXED, IDLE = ForwardMode

LAYERS = {
    "plain": [layer_of()],
    "two_layers": [layer_of(), layer_of(layer_id=1)],
    "multi_head": [layer_of(num_kv_heads=4)],
    "seven_heads_per_kv_head": [layer_of(num_heads=14)],
    "window": [layer_of(sliding_window_size=3), layer_of(layer_id=1)],
    "window_of_self": [layer_of(sliding_window_size=0)],
    "cap": [layer_of(logit_cap=2.0, sliding_window_size=5)],
    "v_head_dim": [layer_of(v_head_dim=8)],
    "bidirectional": [layer_of(attn_type=AttentionType.DECODER_BIDIRECTIONAL)],
    "encoder_only": [layer_of(attn_type=AttentionType.ENCODER_ONLY)],
}


@pytest.mark.parametrize("host_lens", [True, False], ids=["host_lens", "device_lens"])
@pytest.mark.parametrize("name", LAYERS)
def test_engine_loop_matches_the_oracle(name: str, host_lens: bool) -> None:
    engine = Engine(LAYERS[name])
    first, second = engine.new_request(), engine.new_request()
    engine.step(EXTEND, [first, second], [7, 3], host_lens)
    engine.step(DECODE, [first, second], [1, 1], host_lens)
    shared = engine.new_request(shared=first, prefix=6)
    engine.step(EXTEND, [shared], [1], host_lens)  # one new token behind a prefix
    engine.step(MIXED, [shared, second, first], [4, 1, 2], host_lens)  # a decode row among extends
    engine.finish(second)
    third = engine.new_request()  # takes freed slots later
    engine.step(EXTEND, [third, first], [5, 3], host_lens)
    for _ in range(4):
        engine.step(DECODE, [shared, third, first], [1, 1, 1], host_lens)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    engine = Engine([layer_of(sliding_window_size=4), layer_of(layer_id=1)], dtype=dtype)
    requests = [engine.new_request(), engine.new_request()]
    engine.step(EXTEND, requests, [9, 2])
    engine.step(DECODE, requests, [1, 1])


def test_random_traffic_of_extends_and_decodes() -> None:
    engine = Engine([layer_of(sliding_window_size=4), layer_of(layer_id=1)])
    random = torch.Generator().manual_seed(3)
    requests = [engine.new_request() for _ in range(4)]
    for _ in range(10):
        new = torch.randint(0, 4, (4,), generator=random).tolist()
        if sum(new):
            engine.step(MIXED, requests, new)
        running = [request for request in requests if len(request)]
        engine.step(DECODE, running, [1] * len(running))


def test_batches_without_tokens() -> None:
    engine = Engine([layer_of()])
    requests = [engine.new_request(), engine.new_request()]
    engine.step(EXTEND, requests, [0, 0])
    engine.step(EXTEND, requests, [0, 2])
    engine.step(DECODE, [], [])


def test_compiled_layers_match_the_oracle() -> None:
    engine = Engine([layer_of(sliding_window_size=3)])
    engine.layers = [torch.compile(layer, fullgraph=True, backend="aot_eager") for layer in engine.layers]
    request = engine.new_request()
    with torch.no_grad():
        engine.step(EXTEND, [request], [5])
        engine.step(DECODE, [request], [1])
        engine.step(DECODE, [request], [1])


def test_idle_yields_zeros_and_stores_nothing() -> None:
    engine = Engine([layer_of()])
    request = engine.new_request()
    engine.step(EXTEND, [request], [3])
    before = engine.pool.get_key_buffer(0).clone()
    fb = engine.batch(IDLE, [], [], host_lens=True)
    engine.backend.init_forward_metadata(fb)
    for rows in (0, 2):
        q, k, v = engine.draw(rows)[0]
        out = engine.layers[0](q, k, v, fb)
        assert out.shape == (rows, 64)
        assert out.dtype == q.dtype
        assert not out.any()
    assert torch.equal(engine.pool.get_key_buffer(0), before)
