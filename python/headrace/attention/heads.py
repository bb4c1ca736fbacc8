"""Views of packed heads."""

from __future__ import annotations

import torch

from headrace.errors import InvalidArgumentError


def with_heads(x: torch.Tensor, heads: int, name: str) -> torch.Tensor:
    """Returns a view of [T, heads * dim] as [T, heads, dim], and a 3-D tensor as it is. Rows may be strided."""
    if x.dim() == 3:
        return x
    if x.dim() != 2 or x.shape[1] % heads != 0:
        raise InvalidArgumentError(
            f"{name} is {list(x.shape)}, expected [tokens, {heads} * dim] or [tokens, {heads}, dim]"
        )
    return x.view(x.shape[0], heads, x.shape[1] // heads)
