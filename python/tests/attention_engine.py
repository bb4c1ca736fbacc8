"""An engine loop to pymllm's interface: it allocates rows and slots, builds batches and checks every layer's output.

The oracle keeps each request's keys and values in its own list, so it knows neither pools nor tables.
"""

import dataclasses
from typing import Any

import torch
from attention_reference import assert_close, attend, causal

from headrace.attention import (
    AttentionType,
    ForwardBatch,
    ForwardMode,
    HeadraceAttnBackend,
    KVPool,
    RadixAttention,
    ReqToTokenPool,
    TokenToKVPoolAllocator,
)


@dataclasses.dataclass
class Request:
    row: int
    slots: list[int] = dataclasses.field(default_factory=list)
    keys: list[torch.Tensor] = dataclasses.field(default_factory=list)  # per token [layers, Hkv, D]
    values: list[torch.Tensor] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.slots)


class Engine:
    """Runs RadixAttention layers of one shape over random q, k and v."""

    def __init__(
        self,
        layers: list[RadixAttention],
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        max_context_len: int = 64,
    ) -> None:
        self.layers = layers
        self.device = device
        self.dtype = dtype
        first = layers[0]
        self.heads, self.kv_heads = first.tp_q_head_num, first.tp_k_head_num
        self.dim, self.v_dim = first.qk_head_dim, first.v_head_dim
        self.pool = KVPool(200, len(layers), self.kv_heads, self.dim, device, dtype, v_head_dim=self.v_dim)
        self.allocator = TokenToKVPoolAllocator(200, device)
        self.table = ReqToTokenPool(16, max_context_len, device)
        self.backend = HeadraceAttnBackend(
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.dim,
            kv_cache_dtype=dtype,
            q_dtype=dtype,
            max_context_len=max_context_len,
            req_to_token=self.table.req_to_token,
            device=device,
            max_req_pool_size=16,
        )
        self.random = torch.Generator().manual_seed(7)
        self.tolerance = 2e-5 if dtype == torch.float32 else 3e-2

    def rand(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.random).to(self.dtype)

    def new_request(self, shared: Request | None = None, prefix: int = 0) -> Request:
        """A request whose first `prefix` tokens are those of `shared`, slots included (a radix-cache hit)."""
        request = Request(self.table.alloc(1)[0])
        if shared is not None:
            request.slots = shared.slots[:prefix]
            request.keys, request.values = shared.keys[:prefix], shared.values[:prefix]
            self._write(request, 0)
        return request

    def _write(self, request: Request, begin: int) -> None:
        slots = torch.tensor(request.slots[begin:], dtype=torch.int32)
        self.table.write((request.row, slice(begin, len(request.slots))), slots.to(self.device))

    def batch(self, mode: ForwardMode, requests: list[Request], new: list[int], host_lens: bool) -> ForwardBatch:
        """Allocates slots for the new tokens and describes them as pymllm's runner does."""
        prefixes = [len(request) for request in requests]
        out_cache_loc = self.allocator.alloc(sum(new)) if sum(new) else torch.zeros(0, dtype=torch.int32)
        begin = 0
        for request, count in zip(requests, new, strict=True):
            request.slots = request.slots + out_cache_loc[begin : begin + count].tolist()
            self._write(request, len(request.slots) - count)
            begin += count
        lens = torch.tensor([len(request) for request in requests], dtype=torch.int32)
        fb = ForwardBatch(
            forward_mode=mode,
            batch_size=len(requests),
            input_ids=torch.zeros(sum(new), dtype=torch.int32, device=self.device),
            req_pool_indices=torch.tensor([r.row for r in requests], dtype=torch.int64, device=self.device),
            seq_lens=lens.to(self.device),
            out_cache_loc=out_cache_loc.to(self.device, torch.int64),
            seq_lens_sum=int(lens.sum()),
            seq_lens_cpu=lens if host_lens else None,
            token_to_kv_pool=self.pool,
            req_to_token_pool=self.table,
            attn_backend=self.backend,
        )
        if mode.is_extend():
            fb.extend_num_tokens = sum(new)
            fb.extend_seq_lens = torch.tensor(new, dtype=torch.int32, device=self.device)
            fb.extend_prefix_lens = torch.tensor(prefixes, dtype=torch.int32, device=self.device)
            fb.extend_start_loc = torch.cumsum(fb.extend_seq_lens, dim=0, dtype=torch.int32) - fb.extend_seq_lens
            if host_lens:
                fb.extend_seq_lens_cpu, fb.extend_prefix_lens_cpu = new, prefixes
        return fb

    def draw(self, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Random q, k and v of every layer, as slices of a fused projection."""
        h, g, d, e = self.heads, self.kv_heads, self.dim, self.v_dim
        fused = [self.rand(tokens, h * d + g * d + g * e) for _ in self.layers]
        return [tuple(x.split([h * d, g * d, g * e], dim=1)) for x in fused]

    def step(self, mode: ForwardMode, requests: list[Request], new: list[int], host_lens: bool = True) -> None:
        """Runs one batch through all layers and compares every output with the oracle."""
        fb = self.batch(mode, requests, new, host_lens)
        self.backend.init_forward_metadata(fb)
        drawn = self.draw(sum(new))
        for index, layer in enumerate(self.layers):
            out = layer(*(x.to(self.device) for x in drawn[index]), fb)
            self.check(out, index, drawn, requests, new)
        self.remember(requests, new, drawn)

    def check(self, out: torch.Tensor, index: int, drawn: list, requests: list[Request], new: list[int]) -> None:
        layer = self.layers[index]
        q, k, v = drawn[index]
        begin = 0
        for request, count in zip(requests, new, strict=True):
            rows = slice(begin, begin + count)
            keys = [x[index] for x in request.keys] + list(k[rows].reshape(count, self.kv_heads, self.dim))
            values = [x[index] for x in request.values] + list(v[rows].reshape(count, self.kv_heads, self.v_dim))
            if count:
                want = attend(
                    q[rows].reshape(count, self.heads, self.dim),
                    torch.stack(keys),
                    torch.stack(values),
                    self.visible(layer, len(keys) - count, count),
                    layer.scaling,
                    layer.logit_cap,
                )
                assert_close(out[rows].cpu(), want.flatten(1), self.tolerance)
            begin += count

    @staticmethod
    def visible(layer: RadixAttention, prefix: int, new: int) -> torch.Tensor:
        if layer.attn_type == AttentionType.DECODER_BIDIRECTIONAL:
            return torch.ones(new, prefix + new, dtype=torch.bool)
        if layer.attn_type == AttentionType.ENCODER_ONLY:
            return torch.arange(prefix + new).expand(new, -1) >= prefix
        return causal(prefix, new, layer.sliding_window_size)

    def remember(self, requests: list[Request], new: list[int], drawn: list) -> None:
        begin = 0
        for request, count in zip(requests, new, strict=True):
            for t in range(begin, begin + count):
                k = [x[1][t].reshape(self.kv_heads, self.dim) for x in drawn]
                v = [x[2][t].reshape(self.kv_heads, self.v_dim) for x in drawn]
                request.keys, request.values = [*request.keys, torch.stack(k)], [*request.values, torch.stack(v)]
            begin += count

    def finish(self, request: Request, keep: int = 0) -> None:
        """Frees the request and its slots but the first `keep`, which another one shares."""
        self.allocator.free(torch.tensor(request.slots[keep:], dtype=torch.int64, device=self.device))
        self.table.free(request.row)


def layer_of(**options: Any) -> RadixAttention:
    """A layer of 4 heads of 16 over 2 kv heads, with changes."""
    config = {"num_heads": 4, "head_dim": 16, "scaling": 0.25, "num_kv_heads": 2, "layer_id": 0, **options}
    return RadixAttention(**config)
