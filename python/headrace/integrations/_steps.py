"""What a forward pass is to headrace's kernels: which rows are tokens, and where their keys lie."""

import dataclasses

import torch

from headrace import ops
from headrace.errors import InvalidArgumentError

PAGE_SIZE = 64


@dataclasses.dataclass
class Rows:
    """The rows of a padded batch [batch, q_len] that are tokens."""

    batch: int
    q_len: int
    count: list[int]
    """Tokens of each sequence."""
    index: torch.Tensor | None
    """int64, which of the batch * q_len rows are tokens; None: all."""
    device: torch.device

    def packed(self, x: torch.Tensor) -> torch.Tensor:
        """The tokens of x [batch * q_len, ...], without the padding."""
        return x if self.index is None else x[self.index]

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """What `packed` took apart: [batch * q_len, ...], with zeros in the padding."""
        if self.index is None:
            return x
        rows = x.new_zeros((self.batch * self.q_len, *x.shape[1:]))
        rows[self.index] = x
        return rows

    def spans(self, ctx_lens: list[int]) -> torch.Tensor:
        """The key spans of the packed tokens, int32 [batch, 15] on the device."""
        spans = ops.key_spans(torch.tensor(self.count), torch.tensor(ctx_lens))
        return spans.to(self.device, non_blocking=True)


def rows_of(batch: int, q_len: int, mask: torch.Tensor | None, device: torch.device) -> Rows:
    """Returns the rows that are tokens. `mask`: [batch, q_len or more], True or 1 for a token, its last q_len columns
    those of the rows; None: all are tokens."""
    if mask is None:
        return Rows(batch, q_len, [q_len] * batch, None, device)
    if mask.ndim != 2 or mask.shape[0] != batch:
        raise InvalidArgumentError(
            f"headrace: attention_mask has shape {list(mask.shape)}, expected [{batch}, tokens]: a mask of padding"
        )
    is_token = mask[:, -q_len:].bool().cpu()
    count = is_token.sum(1)
    first = is_token.int().argmax(1)
    place = torch.arange(q_len)
    if not torch.equal(is_token, (place >= first[:, None]) & (place < (first + count)[:, None])):
        raise InvalidArgumentError("headrace: attention_mask has padding between tokens, expected it before or behind")
    index = is_token.flatten().nonzero()[:, 0]
    full = index.numel() == batch * q_len
    return Rows(batch, q_len, count.tolist(), None if full else index.to(device), device)


def require_batch(held: int, batch: int) -> None:
    """Raises InvalidArgumentError unless a cache of `held` sequences meets a batch of as many."""
    if held != batch:
        raise InvalidArgumentError(f"headrace: the cache holds {held} sequences, and the batch has {batch}")


@dataclasses.dataclass
class Step:
    """The keys of a forward pass in the pool."""

    rows: Rows
    end: int
    """Columns of the padded batch that the cache has seen behind this pass."""
    spans: torch.Tensor
    slots: torch.Tensor
    """int64, of each token."""
    page_table: torch.Tensor
    max_kv_len: int


class PageTable:
    """Pages of the sequences of a batch, for the pools of all layers."""

    def __init__(self) -> None:
        self.lens: list[int] = []
        self.pages: list[list[int]] = []
        self.num_pages = 0
        self.step: Step | None = None
        self.updated: int | None = None
        """The layer that got keys over which no attention ran yet."""

    def begin_step(self, rows: Rows, end: int) -> Step:
        """Returns the step that ends at column `end`, and makes room for its tokens unless another layer did."""
        if self.step is not None and self.step.end == end and self.step.rows.q_len == rows.q_len:
            return self.step
        if not self.lens:
            self.lens, self.pages = [0] * rows.batch, [[] for _ in range(rows.batch)]
        require_batch(len(self.lens), rows.batch)
        spans = rows.spans(self.lens)
        slots = torch.cat([self._append(i, count) for i, count in enumerate(rows.count)])
        self.step = Step(
            rows,
            end,
            spans,
            slots.to(rows.device, non_blocking=True),
            self._table().to(rows.device, non_blocking=True),
            max(self.lens),
        )
        return self.step

    def reorder(self, sequences: list[int]) -> list[int]:
        """Makes sequence i a copy of `sequences[i]`. Returns the page of which each page is a copy now."""
        self.lens = [self.lens[i] for i in sequences]
        copies = [self.pages[i] for i in sequences]
        source = [page for pages in copies for page in pages]
        fresh = iter(range(len(source)))
        self.pages = [[next(fresh) for _ in pages] for pages in copies]
        self.num_pages, self.step = len(source), None
        return source

    def _append(self, sequence: int, count: int) -> torch.Tensor:
        """Makes room for `count` tokens behind a sequence; returns their slots."""
        positions = torch.arange(self.lens[sequence], self.lens[sequence] + count)
        self.lens[sequence] += count
        while len(self.pages[sequence]) * PAGE_SIZE < self.lens[sequence]:
            self.pages[sequence].append(self.num_pages)
            self.num_pages += 1
        pages = torch.tensor(self.pages[sequence], dtype=torch.int64)
        return pages[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE

    def _table(self) -> torch.Tensor:
        width = max(1, max(map(len, self.pages)))
        return torch.tensor([pages + [0] * (width - len(pages)) for pages in self.pages], dtype=torch.int32)
