"""Steps of block diffusion as Diffulex's runners pack them, and an oracle that asks its visibility rule key by key."""

import dataclasses
from typing import Any

import torch
from attention_reference import assert_close, attend
from headrace.diffusion import AttnMetaDataBase, FastDLLMV2AttnMetaData, MultiBlockAttnMetaData


@dataclasses.dataclass
class Packed:
    """One request's part of a step."""

    context: int  # readable cached tokens
    valid: int  # rows that count
    padding: int = 0  # rows behind them
    status: int = 1  # 0: prefill, 1: decode
    prompt: int = 0
    padded_prompt: int = 0


@dataclasses.dataclass
class Rule:
    """The flags of a step's metadata, with the tests' own reading of what they mean."""

    block: int = 4
    block_causal: bool = True
    prefix_full: bool = False
    prefix_causal: bool = False
    hole: bool = False
    cache_only: bool = False

    def sees_cached(self, request: Packed, j: int) -> bool:
        return not (self.hole and request.prompt <= j < request.padded_prompt)

    def sees_new(self, request: Packed, i: int, j: int) -> bool:
        a, b = request.context + i, request.context + j
        block_end = (a // self.block + 1) * self.block
        if self.cache_only:
            return False
        if self.prefix_causal and request.status == 0:
            return b <= a
        if self.block_causal and self.prefix_full and request.status == 0:
            if i < request.prompt:
                return j < request.prompt
            return j < request.padded_prompt if i < request.padded_prompt else b < block_end
        return b < block_end if self.block_causal else True

    def logical(self, request: Packed, position: int) -> int:
        """Windows do not count the prompt's padding."""
        after = self.hole and position >= request.prompt
        return position - (request.padded_prompt - request.prompt) if after else position

    def visible(self, request: Packed, window: int | None) -> torch.Tensor:
        """bool [valid, context + valid]"""
        c, n = request.context, request.valid
        seen = torch.zeros((n, c + n), dtype=torch.bool)
        for i in range(n):
            for j in range(c + n):
                shown = self.sees_cached(request, j) if j < c else self.sees_new(request, i, j - c)
                distance = self.logical(request, c + i) - self.logical(request, j)
                seen[i, j] = shown and (not window or distance < window)
        return seen

    def metadata(self, requests: list[Packed], **fields: Any) -> AttnMetaDataBase:
        """The same as an object of Diffulex's interface."""
        flags = {"is_block_causal": self.block_causal, "is_prefix_full": self.prefix_full}
        kind = MultiBlockAttnMetaData
        if self.cache_only:
            flags["fdv2_cache_only"], kind = True, FastDLLMV2AttnMetaData
        starts = [0]
        for request in requests:
            starts.append(starts[-1] + request.valid + request.padding)
        lens = [request.valid + request.padding for request in requests]
        return kind(
            is_prefill=[request.status == 0 for request in requests],
            cu_seqlens_q=torch.tensor(starts, dtype=torch.int32),
            cu_seqlens_k=torch.tensor(starts, dtype=torch.int32),
            max_seqlen_q=max(lens),
            max_seqlen_k=max(lens),
            context_lens=torch.tensor([request.context for request in requests], dtype=torch.int32),
            status_table=torch.tensor([request.status for request in requests], dtype=torch.int32),
            valid_slices=torch.tensor(starts[:-1], dtype=torch.int32)
            + torch.tensor([request.valid for request in requests], dtype=torch.int32),
            block_size=self.block,
            mask_prefix_hole=self.hole,
            prefix_causal=self.prefix_causal,
            prefix_lens=torch.tensor([request.prompt for request in requests], dtype=torch.int32),
            padded_prefix_lens=torch.tensor([request.padded_prompt for request in requests], dtype=torch.int32),
            **flags,
            **fields,
        )


class Cache:
    """A unified cache of one layer, [pages, page_size, heads, dim], full of NaN where nothing was written."""

    def __init__(
        self, requests: int, page_size: int, heads: int, dim: int, tokens: int, dtype: torch.dtype = torch.float32
    ) -> None:
        pages = -(-tokens // page_size)
        order = torch.randperm(requests * pages, generator=torch.Generator().manual_seed(5))
        self.page_size = page_size
        self.k = torch.full((requests * pages, page_size, heads, dim), torch.nan, dtype=dtype)
        self.v = self.k.clone()
        self.table = order.reshape(requests, pages).to(torch.int32)

    def slot(self, request: int, position: int) -> int:
        return int(self.table[request, position // self.page_size]) * self.page_size + position % self.page_size

    def write(self, request: int, position: int, k: torch.Tensor, v: torch.Tensor) -> None:
        slot = self.slot(request, position)
        self.k[slot // self.page_size, slot % self.page_size] = k
        self.v[slot // self.page_size, slot % self.page_size] = v

    def keys(self, request: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        slots = [self.slot(request, position) for position in range(tokens)]
        return self.k.flatten(0, 1)[slots], self.v.flatten(0, 1)[slots]


def check_step(
    out: torch.Tensor,
    drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    requests: list[Packed],
    rule: Rule,
    cache: Cache,
    scale: float,
    window: int | None = None,
    tolerance: float = 2e-5,
) -> None:
    """Compares every valid row with the oracle; padding rows must be zeros."""
    q, k, v = drawn
    begin = 0
    for index, request in enumerate(requests):
        rows = slice(begin, begin + request.valid)
        keys, values = cache.keys(index, request.context)
        keys, values = torch.cat((keys, k[rows])), torch.cat((values, v[rows]))
        seen = rule.visible(request, window)
        keys, values = (x.nan_to_num(0.0) for x in (keys, values))  # what no row sees
        want = attend(q[rows], keys, values, seen, scale)
        assert_close(out[rows], want.flatten(1), tolerance)
        begin += request.valid + request.padding
        assert not out[rows.stop : begin].any()


HEADS, KV_HEADS, DIM, SCALE = 4, 2, 16, 0.25

STEPS = {
    "multi_bd_prefill": (Rule(), [Packed(0, 8, 4, status=0), Packed(4, 10, status=0)]),
    "multi_bd_decode": (Rule(), [Packed(4, 8), Packed(12, 4, 4), Packed(0, 4, 4)]),
    "d2f_prefill": (Rule(prefix_full=True), [Packed(0, 12, status=0, prompt=6, padded_prompt=8)]),
    "d2f_decode": (Rule(prefix_full=True), [Packed(8, 4, 8)]),
    "d2f_both": (Rule(prefix_full=True), [Packed(0, 12, status=0, prompt=7, padded_prompt=8), Packed(8, 8)]),
    "fdv2_block": (Rule(block=8), [Packed(16, 8, status=1), Packed(8, 8, status=0)]),
    "fdv2_refine": (Rule(block=8, cache_only=True), [Packed(24, 4, status=2), Packed(16, 4, status=2)]),
    "gemma_prefill": (
        Rule(block=8, hole=True, prefix_causal=True),
        [Packed(0, 5, 3, status=0, prompt=5, padded_prompt=8), Packed(4, 6, status=0, prompt=10, padded_prompt=16)],
    ),
    "gemma_denoise": (
        Rule(block=8, hole=True, prefix_causal=True),
        [Packed(8, 8, prompt=5, padded_prompt=8), Packed(24, 8, prompt=12, padded_prompt=16)],
    ),
    "uncached": (Rule(block_causal=False), [Packed(0, 9), Packed(0, 3)]),
    "no_rows": (Rule(), [Packed(4, 0, 4), Packed(8, 4), Packed(0, 0)]),
}


def rand(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def filled(requests: list[Packed], page_size: int, rule: Rule, heads: int = KV_HEADS, dim: int = DIM) -> Cache:
    """A cache with the readable tokens of each request; NaN in the others and in the hole."""
    cache = Cache(len(requests), page_size, heads, dim, 64)
    for index, request in enumerate(requests):
        for position in range(request.context):
            if rule.sees_cached(request, position):
                k, v = rand(2, heads, dim, seed=100 * index + position)
                cache.write(index, position, k, v)
    return cache
