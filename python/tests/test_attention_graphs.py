"""headrace.attention: the life of CUDA graphs, called on a CPU (tests/gpu captures real ones)."""

import pytest

torch = pytest.importorskip("torch")

from attention_engine import Engine, layer_of  # noqa: E402
from attention_reference import NothingIsReadOnTheHost  # noqa: E402
from graph_runner import GraphRunner, run_traffic  # noqa: E402
from headrace.errors import InvalidArgumentError  # noqa: E402
from hybrid_engine import Hybrid  # noqa: E402

from headrace.attention import ForwardMode  # noqa: E402

EXTEND, DECODE, MIXED, IDLE = ForwardMode


def test_padded_replays_match_the_oracle_while_requests_leave() -> None:
    run_traffic(Hybrid(), sizes=[1, 2, 4, 8])


def test_padded_replays_where_a_request_has_row_0() -> None:
    """pymllm's own request table hands it out; padding is what has the slot 0, whatever its row."""
    engine = Hybrid()
    engine.table.free_slots.insert(0, 0)
    run_traffic(engine, sizes=[1, 2, 4])


def test_replay_writes_into_the_memory_of_the_capture() -> None:
    engine = Hybrid()
    runner = GraphRunner(engine, [2, 4])
    full, gdn = engine.backend.full_attn_backend, engine.backend.gdn_backend
    spans, slots = full.forward_metadata.spans.data_ptr(), gdn.forward_metadata.slots.data_ptr()
    requests = [engine.start() for _ in range(3)]
    engine.step(EXTEND, requests, [2, 3, 4])
    fb = engine.batch(DECODE, requests, [1, 1, 1], host_lens=True)
    runner.replay(fb, runner.draw(3))
    assert full.forward_metadata.spans.data_ptr() == spans
    assert gdn.forward_metadata.slots.data_ptr() == slots
    assert gdn.forward_metadata.cache_indices.tolist()[:3] == [request.row for request in requests]
    assert gdn.forward_metadata.slots.tolist() == [*([request.row] * 2 for request in requests), [-1, -1]]


def test_capture_in_inference_mode_and_replay_outside() -> None:
    engine = Hybrid()
    rows, lens = torch.tensor([3, 1]), torch.tensor([5, 4])
    with torch.inference_mode():
        engine.backend.init_cuda_graph_state(4, 4)
        engine.backend.init_forward_metadata_capture_cuda_graph(2, 2, rows, lens, DECODE)
    engine.backend.init_forward_metadata_replay_cuda_graph(2, rows.flip(0), lens, 9, DECODE, lens)
    assert engine.backend.gdn_backend.forward_metadata.cache_indices.tolist() == [1, 3]
    assert engine.backend.full_attn_backend.forward_metadata.spans[:, 12].tolist() == [1, 3]


def test_planning_decode_and_replay_read_no_length_on_the_host() -> None:
    engine = Hybrid()
    requests = [engine.start() for _ in range(3)]
    engine.step(EXTEND, requests, [2, 3, 4])
    extend = engine.batch(EXTEND, requests, [2, 1, 2], host_lens=False)
    decode = engine.batch(DECODE, requests, [1, 1, 1], host_lens=False)
    drawn, inputs = engine.draw(3)[1], engine.gdn_inputs(3)
    engine.backend.init_cuda_graph_state(4, 4)
    rows, lens = decode.req_pool_indices, decode.seq_lens
    with NothingIsReadOnTheHost():
        with pytest.raises(AssertionError, match="an element is read on the host"):
            int(lens[0])
        engine.backend.init_forward_metadata(extend)
        engine.backend.init_forward_metadata(decode)
        engine.layers[1](*drawn, decode)
        engine.gdn_layers[0](decode, *inputs)
        engine.backend.init_forward_metadata_capture_cuda_graph(3, 3, rows, lens, DECODE)
        engine.backend.init_forward_metadata_replay_cuda_graph(3, rows, lens, 15, DECODE, None)


def test_graph_calls_reach_both_parts_of_a_hybrid() -> None:
    engine = Hybrid()
    full, gdn = engine.backend.full_attn_backend, engine.backend.gdn_backend
    rows, lens = torch.tensor([3, 1]), torch.tensor([5, 4])
    engine.backend.init_cuda_graph_state(4, 4)
    engine.backend.init_forward_metadata_capture_cuda_graph(2, 2, rows, lens, DECODE)
    assert full.forward_metadata.spans[:, 12].tolist() == gdn.forward_metadata.cache_indices.tolist() == [3, 1]
    engine.backend.init_forward_metadata_replay_cuda_graph(2, rows.flip(0), lens, 9, DECODE, lens)
    assert full.forward_metadata.spans[:, 12].tolist() == gdn.forward_metadata.cache_indices.tolist() == [1, 3]
    assert full.forward_metadata.spans[:, 2].tolist() == [4, 3]
    assert engine.backend.get_cuda_graph_seq_len_fill_value() == 1


def test_graph_calls_refuse_what_is_not_captured() -> None:
    backend = Engine([layer_of()]).backend
    rows = lens = torch.ones(4, dtype=torch.int32)
    with pytest.raises(InvalidArgumentError, match="call init_cuda_graph_state before"):
        backend.init_forward_metadata_capture_cuda_graph(2, 2, rows, lens, DECODE)
    backend.init_cuda_graph_state(4, 4)
    with pytest.raises(ValueError, match="forward_mode is EXTEND, expected DECODE or IDLE"):
        backend.init_forward_metadata_capture_cuda_graph(2, 2, rows, lens, EXTEND)
    with pytest.raises(InvalidArgumentError, match="5 rows with 5 tokens, expected 1 to 4 rows"):
        backend.init_forward_metadata_capture_cuda_graph(5, 5, rows, lens, DECODE)
    with pytest.raises(InvalidArgumentError, match="2 rows with 4 tokens"):
        backend.init_forward_metadata_capture_cuda_graph(2, 4, rows, lens, DECODE)
    backend.init_forward_metadata_capture_cuda_graph(2, 2, rows, lens, IDLE)
    with pytest.raises(InvalidArgumentError, match=r"a replay of 3 rows, captured are \[2\]"):
        backend.init_forward_metadata_replay_cuda_graph(3, rows, lens, 3, DECODE, None)
    with pytest.raises(InvalidArgumentError, match=r"99 tokens, expected at most max_context_len \(64\)"):
        backend.init_forward_metadata_replay_cuda_graph(2, rows, lens, 2, DECODE, torch.tensor([1, 99]))
