"""A decode runner with captured sizes, to pymllm's graph interface.

On a CPU a "graph" is the same forward pass, called on the captured batch. As pymllm's runner it leaves the old request
rows in the padding: only the length (the fill value) and the dummy slot mark it.
"""

import torch
from headrace.attention.hybrid_backend import HybridAttnBackend
from hybrid_engine import Hybrid

from headrace.attention import ForwardBatch, ForwardMode


class GraphRunner:
    """Captures Hybrid's layers for `sizes` and replays them for batches of any smaller size."""

    def __init__(self, engine: Hybrid, sizes: list[int]) -> None:
        self.engine, self.sizes = engine, sorted(sizes)
        self.backend: HybridAttnBackend = engine.backend
        most, device = max(sizes), engine.device
        self.backend.init_cuda_graph_state(most, most)
        self.fill = self.backend.get_cuda_graph_seq_len_fill_value()
        self.req_pool_indices = torch.zeros(most, dtype=torch.int32, device=device)
        self.seq_lens = torch.full((most,), self.fill, dtype=torch.int32, device=device)
        self.out_cache_loc = torch.zeros(most, dtype=torch.int64, device=device)
        self.inputs = [x.to(device) for x in self.draw(most)]
        self.batches: dict[int, ForwardBatch] = {}
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.outputs: dict[int, list[torch.Tensor]] = {}
        for bs in reversed(self.sizes):
            self.capture(bs)

    def draw(self, rows: int) -> list[torch.Tensor]:
        """q, k, v of the attention layer, then mixed_qkv, a, b of each GDN layer."""
        engine = self.engine
        return [x.contiguous() for x in (*engine.draw(rows)[0], *engine.gdn_inputs(rows), *engine.gdn_inputs(rows))]

    def forward(self, bs: int) -> list[torch.Tensor]:
        fb, x = self.batches[bs], [x[:bs] for x in self.inputs]
        first, second = self.engine.gdn_layers
        return [first(fb, *x[3:6]), self.engine.layers[1](*x[:3], fb), second(fb, *x[6:9])]

    def capture(self, bs: int) -> None:
        self.batches[bs] = ForwardBatch(
            forward_mode=ForwardMode.DECODE,
            batch_size=bs,
            input_ids=torch.zeros(bs, dtype=torch.int64, device=self.engine.device),
            req_pool_indices=self.req_pool_indices[:bs],
            seq_lens=self.seq_lens[:bs],
            out_cache_loc=self.out_cache_loc[:bs],
            token_to_kv_pool=self.engine.pool,
            attn_backend=self.backend,
        )
        self.backend.init_forward_metadata_capture_cuda_graph(
            bs, bs, self.req_pool_indices[:bs], self.seq_lens[:bs], ForwardMode.DECODE
        )
        if self.engine.device == "cpu":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.forward(bs)
        torch.cuda.current_stream().wait_stream(side)
        self.graphs[bs] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graphs[bs]):
            self.outputs[bs] = self.forward(bs)

    def replay(self, fb: ForwardBatch, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Runs the batch in the smallest captured size. Returns the outputs of its real rows."""
        real = fb.batch_size
        bs = next(size for size in self.sizes if size >= real)
        if bs != real:
            self.seq_lens.fill_(self.fill)
            self.out_cache_loc.zero_()
        self.req_pool_indices[:real].copy_(fb.req_pool_indices)
        self.seq_lens[:real].copy_(fb.seq_lens)
        self.out_cache_loc[:real].copy_(fb.out_cache_loc)
        for static, new in zip(self.inputs, inputs, strict=True):
            static[:real].copy_(new)
        self.backend.init_forward_metadata_replay_cuda_graph(
            bs,
            self.req_pool_indices[:bs],
            self.seq_lens[:bs],
            fb.seq_lens_sum + (bs - real) * self.fill,
            ForwardMode.DECODE,
            None,
        )
        if bs in self.graphs:
            self.graphs[bs].replay()
        else:
            self.outputs[bs] = self.forward(bs)
        return [out[:real] for out in self.outputs[bs]]


def run_traffic(engine: Hybrid, sizes: list[int]) -> None:
    """Replays batches of all sizes while requests come and go, and compares every output and state with the oracle."""
    runner = GraphRunner(engine, sizes)
    running = [engine.start() for _ in range(max(sizes))]
    engine.step(ForwardMode.EXTEND, running, [3 + i for i in range(len(running))])
    while running:
        for _ in range(2):
            fb = engine.batch(ForwardMode.DECODE, running, [1] * len(running), host_lens=True)
            inputs = runner.draw(len(running))
            first, attended, second = runner.replay(fb, inputs)
            ones = [1] * len(running)
            engine.check_gdn(engine.gdn_layers[0], first, inputs[3:6], running, ones)
            drawn = [inputs[:3]] * 3
            engine.check(attended, 1, drawn, running, ones)
            engine.check_gdn(engine.gdn_layers[1], second, inputs[6:9], running, ones)
            engine.remember(running, ones, drawn)
        running.pop(len(running) // 2)  # its row stays in the padding
