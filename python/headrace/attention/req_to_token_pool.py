"""The request table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headrace.errors import InvalidArgumentError


class ReqToTokenPool:
    """The request table: `req_to_token[row, position]` is the KV slot of a token.

    int32 [max_reqs + 1, max_context_len], zeroed. Rows 1..max_reqs are handed out, first in, first out (pymllm hands
    out row 0, too). A freed row is zeroed, so no stale slot outlives its request.
    """

    def __init__(self, max_reqs: int, max_context_len: int, device: str | torch.device = "cuda") -> None:
        self.max_reqs = max_reqs
        self.size = max_reqs
        self.max_context_len = max_context_len
        self.device = torch.device(device)
        self.req_to_token = torch.zeros((max_reqs + 1, max_context_len), dtype=torch.int32, device=self.device)
        self.free_slots = list(range(1, max_reqs + 1))

    def available_size(self) -> int:
        """Returns the number of free rows."""
        return len(self.free_slots)

    def alloc(self, n: int = 1) -> list[int] | None:
        """Returns `n` rows, or None, without effect, if fewer are free."""
        if n > len(self.free_slots):
            return None
        rows, self.free_slots = self.free_slots[:n], self.free_slots[n:]
        return rows

    def free(self, slot: int | Sequence[int]) -> None:
        """Zeroes a row, or several, and gives them back. Refuses row 0, a row out of range and a free one."""
        rows = [slot] if isinstance(slot, int) else [int(row) for row in slot]
        for row in rows:
            if not 1 <= row <= self.max_reqs or row in self.free_slots or rows.count(row) > 1:
                raise InvalidArgumentError(
                    f"ReqToTokenPool.free: row {row} is not allocated; expected rows of alloc(), 1 to {self.max_reqs}"
                )
        self.req_to_token[rows] = 0
        self.free_slots += rows

    def write(self, index: Any, values: torch.Tensor) -> None:
        """Writes slots: `write((row, slice(begin, end)), slots)`, or any other index of `req_to_token`."""
        self.req_to_token[index] = values.to(torch.int32)

    def clear(self) -> None:
        """Frees and zeroes all rows."""
        self.req_to_token.zero_()
        self.free_slots = list(range(1, self.max_reqs + 1))
