"""headrace.attention on a GPU: eager loops, and decode batches in real CUDA graphs."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from attention_engine import Engine, layer_of  # noqa: E402
from graph_runner import run_traffic  # noqa: E402
from hybrid_engine import Hybrid  # noqa: E402

from headrace.attention import ForwardMode  # noqa: E402

EXTEND, DECODE, MIXED, IDLE = ForwardMode

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("host_lens", [True, False], ids=["host_lens", "device_lens"])
@pytest.mark.parametrize("window", [-1, 5])
def test_engine_loop_matches_the_oracle(host_lens: bool, window: int) -> None:
    layers = [layer_of(head_dim=64, sliding_window_size=window), layer_of(head_dim=64, layer_id=1)]
    engine = Engine(layers, "cuda", torch.bfloat16)
    first, second = engine.new_request(), engine.new_request()
    engine.step(EXTEND, [first, second], [7, 3], host_lens)
    engine.step(DECODE, [first, second], [1, 1], host_lens)
    shared = engine.new_request(shared=first, prefix=6)
    engine.step(EXTEND, [shared], [1], host_lens)
    engine.step(MIXED, [shared, second, first], [4, 1, 20], host_lens)
    for _ in range(3):
        engine.step(DECODE, [shared, first, second], [1, 1, 1], host_lens)


def test_padded_replays_of_real_graphs_match_the_oracle() -> None:
    run_traffic(Hybrid(device="cuda", dtype=torch.bfloat16), sizes=[1, 2, 4, 8])


def test_decode_and_replay_do_not_wait_for_the_device() -> None:
    engine = Hybrid(device="cuda", dtype=torch.bfloat16)
    requests = [engine.start() for _ in range(3)]
    engine.step(EXTEND, requests, [5, 4, 3])
    fb = engine.batch(DECODE, requests, [1, 1, 1], host_lens=False)
    drawn = [x.to("cuda") for x in engine.draw(3)[1]]
    inputs = [x.to("cuda") for x in engine.gdn_inputs(3)]
    engine.backend.init_cuda_graph_state(4, 4)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.backend.init_forward_metadata(fb)
        engine.layers[1](*drawn, fb)
        engine.gdn_layers[0](fb, *inputs)
        rows, lens = fb.req_pool_indices, fb.seq_lens
        engine.backend.init_forward_metadata_capture_cuda_graph(3, 3, rows, lens, DECODE)
        engine.backend.init_forward_metadata_replay_cuda_graph(3, rows, lens, 15, DECODE, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
