"""headrace.attention: Gated DeltaNet layers and hybrids, compared with float64 oracles."""

import pytest

torch = pytest.importorskip("torch")

from attention_reference import assert_close, gated_delta_rule  # noqa: E402
from headrace.errors import InvalidArgumentError  # noqa: E402
from hybrid_engine import V_DIM, Hybrid  # noqa: E402

from headrace.attention import ForwardBatch, ForwardMode, RadixLinearAttention  # noqa: E402

EXTEND, DECODE, MIXED, IDLE = ForwardMode


@pytest.mark.parametrize("v_heads", [2, 4, 8])
def test_hybrid_engine_loop_matches_the_oracle(v_heads: int) -> None:
    engine = Hybrid(v_heads)
    first, second = engine.start(), engine.start()
    engine.step(EXTEND, [first, second], [7, 2])  # shorter than the convolution
    engine.step(DECODE, [second, first], [1, 1])
    third = engine.start()
    engine.step(MIXED, [third, first, second], [1, 3, 1], host_lens=False)
    engine.step(EXTEND, [second, third], [70, 0])  # several chunks; no tokens
    for _ in range(3):
        engine.step(DECODE, [third, first], [1, 1], host_lens=False)


def test_prefix_hit_restores_a_snapshot() -> None:
    engine = Hybrid()
    first = engine.start()
    engine.step(EXTEND, [first], [5])
    track = engine.states.alloc_track_slot()
    engine.states.copy_states(first.row, track)
    shared = engine.new_request(shared=first, prefix=5)
    engine.states.copy_states(track, shared.row)
    engine.known[shared.row] = list(engine.known[first.row])
    engine.step(DECODE, [first], [1])
    engine.step(EXTEND, [shared], [4])
    engine.step(DECODE, [shared, first], [1, 1])


def test_oracle_gives_the_published_vector() -> None:
    qkv = [[1, 2, 0.5, 1, 1, -1, 0.5, 2], [0.5, -1, 2, 0.5, 0.25, 0.75, -1, 1], [-1, 0.25, -0.5, 1.5, 2, 0, 0, -0.5]]
    a, b = torch.tensor([[0, 1], [-0.5, 0.5], [0.3, -1]]), torch.tensor([[0, 1], [2, -1], [0.5, 0]])
    state = torch.tensor([[[0.1, 0.2], [0.3, -0.1]], [[0, 0], [0.5, 0.5]]])
    a_log, dt_bias = torch.tensor([1.0, 2.0]).log(), torch.tensor([0.1, -0.2])
    out, final = gated_delta_rule(state, torch.tensor(qkv), a, b, a_log, dt_bias, 1)
    assert_close(out[2], torch.tensor([[0.422630, -0.167964], [0.089719, -0.221329]]), 1e-6)
    assert_close(final[1], torch.tensor([[-0.136875, -0.024357], [0.294511, -0.112517]]), 1e-6)


def decode_batch(engine: Hybrid, rows: list[int], slots: list[int]) -> ForwardBatch:
    return ForwardBatch(
        forward_mode=DECODE,
        batch_size=len(rows),
        input_ids=torch.zeros(len(rows), dtype=torch.int32),
        req_pool_indices=torch.tensor(rows),
        seq_lens=torch.full((len(rows),), 2, dtype=torch.int32),
        out_cache_loc=torch.tensor(slots),
        token_to_kv_pool=engine.pool,
        attn_backend=engine.backend,
    )


def test_padding_rows_touch_no_state_even_with_the_row_of_a_live_request() -> None:
    engine = Hybrid()
    first, second = engine.start(), engine.start()
    engine.step(EXTEND, [first, second], [4, 4])
    fb = decode_batch(engine, [first.row, second.row, second.row, 0], [50, 51, 0, 0])
    engine.backend.init_forward_metadata(fb)
    dummy = engine.states.recurrent_state[:, 0].clone()
    for layer in engine.gdn_layers:
        inputs = engine.gdn_inputs(4)
        engine.check_gdn(layer, layer(fb, *inputs), inputs, [first, second], [1, 1])
    assert torch.equal(engine.states.recurrent_state[:, 0], dummy)


def test_idle_yields_zeros() -> None:
    engine = Hybrid()
    fb = engine.batch(IDLE, [], [], host_lens=True)
    engine.backend.init_forward_metadata(fb)
    for rows in (0, 3):
        out = engine.gdn_layers[0](fb, *engine.gdn_inputs(rows))
        assert out.shape == (rows, 4 * V_DIM)
        assert not out.any()


def test_layers_of_the_wrong_kind_are_refused() -> None:
    engine = Hybrid()
    fb = engine.batch(EXTEND, [engine.start()], [2], host_lens=True)
    inputs = engine.gdn_inputs(2)
    with pytest.raises(InvalidArgumentError, match="not planned; call init_forward_metadata first"):
        engine.gdn_layers[0](fb, *inputs)
    engine.backend.init_forward_metadata(fb)
    with pytest.raises(InvalidArgumentError, match="layer 0 is a GDN layer, but was called for full attention"):
        engine.layers[0](*engine.draw(2)[0], fb)
    with pytest.raises(InvalidArgumentError, match="layer 1 is a full-attention layer, but was called for GDN"):
        engine.gdn_layer(1, 0)(fb, *inputs)
    fb.attn_backend = None
    with pytest.raises(InvalidArgumentError, match="attn_backend is None, expected a HybridAttnBackend"):
        engine.gdn_layers[0](fb, *inputs)
    fb.extend_seq_lens = None
    with pytest.raises(InvalidArgumentError, match="GDNAttnBackend: an extend batch needs extend_seq_lens"):
        engine.backend.gdn_backend.init_forward_metadata(fb)
    with pytest.raises(InvalidArgumentError, match="num_v_heads is 3, expected a multiple of num_k_heads"):
        RadixLinearAttention(0, 0, 2, 3, 8, 8, torch.zeros(1, 4), torch.zeros(3), torch.zeros(3))


def test_compiled_layers_match_the_oracle() -> None:
    engine = Hybrid()
    engine.gdn_layers = [torch.compile(layer, backend="aot_eager") for layer in engine.gdn_layers]
    requests = [engine.start(), engine.start()]
    with torch.no_grad():
        engine.step(EXTEND, requests, [5, 2])
        for _ in range(3):
            engine.step(DECODE, requests, [1, 1])
        engine.step(EXTEND, requests[:1], [3])
