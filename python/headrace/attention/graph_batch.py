"""The key spans of captured decode batches, at one address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headrace import ops
from headrace.errors import InvalidArgumentError

if TYPE_CHECKING:
    from headrace.attention.forward_batch import ForwardMode


def check_decode_mode(forward_mode: ForwardMode) -> None:
    """Refuses modes that no graph is captured for."""
    if not forward_mode.is_decode_or_idle():
        raise InvalidArgumentError(
            f"forward_mode is {forward_mode.name}, expected DECODE or IDLE: only decode batches are captured in graphs"
        )


class GraphBatch:
    """Owns the spans of up to max_bs rows of one new token each. Graphs of all sizes read the first rows of them."""

    def __init__(self, max_bs: int, max_num_tokens: int, device: torch.device) -> None:
        if max_num_tokens < max_bs:
            raise InvalidArgumentError(
                f"init_cuda_graph_state: max_num_tokens is {max_num_tokens}, expected max_bs ({max_bs}) or more"
            )
        self.max_bs = max_bs
        with torch.inference_mode(False):  # replays may run in either mode
            ones = torch.ones(max_bs, dtype=torch.int32, device=device)
            self.spans: torch.Tensor = ops.key_spans(ones, torch.zeros_like(ones), page_rows=torch.zeros_like(ones))

    @staticmethod
    def of(batch: GraphBatch | None, bs: int, num_tokens: int) -> GraphBatch:
        """Returns `batch` after it has checked that it holds `bs` rows of one token each."""
        if batch is None:
            raise InvalidArgumentError("CUDA graphs: call init_cuda_graph_state before a capture or a replay")
        if not 1 <= bs <= batch.max_bs or num_tokens != bs:
            raise InvalidArgumentError(
                f"CUDA graphs: a batch of {bs} rows with {num_tokens} tokens, expected 1 to {batch.max_bs} rows of one "
                "token each"
            )
        return batch

    def write(self, bs: int, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        """Writes the first `bs` rows and lengths. Returns their spans. Runs on the device; nothing waits."""
        spans = self.spans[:bs]
        context = seq_lens[:bs] - 1  # the decoded token is not cached yet
        for column, values in (("ctx_len", context), ("phys0", context), ("page_row", req_pool_indices[:bs])):
            spans[:, ops.SPAN_FIELDS.index(column)].copy_(values)
        return spans
