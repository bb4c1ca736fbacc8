"""A model's attention layer: shapes and options, without weights or cache."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import torch

from headrace.attention.heads import with_heads
from headrace.errors import InvalidArgumentError

if TYPE_CHECKING:
    from headrace.attention.forward_batch import ForwardBatch


class AttentionType(enum.Enum):
    """What the new tokens of a layer see."""

    DECODER = "decoder"  # causal
    DECODER_BIDIRECTIONAL = "decoder_bidirectional"  # the prefix, and all new tokens in both directions
    ENCODER_ONLY = "encoder_only"  # all new tokens in both directions; no cache is read or written


class RadixAttention(torch.nn.Module):
    """One full-attention layer with pymllm's arguments.

    num_heads, num_kv_heads: after sharding; num_heads is a multiple of num_kv_heads.
    head_dim: of q and k. v_head_dim: of v; -1: head_dim.
    scaling: multiplies the scores before the softmax.
    layer_id: global layer index, the index into the KV pool. Layers with one id share K and V.
    logit_cap: scores become `logit_cap * tanh(score / logit_cap)`; 0: no cap.
    sliding_window_size: tokens that a query sees to its left, besides itself (a `sliding_window` of N in a Hugging Face
        config is N - 1 here); -1 or None: all.
    is_cross_attention: keys are the encoder's (ForwardBatch.encoder_lens), without a mask.

    `k_scale` and `v_scale` (1.0) are the factors of an FP8 pool: value = stored * scale.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        scaling: float,
        num_kv_heads: int,
        layer_id: int,
        logit_cap: float = 0.0,
        v_head_dim: int = -1,
        sliding_window_size: int | None = -1,
        is_cross_attention: bool = False,
        attn_type: AttentionType = AttentionType.DECODER,
    ) -> None:
        super().__init__()
        self.tp_q_head_num = num_heads
        self.tp_k_head_num = num_kv_heads
        self.tp_v_head_num = num_kv_heads
        self.head_dim = head_dim
        self.qk_head_dim = head_dim
        self.v_head_dim = head_dim if v_head_dim == -1 else v_head_dim
        self.scaling = scaling
        self.layer_id = layer_id
        self.logit_cap = logit_cap
        self.sliding_window_size = -1 if sliding_window_size is None else sliding_window_size
        self.is_cross_attention = is_cross_attention
        self.attn_type = AttentionType(attn_type)
        self.k_scale = 1.0
        self.v_scale = 1.0
        self._check()

    def _check(self) -> None:
        name = f"attention layer {self.layer_id}"
        if self.tp_k_head_num < 1 or self.tp_q_head_num % self.tp_k_head_num != 0:
            raise InvalidArgumentError(
                f"{name}: num_kv_heads is {self.tp_k_head_num}, expected a divisor of num_heads ({self.tp_q_head_num})"
            )
        if self.sliding_window_size < -1:
            raise InvalidArgumentError(
                f"{name}: sliding_window_size is {self.sliding_window_size}, expected 0 or more, or -1 (no window)"
            )
        if self.logit_cap < 0:
            raise InvalidArgumentError(f"{name}: logit_cap is {self.logit_cap}, expected 0 (none) or more")

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Returns the attention of the batch's tokens, [T, num_heads * v_head_dim] in q's dtype.

        q: [T, num_heads * head_dim] or 3-D. k, v: [T, num_kv_heads * dim] or 3-D; rows may be slices of a fused
        projection. Both None: all keys come from the pool.
        save_kv_cache=False: k and v are attended to, and the pool stays as it is.
        q_rope, k_rope: [T, heads * r] or 3-D (k_rope: num_kv_heads or 1 head): a term q_rope . k_rope is added to the
        scores. Then q and k have head_dim - r elements per head, and the pool holds k | k_rope.
        """
        if (k is None) != (v is None):
            given, missing = ("v", "k") if k is None else ("k", "v")
            raise InvalidArgumentError(
                f"attention layer {self.layer_id}: {given} is given and {missing} is None, expected both or neither"
            )
        if k is not None and v is not None:
            k = with_heads(k, self.tp_k_head_num, f"attention layer {self.layer_id}: k")
            v = with_heads(v, self.tp_v_head_num, f"attention layer {self.layer_id}: v")
        if forward_batch.attn_backend is None:
            raise InvalidArgumentError(
                f"attention layer {self.layer_id}: forward_batch.attn_backend is None, expected an AttentionBackend"
            )
        return forward_batch.attn_backend.forward(q, k, v, self, forward_batch, save_kv_cache, **kwargs)

    def extra_repr(self) -> str:
        """Returns the layer in one line, for print(model)."""
        text = f"layer {self.layer_id}: {self.tp_q_head_num}/{self.tp_k_head_num} heads of {self.qk_head_dim}"
        if self.v_head_dim != self.qk_head_dim:
            text += f" (v {self.v_head_dim})"
        text += f", scaling {self.scaling:.4g}, {self.attn_type.value}"
        if self.logit_cap > 0:
            text += f", cap {self.logit_cap}"
        if self.sliding_window_size >= 0:
            text += f", window {self.sliding_window_size}"
        return text
