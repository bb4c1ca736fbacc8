"""The mask function of attn_implementation="headrace": masks of padding, and a refusal of what the kernels lack."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import masking_utils
from transformers.utils import is_torchdynamo_compiling

from headrace.errors import UnsupportedError

_PACKED = "packed_sequence_mask_function.<locals>.inner_mask"
_BUILT = {
    _PACKED,  # if no sequence begins within a row
    "causal_mask_function",
    "bidirectional_mask_function",
    "sliding_window_overlay.<locals>.inner_mask",
    "and_masks.<locals>.and_mask",
    "remap_positions_for_packed_sequence.<locals>.inner_mask",
}
_NAMES = {
    "chunked_overlay.<locals>.inner_mask": "chunked attention",
    "blockwise_overlay.<locals>.inner_mask": "attention in both directions in blocks",
    "or_masks.<locals>.or_mask": "attention of some tokens in both directions",
    "sliding_window_bidirectional_overlay.<locals>.inner_mask": "a window in both directions",
}
_PACKED_SENTENCE = (
    "headrace: position_ids: without a mask and a cache a jump in positions means packed sequences, which are not "
    'built with attn_implementation="headrace"; expected positions that grow by 1 in each row'
)


def padding_mask(
    *args: Any,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Returns transformers' mask of padding, [batch, tokens], or None where all are tokens.

    Raises UnsupportedError unless `mask_function` is causal, a window or bidirectional, without packed sequences."""
    parts = _parts(mask_function)
    for name in parts:
        if name not in _BUILT:
            raise _not_built(_NAMES.get(name, f"the mask {name}"))
    if _PACKED in parts:
        _refuse_packed(parts[_PACKED][0])
    elif "causal_mask_function" in parts and not allow_is_causal_skip:
        raise _not_built("a model that reads its causal mask")
    return masking_utils.flash_attention_mask(
        *args, mask_function=mask_function, attention_mask=attention_mask, **kwargs
    )


def _not_built(what: str) -> UnsupportedError:
    return UnsupportedError(f'headrace: {what} is not built with attn_implementation="headrace"; use "sdpa"')


def _parts(mask_function: Any) -> dict[str, list[Any]]:
    """Returns the functions of which transformers composed a mask, by name, and what each holds in its closure."""
    held = [cell.cell_contents for cell in mask_function.__closure__ or ()]
    found = {mask_function.__qualname__: held}
    for value in held:
        for inner in value if isinstance(value, tuple) else (value,):
            if callable(inner) and not isinstance(inner, torch.Tensor):
                found.update(_parts(inner))
    return found


def _refuse_packed(sequence_of_token: torch.Tensor) -> None:
    """sequence_of_token: [batch, tokens], which grows by 1 where a sequence of the row begins."""
    if is_torchdynamo_compiling():  # positions without a jump come here, too: the graph checks them when it runs
        torch._assert_async((sequence_of_token[:, -1] == 0).all(), _PACKED_SENTENCE)
    elif (sequence_of_token[:, -1] != 0).any():
        raise UnsupportedError(_PACKED_SENTENCE)
