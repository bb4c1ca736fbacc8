"""headrace.attention: options of RadixAttention, the interface of backends, refusals."""

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attention_engine import Engine, layer_of  # noqa: E402
from attention_reference import assert_close, attend, causal  # noqa: E402
from headrace.errors import InvalidArgumentError, UnsupportedError  # noqa: E402

import headrace.attention as ha  # noqa: E402
from headrace.attention import ForwardMode, RadixAttention  # noqa: E402

EXTEND, DECODE, MIXED, IDLE = ForwardMode


@pytest.mark.parametrize("mode", [EXTEND, DECODE])
def test_unsaved_keys_are_seen_and_the_pool_stays(mode: ForwardMode) -> None:
    engine = Engine([layer_of()])
    request = engine.new_request()
    engine.step(EXTEND, [request], [5])
    new = [1] if mode == DECODE else [3]
    fb = engine.batch(mode, [request], new, host_lens=True)
    engine.backend.init_forward_metadata(fb)
    before = [x.clone() for x in engine.pool.get_kv_buffer(0)]
    drawn = engine.draw(sum(new))
    out = engine.layers[0](*drawn[0], fb, save_kv_cache=False)
    engine.check(out, 0, drawn, [request], new)
    assert all(torch.equal(x, y) for x, y in zip(engine.pool.get_kv_buffer(0), before, strict=True))


@pytest.mark.parametrize("mode", [EXTEND, DECODE])
def test_layer_without_keys_reads_those_of_the_pool(mode: ForwardMode) -> None:
    engine = Engine([layer_of()])
    request, other = engine.new_request(), engine.new_request()
    engine.step(EXTEND, [request, other], [5, 2])
    new = [1, 1] if mode == DECODE else [3, 2]
    fb = engine.batch(mode, [request, other], new, host_lens=True)
    engine.backend.init_forward_metadata(fb)
    drawn = engine.draw(sum(new))
    engine.layers[0](*drawn[0], fb)
    q = engine.rand(sum(new), 64)
    drawn[0] = (q, *drawn[0][1:])
    out = engine.layers[0](q, None, None, fb)
    engine.check(out, 0, drawn, [request, other], new)


def test_rope_parts_add_a_term_to_the_scores() -> None:
    engine = Engine([layer_of(head_dim=16, v_head_dim=8)])
    request = engine.new_request()
    engine.step(EXTEND, [request], [4])
    fb = engine.batch(EXTEND, [request], [3], host_lens=True)
    engine.backend.init_forward_metadata(fb)
    q, k, v = engine.draw(3)[0]
    q, k = q.reshape(3, 4, 16), k.reshape(3, 2, 16)
    k_rope = k[:, :1, 12:]  # one head for all
    whole = torch.cat((k[:, :, :12], k_rope.expand(-1, 2, -1)), dim=-1)
    out = engine.layers[0](
        q[:, :, :12].reshape(3, 48),
        k[:, :, :12].reshape(3, 24),
        v,
        fb,
        q_rope=q[:, :, 12:],
        k_rope=k_rope.reshape(3, 4),
    )
    engine.check(out, 0, [(q.reshape(3, 64), whole.reshape(3, 32), v)], [request], [3])
    stored = engine.pool.get_key_buffer(0)[request.slots[4:]]
    assert torch.equal(stored, whole)


def test_cross_attention_sees_every_encoder_token() -> None:
    engine = Engine([layer_of(), layer_of(layer_id=1, is_cross_attention=True)])
    layer = engine.layers[1]
    request, encoder = engine.new_request(), engine.new_request()
    keys, values = engine.rand(6, 2, 16), engine.rand(6, 2, 16)
    encoder.slots = engine.allocator.alloc(6).tolist()
    engine._write(encoder, 0)
    for mode, new, with_keys in ((EXTEND, 3, True), (DECODE, 1, False)):
        fb = engine.batch(mode, [request], [new], host_lens=True)
        fb.encoder_lens = torch.tensor([6], dtype=torch.int32)
        fb.encoder_req_pool_indices = torch.tensor([encoder.row])
        fb.encoder_out_cache_loc = torch.tensor(encoder.slots)
        engine.backend.init_forward_metadata(fb)
        q = engine.rand(new, 64)
        out = layer(q, keys.reshape(6, 32), values.reshape(6, 32), fb) if with_keys else layer(q, None, None, fb)
        want = attend(q.reshape(new, 4, 16), keys, values, torch.ones(new, 6, dtype=torch.bool), layer.scaling)
        assert_close(out, want.reshape(new, -1))
    with pytest.raises(UnsupportedError, match="cross-attention with save_kv_cache=False"):
        layer(q, q[:, :32], q[:, :32], fb, save_kv_cache=False)


def test_published_vector_of_the_attention_formula() -> None:
    """Query (1, 0.5) at position 3, four keys of one head, scale 2^-0.5."""
    keys = torch.tensor([[0.2, 0.1], [1.0, -1.0], [0.3, 0.9], [2.0, 0.0]])
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [-1.0, 0.5]])
    cases = [({}, (0.056831, 0.816079)), ({"sliding_window_size": 1}, (-0.122879, 0.938561))]
    cases.append(({"logit_cap": 2.0}, (0.152730, 0.843099)))
    for options, want in cases:
        layer = RadixAttention(1, 2, 2**-0.5, 1, 0, **options)
        engine = Engine([layer])
        request = engine.new_request()
        fb = engine.batch(EXTEND, [request], [4], host_lens=True)
        engine.backend.init_forward_metadata(fb)
        q = torch.tensor([[0.0, 0.0]] * 3 + [[1.0, 0.5]])
        assert_close(layer(q, keys, values, fb)[3], torch.tensor(want), 1e-6)


def test_float8_pool_divides_and_multiplies_by_the_scales() -> None:
    layer = layer_of()
    layer.k_scale, layer.v_scale = 0.5, 2.0
    engine = Engine([layer])
    engine.pool = ha.KVPool(50, 1, 2, 16, "cpu", torch.float8_e4m3fn)
    request = engine.new_request()
    fb = engine.batch(EXTEND, [request], [4], host_lens=True)
    engine.backend.init_forward_metadata(fb)
    q, k, v = engine.draw(4)[0]
    layer(q, k, v, fb)
    fb = engine.batch(DECODE, [request], [1], host_lens=True)
    engine.backend.init_forward_metadata(fb)
    q1, k1, v1 = engine.draw(1)[0]
    out = layer(q1, k1, v1, fb)

    def stored(x: torch.Tensor, scale: float) -> torch.Tensor:
        return ((x / scale).to(torch.float8_e4m3fn).float() * scale).reshape(-1, 2, 16)

    keys, values = stored(torch.cat((k, k1)), 0.5), stored(torch.cat((v, v1)), 2.0)
    want = attend(q1.reshape(1, 4, 16), keys, values, causal(4, 1), layer.scaling)
    assert_close(out, want.reshape(1, -1))


def test_python_subclass_of_the_interface() -> None:
    class Mean(ha.AttentionBackend):
        """Every token yields the mean of its sequence's new values."""

        def init_forward_metadata(self, forward_batch: ha.ForwardBatch) -> None:
            self.planned = forward_batch

        def forward_extend(
            self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *, save_kv_cache: bool, q_rope: Any
        ) -> Any:
            assert self.planned is forward_batch
            assert save_kv_cache
            assert q_rope is None
            return v.mean(dim=0).repeat_interleave(2, dim=0).reshape(1, -1).expand(q.shape[0], -1)

        def forward_decode(self, q: Any, k: Any, v: Any, *rest: Any, **kwargs: Any) -> Any:
            return v.repeat_interleave(2, dim=1).reshape(q.shape[0], -1)

    engine = Engine([layer_of()])
    engine.backend = Mean()
    q, k, v = engine.draw(3)[0]
    fb = engine.batch(EXTEND, [engine.new_request()], [3], host_lens=True)
    fb.attn_backend.init_forward_metadata(fb)
    out = engine.layers[0](q, k, v, fb, q_rope=None)
    assert_close(out[2].reshape(4, 16)[1], v.reshape(3, 2, 16)[:, 0].mean(dim=0), 1e-6)
    fb.forward_mode = DECODE
    assert torch.equal(engine.layers[0](q, k, v, fb)[:, :16], v[:, :16])
    with pytest.raises(UnsupportedError, match="Mean supports no CUDA graphs"):
        engine.backend.init_cuda_graph_state(4, 4)
    with pytest.raises(NotImplementedError, match="Mean runs no Gated DeltaNet layers; use HybridAttnBackend"):
        engine.backend.forward_gdn(None, fb, q, k, v)


def test_abstract_methods_are_pymllms() -> None:
    abstract = {"init_forward_metadata", "forward_decode", "forward_extend"}
    assert ha.AttentionBackend.__abstractmethods__ == abstract


def test_refusals_say_what_was_expected_and_found() -> None:
    engine = Engine([layer_of()])
    layer = engine.layers[0]
    fb = engine.batch(EXTEND, [engine.new_request()], [3], host_lens=True)
    q, k, v = engine.draw(3)[0]
    with pytest.raises(InvalidArgumentError, match="k is given and v is None, expected both or neither"):
        layer(q, k, None, fb)
    with pytest.raises(InvalidArgumentError, match="v is given and k is None"):
        layer(q, None, v, fb)
    with pytest.raises(InvalidArgumentError, match="not planned; call init_forward_metadata first"):
        layer(q, k, v, fb)
    engine.backend.init_forward_metadata(fb)
    with pytest.raises(InvalidArgumentError, match="q has 2 rows, the planned batch has 3"):
        layer(q[:2], k[:2], v[:2], fb)
    with pytest.raises(InvalidArgumentError, match="q has 4 heads of 12, expected 4 of 16"):
        layer(q[:, :48], k, v, fb)
    with pytest.raises(InvalidArgumentError, match=r"layer 0: q is \[3, 63\], expected \[tokens, 4 \* dim\]"):
        layer(q[:, :63], k, v, fb)
    missing = dataclasses.replace(fb, attn_backend=None)
    with pytest.raises(InvalidArgumentError, match=r"layer 0: forward_batch\.attn_backend is None, expected an Att"):
        layer(q, k, v, missing)
    missing = dataclasses.replace(fb, token_to_kv_pool=None)
    with pytest.raises(InvalidArgumentError, match=r"token_to_kv_pool is None, expected a KVPool"):
        layer(q, k, v, missing)
    with pytest.raises(InvalidArgumentError, match="encoder keys are given and encoder_out_cache_loc is None"):
        layer_of(is_cross_attention=True)(q, k, v, fb)
    missing = dataclasses.replace(fb, encoder_lens=torch.tensor([3]))
    with pytest.raises(InvalidArgumentError, match="encoder_lens is given and encoder_req_pool_indices is None"):
        engine.backend.init_forward_metadata(missing)
    missing = dataclasses.replace(fb, extend_seq_lens=None)
    with pytest.raises(InvalidArgumentError, match="needs extend_seq_lens and extend_prefix_lens, found None"):
        engine.backend.init_forward_metadata(missing)
    with pytest.raises(InvalidArgumentError, match="layer 5 has no K and V here"):
        layer_of(layer_id=5)(q, k, v, fb)
    with pytest.raises(InvalidArgumentError, match="num_kv_heads is 3, expected a divisor of num_heads"):
        layer_of(num_kv_heads=3)
    fb.seq_lens_cpu, fb.forward_mode = torch.tensor([65]), DECODE
    with pytest.raises(
        InvalidArgumentError, match=r"a sequence has 65 tokens, expected at most max_context_len \(64\)"
    ):
        engine.backend.init_forward_metadata(fb)


def test_forward_modes_are_pymllms() -> None:
    assert [int(mode) for mode in ForwardMode] == [1, 2, 3, 4]
    assert [mode.is_extend() for mode in ForwardMode] == [True, False, True, False]
    assert [mode.is_prefill() for mode in ForwardMode] == [True, False, True, False]
    assert [mode.is_decode() for mode in ForwardMode] == [False, True, False, False]
    assert [mode.is_mixed() for mode in ForwardMode] == [False, False, True, False]
    assert [mode.is_idle() for mode in ForwardMode] == [False, False, False, True]
    assert [mode.is_decode_or_idle() for mode in ForwardMode] == [False, True, False, True]
