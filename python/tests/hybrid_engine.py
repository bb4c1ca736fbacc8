"""An engine loop over a hybrid: Gated DeltaNet layers beside attention, to pymllm's interface."""

import torch
from attention_engine import Engine, Request, layer_of
from attention_reference import assert_close, conv_silu, gated_delta_rule

from headrace.attention import ForwardMode, GDNAttnBackend, GDNPool, HybridAttnBackend, KVPool, RadixLinearAttention

K_HEADS, K_DIM, V_DIM = 2, 32, 16


class Hybrid(Engine):
    """Layers 0 and 2: Gated DeltaNet; layer 1: attention. The oracle carries each request's states."""

    def __init__(self, v_heads: int = 4, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        super().__init__([layer_of(layer_id=1)], device, dtype, max_context_len=128)
        self.channels = 2 * K_HEADS * K_DIM + v_heads * V_DIM
        self.v_heads = v_heads
        self.layers = [layer_of(layer_id=0), layer_of(layer_id=1), layer_of(layer_id=2)]
        self.pool = KVPool(200, 3, 2, 16, device, dtype, layer_ids=[1])
        self.gdn_layers = [self.gdn_layer(0, 0), self.gdn_layer(2, 1)]
        self.states = GDNPool(16, 2, v_heads, K_DIM, V_DIM, self.channels, 4, device, dtype, max_track_slots=2)
        self.backend = HybridAttnBackend(self.backend, GDNAttnBackend(self.states, device), {1})
        self.known: dict[int, list] = {}  # by row: per GDN layer (convolution's past, state)

    def gdn_layer(self, layer_id: int, index: int) -> RadixLinearAttention:
        weight = torch.nn.Parameter(self.rand(self.channels, 4).to(self.device), requires_grad=False)
        a_log = (self.rand(self.v_heads) * 0.3).float().to(self.device)
        dt_bias = self.rand(self.v_heads).float().to(self.device)
        return RadixLinearAttention(layer_id, index, K_HEADS, self.v_heads, K_DIM, V_DIM, weight, a_log, dt_bias)

    def start(self) -> Request:
        request = self.new_request()
        self.states.reset_states(torch.tensor([request.row], device=self.device))
        past, state = torch.zeros(self.channels, 3), torch.zeros(self.v_heads, V_DIM, K_DIM)
        self.known[request.row] = [(past, state), (past, state)]
        return request

    def gdn_inputs(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.rand(tokens, self.channels), self.rand(tokens, self.v_heads), self.rand(tokens, self.v_heads)

    def step(self, mode: ForwardMode, requests: list[Request], new: list[int], host_lens: bool = True) -> None:
        fb = self.batch(mode, requests, new, host_lens)
        self.backend.init_forward_metadata(fb)
        drawn = self.draw(sum(new))
        for layer in self.gdn_layers:
            x, a, b = self.gdn_inputs(sum(new))
            out = layer(fb, x.to(self.device), a.to(self.device), b.to(self.device))
            self.check_gdn(layer, out, (x, a, b), requests, new)
        out = self.layers[1](*(x.to(self.device) for x in drawn[1]), fb)
        self.check(out, 1, drawn, requests, new)
        self.remember(requests, new, drawn)

    def check_gdn(
        self, layer: RadixLinearAttention, out: torch.Tensor, inputs: tuple, requests: list[Request], new: list[int]
    ) -> None:
        x, a, b = inputs
        begin = 0
        for request, count in zip(requests, new, strict=True):
            rows = slice(begin, begin + count)
            past, state = self.known[request.row][layer.gdn_layer_idx]
            y, past = conv_silu(past, x[rows], layer.conv_weight.cpu())
            want, state = gated_delta_rule(state, y, a[rows], b[rows], layer.A_log.cpu(), layer.dt_bias.cpu(), K_HEADS)
            assert_close(out[rows].cpu(), want.flatten(1), 5 * self.tolerance)
            self.known[request.row][layer.gdn_layer_idx] = past, state
            recurrent, conv = self.states.get_layer_state(layer.gdn_layer_idx)
            assert_close(recurrent[request.row].cpu(), state, 5 * self.tolerance)
            assert_close(conv[request.row].cpu(), past, 1e-6)
            begin += count
