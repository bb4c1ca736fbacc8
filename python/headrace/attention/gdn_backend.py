"""The backend of Gated DeltaNet layers, over the states of a GDNPool."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from headrace import ops
from headrace.errors import InvalidArgumentError

if TYPE_CHECKING:
    from headrace.attention.forward_batch import ForwardBatch
    from headrace.attention.memory_pool import GDNPool
    from headrace.attention.radix_linear_attention import RadixLinearAttention

_NO_STATE = -1  # state slot of a padding row: nothing is read or written


@dataclasses.dataclass
class GDNForwardMetadata:
    """The plan of one batch, with pymllm's fields."""

    cache_indices: torch.Tensor  # int64 [B]: state slot of each sequence
    cu_seqlens: torch.Tensor | None = None  # int64 [B + 1]: first row of each sequence; None in a decode


@dataclasses.dataclass(kw_only=True)
class _Plan(GDNForwardMetadata):
    """The same, as the kernels read it."""

    spans: torch.Tensor  # int32 [B, 15]: ops.SPAN_FIELDS
    slots: torch.Tensor  # int32 [B, 2]: the states read and written; _NO_STATE for padding rows
    max_q_len: int = 1  # no sequence has more new tokens
    seen: set[int] = dataclasses.field(default_factory=set)  # layers of the running forward pass


class GDNAttnBackend:
    """Runs Gated DeltaNet layers and updates the states of their requests in place. A part of HybridAttnBackend.

    gdn_pool: a GDNPool. The state slot of a request is its row of the request table.
    A decode row whose `out_cache_loc` is the dummy slot 0 is padding: no state is read or written for it, whatever row
    of the request table it names.
    """

    def __init__(self, gdn_pool: GDNPool, device: str | torch.device) -> None:
        self.gdn_pool = gdn_pool
        self.device = torch.device(device)
        self.forward_metadata: _Plan | None = None
        self._graph: _Plan | None = None  # of the largest capture
        self._captured: dict[int, _Plan] = {}

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Plans the batch. Nothing waits for the device."""
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self.forward_metadata = None
            return
        indices = forward_batch.req_pool_indices.to(torch.int64)
        slots = torch.stack((indices, indices), dim=1).to(torch.int32)
        if mode.is_decode():
            self.forward_metadata = _Plan(cache_indices=indices, spans=_one_token_each(indices), slots=slots)
            return
        lens, known = forward_batch.extend_seq_lens, forward_batch.extend_seq_lens_cpu
        if lens is None or forward_batch.extend_prefix_lens is None:
            raise InvalidArgumentError(
                "GDNAttnBackend: an extend batch needs extend_seq_lens and extend_prefix_lens, found None"
            )
        self.forward_metadata = _Plan(
            cache_indices=indices,
            cu_seqlens=torch.nn.functional.pad(torch.cumsum(lens, dim=0, dtype=torch.int64), (1, 0)),
            spans=ops.key_spans(lens, forward_batch.extend_prefix_lens),
            slots=slots,
            max_q_len=max(known) if known else forward_batch.out_cache_loc.shape[0],
        )

    def forward_gdn(
        self,
        layer: RadixLinearAttention,
        forward_batch: ForwardBatch,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
    ) -> torch.Tensor:
        """Returns [T, num_v_heads * head_v_dim] in mixed_qkv's dtype; zeros for an IDLE batch."""
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return mixed_qkv.new_zeros((mixed_qkv.shape[0], layer.num_v_heads * layer.head_v_dim))
        run = self.forward_decode if mode.is_decode() else self.forward_extend
        return run(layer, forward_batch, mixed_qkv, a, b)

    def forward_decode(
        self,
        layer: RadixLinearAttention,
        forward_batch: ForwardBatch,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
    ) -> torch.Tensor:
        """Updates the states with one token per sequence."""
        self._hide_padding(self._planned(mixed_qkv.shape[0]), layer, forward_batch)
        return self._run(layer, mixed_qkv, a, b)

    def forward_extend(
        self,
        layer: RadixLinearAttention,
        forward_batch: ForwardBatch,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
    ) -> torch.Tensor:
        """Updates the states with any number of tokens per sequence; a sequence without tokens keeps its state."""
        return self._run(layer, mixed_qkv, a, b)

    def _run(
        self, layer: RadixLinearAttention, mixed_qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        plan = self._planned(None)
        recurrent, conv = self.gdn_pool.get_layer_state(layer.gdn_layer_idx)
        weight = layer.conv_weight
        weight = weight.squeeze(1) if weight.dim() == 3 else weight
        x = ops.causal_conv1d(mixed_qkv, weight, conv, plan.spans, plan.slots, max_q_len=plan.max_q_len)
        out: torch.Tensor = ops.gated_delta_rule(
            x,
            a,
            b,
            layer.A_log,
            layer.dt_bias,
            recurrent,
            plan.spans,
            plan.slots,
            num_k_heads=layer.num_k_heads,
            max_q_len=plan.max_q_len,
        )
        return out.flatten(1)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Returns the length that padding rows of a captured batch have in `seq_lens`."""
        return 1

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Allocates the state slots of `max_bs` rows, at the address that all captures read."""
        with torch.inference_mode(False):  # replays may run in either mode
            indices = torch.zeros(max_bs, dtype=torch.int64, device=self.device)
            slots = torch.full((max_bs, 2), _NO_STATE, dtype=torch.int32, device=self.device)
            self._graph = _Plan(cache_indices=indices, spans=_one_token_each(indices), slots=slots)
        self._captured = {}

    def init_forward_metadata_capture_cuda_graph(
        self, bs: int, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor
    ) -> None:
        """Plans a decode batch of `bs` rows in memory that a graph may read."""
        most = 0 if self._graph is None else len(self._graph.cache_indices)
        if self._graph is None or not 1 <= bs <= most:
            raise InvalidArgumentError(
                f"GDNAttnBackend: a capture of {bs} rows, expected 1 to the {most} of init_cuda_graph_state"
            )
        self._captured[bs] = _Plan(
            cache_indices=self._graph.cache_indices[:bs], spans=self._graph.spans[:bs], slots=self._graph.slots[:bs]
        )
        self._write_rows(bs, req_pool_indices)

    def init_forward_metadata_replay_cuda_graph(
        self, bs: int, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor
    ) -> None:
        """Writes the rows of a replay into the memory of the capture of `bs` rows. Nothing waits for the device."""
        if bs not in self._captured:
            raise InvalidArgumentError(f"GDNAttnBackend: a replay of {bs} rows, captured are {sorted(self._captured)}")
        self._write_rows(bs, req_pool_indices)

    def _write_rows(self, bs: int, req_pool_indices: torch.Tensor) -> None:
        metadata = self._captured[bs]
        metadata.cache_indices.copy_(req_pool_indices[:bs])
        metadata.slots.copy_(req_pool_indices[:bs, None])
        metadata.seen.clear()
        self.forward_metadata = metadata

    def _planned(self, rows: int | None) -> _Plan:
        metadata = self.forward_metadata
        if metadata is None:
            raise InvalidArgumentError("GDNAttnBackend: the batch is not planned; call init_forward_metadata first")
        if rows is not None and rows != len(metadata.cache_indices):
            raise InvalidArgumentError(
                f"GDNAttnBackend: mixed_qkv has {rows} rows, the planned batch has {len(metadata.cache_indices)}"
            )
        return metadata

    @staticmethod
    def _hide_padding(metadata: _Plan, layer: RadixLinearAttention, batch: ForwardBatch) -> None:
        """Sets the slots of padding rows to _NO_STATE, once per forward pass, in its first GDN layer: a captured graph
        must do it, too, and only a layer sees `out_cache_loc`. A layer that comes again begins a pass."""
        if metadata.seen and id(layer) not in metadata.seen:
            metadata.seen.add(id(layer))
            return
        metadata.seen = {id(layer)}
        if batch.out_cache_loc is None:
            return
        metadata.slots.copy_(metadata.cache_indices.masked_fill(batch.out_cache_loc == 0, _NO_STATE)[:, None])


def _one_token_each(rows: torch.Tensor) -> torch.Tensor:
    """Returns the spans of a decode batch of as many sequences as `rows` has."""
    ones = torch.ones_like(rows, dtype=torch.int32)
    spans: torch.Tensor = ops.key_spans(ones, torch.zeros_like(ones))
    return spans
