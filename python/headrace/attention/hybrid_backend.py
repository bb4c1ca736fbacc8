"""The backend of hybrid models: full attention in some layers, Gated DeltaNet in the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from headrace.attention.attention_backend import AttentionBackend
from headrace.errors import InvalidArgumentError

if TYPE_CHECKING:
    from headrace.attention.forward_batch import ForwardBatch, ForwardMode
    from headrace.attention.gdn_backend import GDNAttnBackend
    from headrace.attention.radix_attention import RadixAttention
    from headrace.attention.radix_linear_attention import RadixLinearAttention


class HybridAttnBackend(AttentionBackend):
    """Routes layers: RadixAttention to `full_attn_backend`, RadixLinearAttention to `gdn_backend`. Metadata and graph
    calls go to both, full attention first.

    full_attn_layer_ids: global ids of the full-attention layers. A layer of the wrong kind is refused.
    """

    def __init__(
        self, full_attn_backend: AttentionBackend, gdn_backend: GDNAttnBackend, full_attn_layer_ids: Iterable[int]
    ) -> None:
        self.full_attn_backend = full_attn_backend
        self.gdn_backend = gdn_backend
        self.full_attn_layer_ids = set(full_attn_layer_ids)

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Plans the batch in both backends."""
        self.full_attn_backend.init_forward_metadata(forward_batch)
        self.gdn_backend.init_forward_metadata(forward_batch)

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
        """Calls the full-attention backend. Refuses a GDN layer."""
        self._check_full(layer.layer_id)
        return self.full_attn_backend.forward_decode(
            q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs
        )

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
        """Calls the full-attention backend. Refuses a GDN layer."""
        self._check_full(layer.layer_id)
        return self.full_attn_backend.forward_extend(
            q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs
        )

    def forward_gdn(
        self,
        layer: RadixLinearAttention,
        forward_batch: ForwardBatch,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
    ) -> torch.Tensor:
        """Calls the GDN backend. Refuses a full-attention layer."""
        if layer.layer_id in self.full_attn_layer_ids:
            raise InvalidArgumentError(
                f"HybridAttnBackend: layer {layer.layer_id} is a full-attention layer, but was called for GDN"
            )
        return self.gdn_backend.forward_gdn(layer, forward_batch, mixed_qkv, a, b)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Returns that of the full-attention backend."""
        return self.full_attn_backend.get_cuda_graph_seq_len_fill_value()

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Allocates the state of both backends."""
        self.full_attn_backend.init_cuda_graph_state(max_bs, max_num_tokens)
        self.gdn_backend.init_cuda_graph_state(max_bs, max_num_tokens)

    def init_forward_metadata_capture_cuda_graph(
        self,
        bs: int,
        num_tokens: int,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        forward_mode: ForwardMode,
    ) -> None:
        """Plans the capture in both backends."""
        self.full_attn_backend.init_forward_metadata_capture_cuda_graph(
            bs, num_tokens, req_pool_indices, seq_lens, forward_mode
        )
        self.gdn_backend.init_forward_metadata_capture_cuda_graph(bs, req_pool_indices, seq_lens)

    def init_forward_metadata_replay_cuda_graph(
        self,
        bs: int,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_sum: int,
        forward_mode: ForwardMode,
        seq_lens_cpu: torch.Tensor | None,
    ) -> None:
        """Writes the replay's rows and lengths in both backends."""
        self.full_attn_backend.init_forward_metadata_replay_cuda_graph(
            bs, req_pool_indices, seq_lens, seq_lens_sum, forward_mode, seq_lens_cpu
        )
        self.gdn_backend.init_forward_metadata_replay_cuda_graph(bs, req_pool_indices, seq_lens)

    def _check_full(self, layer_id: int) -> None:
        if layer_id not in self.full_attn_layer_ids:
            raise InvalidArgumentError(
                f"HybridAttnBackend: layer {layer_id} is a GDN layer, but was called for full attention"
            )
