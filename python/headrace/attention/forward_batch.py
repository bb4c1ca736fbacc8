"""One step's work for a model: pymllm's ForwardMode and ForwardBatch."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from headrace.attention.attention_backend import AttentionBackend
    from headrace.attention.memory_pool import KVPool, ReqToTokenPool


class ForwardMode(enum.IntEnum):
    """The kind of a batch."""

    EXTEND = 1  # new tokens after a cached prefix, which may be empty
    DECODE = 2  # one new token per sequence
    MIXED = 3  # both kinds of rows; a decode row is an extend of one token
    IDLE = 4  # no work: outputs are zeros, nothing is stored

    def is_extend(self) -> bool:
        """True for EXTEND and MIXED."""
        return self in (ForwardMode.EXTEND, ForwardMode.MIXED)

    def is_prefill(self) -> bool:
        """The same as is_extend()."""
        return self.is_extend()

    def is_decode(self) -> bool:
        """True for DECODE only."""
        return self == ForwardMode.DECODE

    def is_mixed(self) -> bool:
        """True for MIXED only."""
        return self == ForwardMode.MIXED

    def is_idle(self) -> bool:
        """True for IDLE only."""
        return self == ForwardMode.IDLE

    def is_decode_or_idle(self) -> bool:
        """True for DECODE and IDLE."""
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)


@dataclasses.dataclass
class ForwardBatch:
    """Everything that one forward pass needs. B: sequences, T: tokens of the batch, concatenated.

    Invariants: `seq_lens = extend_prefix_lens + extend_seq_lens` in an extend; `seq_lens >= 1`; the request table has a
    slot for each of a sequence's `seq_lens` positions, and the slots of its new tokens are those of `out_cache_loc`.
    Padding rows have the slot 0 in `out_cache_loc`.
    """

    forward_mode: ForwardMode
    batch_size: int  # B
    input_ids: torch.Tensor  # int [T]
    req_pool_indices: torch.Tensor  # int32 or int64 [B]: row of the request table
    seq_lens: torch.Tensor  # int32 [B]: prefix and new tokens; the decoded token counts
    out_cache_loc: torch.Tensor  # int64 [T]: KV slot of each token; 0: the dummy slot
    seq_lens_sum: int = 0
    seq_lens_cpu: torch.Tensor | None = None  # int32 [B] on the host
    positions: torch.Tensor | None = None  # int [T]

    # EXTEND and MIXED.
    extend_num_tokens: int | None = None  # T
    extend_seq_lens: torch.Tensor | None = None  # int32 [B]: new tokens
    extend_prefix_lens: torch.Tensor | None = None  # int32 [B]: cached tokens before them
    extend_start_loc: torch.Tensor | None = None  # int32 [B]: first row of each sequence
    extend_prefix_lens_cpu: list[int] | None = None
    extend_seq_lens_cpu: list[int] | None = None

    return_logprob: bool = False
    top_logprobs_nums: list[int] | None = None

    # Set by the engine. Not owned.
    req_to_token_pool: ReqToTokenPool | None = None
    token_to_kv_pool: KVPool | None = None
    attn_backend: AttentionBackend | None = None

    mrope_position_deltas: torch.Tensor | None = None  # int64 [B]
    pixel_values: Any = None
    image_grid_thw: Any = None

    # Cross-attention (not in pymllm): rows of the request table whose first `encoder_lens` slots are the encoder's
    # tokens, and the slots of the encoder tokens of this step, whose keys a layer stores.
    encoder_lens: torch.Tensor | None = None  # int32 [B]
    encoder_req_pool_indices: torch.Tensor | None = None  # int32 or int64 [B]
    encoder_out_cache_loc: torch.Tensor | None = None  # int64 [encoder tokens]
