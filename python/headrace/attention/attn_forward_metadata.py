"""The plan of one batch for full attention: key spans on the device, bounds of lengths on the host."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from headrace import ops
from headrace.errors import InvalidArgumentError

if TYPE_CHECKING:
    from headrace.attention.forward_batch import ForwardBatch


@dataclasses.dataclass
class AttnForwardMetadata:
    """The plan of one batch."""

    spans: torch.Tensor  # int32 [B, 15]: ops.SPAN_FIELDS
    num_tokens: int
    max_q_len: int  # no sequence has more new tokens
    max_kv_len: int  # no sequence has more tokens
    reads_new_keys: bool  # new keys are read from k and v and not from the pool, where they are stored, too


def plan(batch: ForwardBatch, device: torch.device, max_context_len: int) -> AttnForwardMetadata:
    """Returns the plan of a batch that is not idle. Nothing is copied to the host: lengths that only the device knows
    count as max_context_len."""
    metadata = (_plan_decode if batch.forward_mode.is_decode() else _plan_extend)(batch, device, max_context_len)
    _add_encoder(metadata.spans, batch)
    return metadata


def check_length(tokens: int, max_context_len: int) -> int:
    """Returns `tokens`. Refuses a sequence that is too long for the request table."""
    if tokens > max_context_len:
        raise InvalidArgumentError(
            f"HeadraceAttnBackend: a sequence has {tokens} tokens, expected at most max_context_len ({max_context_len})"
        )
    return tokens


def _plan_decode(batch: ForwardBatch, device: torch.device, max_context_len: int) -> AttnForwardMetadata:
    longest = max_context_len
    if batch.seq_lens_cpu is not None and len(batch.seq_lens_cpu) > 0:
        longest = check_length(int(batch.seq_lens_cpu.max()), max_context_len)
    context = batch.seq_lens - 1  # the decoded token is not cached yet
    spans = ops.key_spans(torch.ones_like(context), context, page_rows=batch.req_pool_indices.to(torch.int32))
    return AttnForwardMetadata(spans, len(context), 1, longest, reads_new_keys=device.type == "cpu")


def _plan_extend(batch: ForwardBatch, device: torch.device, max_context_len: int) -> AttnForwardMetadata:
    if batch.extend_seq_lens is None or batch.extend_prefix_lens is None:
        raise InvalidArgumentError(
            "HeadraceAttnBackend: an extend batch needs extend_seq_lens and extend_prefix_lens, found None"
        )
    tokens = batch.out_cache_loc.shape[0]
    most, longest, is_cached = tokens, max_context_len, True
    new, cached = batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu
    if new and cached is not None:
        most, is_cached = max(new), any(cached)
        longest = check_length(max(n + c for n, c in zip(new, cached, strict=True)), max_context_len)
    spans = ops.key_spans(
        batch.extend_seq_lens, batch.extend_prefix_lens, page_rows=batch.req_pool_indices.to(torch.int32)
    )
    # A GPU is fastest if all keys come from one place: the pool, or the new keys where there are no others.
    return AttnForwardMetadata(spans, tokens, most, longest, reads_new_keys=device.type == "cpu" or not is_cached)


def _add_encoder(spans: torch.Tensor, batch: ForwardBatch) -> None:
    """Writes the encoder's columns of the spans, for cross-attention layers."""
    lens = getattr(batch, "encoder_lens", None)
    if lens is None:
        return
    if batch.encoder_req_pool_indices is None:
        raise InvalidArgumentError("HeadraceAttnBackend: encoder_lens is given and encoder_req_pool_indices is None")
    spans[:, ops.SPAN_FIELDS.index("encoder_len")] = lens.to(torch.int32)
    spans[:, ops.SPAN_FIELDS.index("encoder_page_row")] = batch.encoder_req_pool_indices.to(torch.int32)
