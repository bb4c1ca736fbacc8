"""The interface of attention backends, with pymllm's methods and argument lists."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import UnsupportedError

if TYPE_CHECKING:
    from headrace.attention.forward_batch import ForwardBatch, ForwardMode
    from headrace.attention.radix_attention import RadixAttention
    from headrace.attention.radix_linear_attention import RadixLinearAttention


class AttentionBackend(abc.ABC):
    """Attention over one ragged batch. The engine makes one; layers reach it through `forward_batch.attn_backend`.

    Not thread-safe: one backend serves one engine. A subclass defines init_forward_metadata, forward_extend and
    forward_decode; the graph methods only if it can be captured in CUDA graphs.
    """

    @abc.abstractmethod
    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Plans the batch. Call once per batch, before its first layer."""

    @abc.abstractmethod
    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attends with one new token per sequence. Returns [B, num_heads * v_head_dim] in q's dtype."""

    @abc.abstractmethod
    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attends with any number of new tokens per sequence. Returns [T, num_heads * v_head_dim] in q's dtype."""

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Calls forward_decode for DECODE and forward_extend for EXTEND and MIXED. An IDLE batch yields zeros: no
        kernel runs and nothing is stored; q may have no rows."""
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return q.new_zeros((q.shape[0], layer.tp_q_head_num * layer.v_head_dim))
        run = self.forward_decode if mode.is_decode() else self.forward_extend
        return run(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)

    def forward_gdn(
        self,
        layer: RadixLinearAttention,
        forward_batch: ForwardBatch,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
    ) -> torch.Tensor:
        """Runs one Gated DeltaNet layer. Only HybridAttnBackend can."""
        raise UnsupportedError(f"{type(self).__name__} runs no Gated DeltaNet layers; use HybridAttnBackend")

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Returns the length that padding rows of a captured batch have in `seq_lens`."""
        raise self._no_graphs("get_cuda_graph_seq_len_fill_value")

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Allocates what captures share. Call once, before the first capture."""
        raise self._no_graphs("init_cuda_graph_state")

    def init_forward_metadata_capture_cuda_graph(
        self,
        bs: int,
        num_tokens: int,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        forward_mode: ForwardMode,
    ) -> None:
        """Plans a decode batch of `bs` rows in memory that a graph may read. Call before the capture begins."""
        raise self._no_graphs("init_forward_metadata_capture_cuda_graph")

    def init_forward_metadata_replay_cuda_graph(
        self,
        bs: int,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_sum: int,
        forward_mode: ForwardMode,
        seq_lens_cpu: torch.Tensor | None,
    ) -> None:
        """Writes the rows and lengths of a replay into the memory of the capture of `bs` rows."""
        raise self._no_graphs("init_forward_metadata_replay_cuda_graph")

    def _no_graphs(self, method: str) -> UnsupportedError:
        return UnsupportedError(f"{type(self).__name__} supports no CUDA graphs: it does not define {method}")
