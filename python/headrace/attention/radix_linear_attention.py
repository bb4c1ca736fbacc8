"""A model's Gated DeltaNet layer: shapes and references to its small weights, without state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headrace.errors import InvalidArgumentError

if TYPE_CHECKING:
    from headrace.attention.forward_batch import ForwardBatch


class RadixLinearAttention(torch.nn.Module):
    """One Gated DeltaNet layer with pymllm's arguments.

    layer_id: global layer index. gdn_layer_idx: index among the GDN layers, which is that of the GDNPool.
    conv_weight: [channels, kernel], channels = 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim; the last column
        multiplies the newest token. [channels, 1, kernel], as checkpoints have it, is accepted.
    A_log, dt_bias: float32 [num_v_heads].
    """

    def __init__(
        self,
        layer_id: int,
        gdn_layer_idx: int,
        num_k_heads: int,
        num_v_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        conv_weight: torch.Tensor,
        A_log: torch.Tensor,
        dt_bias: torch.Tensor,
    ) -> None:
        super().__init__()
        if num_k_heads < 1 or num_v_heads % num_k_heads != 0:
            raise InvalidArgumentError(
                f"GDN layer {layer_id}: num_v_heads is {num_v_heads}, expected a multiple of num_k_heads "
                f"({num_k_heads})"
            )
        self.layer_id = layer_id
        self.gdn_layer_idx = gdn_layer_idx
        self.num_k_heads = num_k_heads
        self.num_v_heads = num_v_heads
        self.head_k_dim = head_k_dim
        self.head_v_dim = head_v_dim
        # References: the module that made the parameters owns them.
        self.conv_weight = conv_weight
        self.A_log = A_log
        self.dt_bias = dt_bias

    def forward(
        self, forward_batch: ForwardBatch, mixed_qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        """Runs conv1d, SiLU and the gated delta rule, and updates the states of the batch's requests.

        mixed_qkv: [T, channels], the columns q | k | v. a, b: [T, num_v_heads]. Returns [T, num_v_heads * head_v_dim].
        """
        if forward_batch.attn_backend is None:
            raise InvalidArgumentError(
                f"GDN layer {self.layer_id}: forward_batch.attn_backend is None, expected a HybridAttnBackend"
            )
        return forward_batch.attn_backend.forward_gdn(self, forward_batch, mixed_qkv, a, b)

    def extra_repr(self) -> str:
        """Returns the layer in one line, for print(model)."""
        return (
            f"layer {self.layer_id}, GDN layer {self.gdn_layer_idx}: {self.num_k_heads} heads of {self.head_k_dim}, v "
            f"{self.num_v_heads} of {self.head_v_dim}"
        )
