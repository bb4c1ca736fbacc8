"""Key spans: which keys the tokens of each request see."""

import importlib
from typing import Any

from headrace.errors import InvalidArgumentError
from headrace.ops._tensors import torch_of

SPAN_FIELDS = (
    "q_off",
    "q_len",
    "ctx_len",
    "phys0",
    "log_shift",
    "hole_begin",
    "hole_end",
    "kind",
    "block_size",
    "prompt_len",
    "padded_prompt_len",
    "window_from",
    "page_row",
    "encoder_len",
    "encoder_page_row",
)
"""The columns of a tensor of key spans, int32 [num_requests, 15]."""

_KINDS = {"causal": 0, "block": 1, "full": 2, "prefix_full": 3, "none": 4}
_WINDOWS = {"row": 0, "segment": 1}


def _chosen(name: str, value: str, choices: dict[str, int]) -> int:
    if value not in choices:
        raise InvalidArgumentError(f"key_spans: {name} is {value!r}, expected one of {', '.join(map(repr, choices))}")
    return choices[value]


def key_spans(
    q_lens: Any,
    ctx_lens: Any,
    *,
    kind: str = "causal",
    block_size: Any = 1,
    phys0: Any = None,
    page_rows: Any = None,
    log_shift: Any = 0,
    hole: tuple[Any, Any] | None = None,
    prompt_lens: Any = None,
    padded_prompt_lens: Any = None,
    window_from: str = "row",
    encoder_lens: Any = None,
    encoder_page_rows: Any = None,
) -> Any:
    """Returns the key spans of a batch, int32 [num_requests, 15] with the columns `SPAN_FIELDS`.

    A request's keys are its readable cache, positions 0 to ctx_len - 1, followed by its q_len new tokens of this step.
    New tokens are packed: those of request 0, then those of request 1, and so on.

    An argument is an integer for all requests, or an integer tensor or list [num_requests].

    Arguments:
        q_lens: new tokens; its length is the number of requests, and its device that of the result. A list gives numpy.
        ctx_lens: cached tokens that new tokens may see.
        kind: which new tokens a new token sees, one text for all requests.
            "causal": itself and those before it.
            "block": all up to the end of its own block of `block_size` positions, counted from position 0.
            "full": all of its request.
            "prefix_full": those of the prompt see the prompt (`prompt_lens`), its padding sees the padded prompt
            (`padded_prompt_lens`), later ones see as "block". Such a prompt is one step: ctx_lens is 0.
            "none": no new tokens, only the cache.
        block_size: positions of a block.
        phys0: position of the first new token, by default ctx_lens.
        page_rows: row of the page table of each request, by default its number.
        log_shift: how much less positions behind the hole count where a window counts them.
        hole: cached positions hole[0] to hole[1] - 1 are seen by nobody.
        prompt_lens: of "prefix_full".
        padded_prompt_lens: of "prefix_full".
        window_from: where a layer's window counts back from. "row": from each token. "segment": from the first new
            token; new tokens are then not cut.
        encoder_lens: for cross-attention, the encoder's keys.
        encoder_page_rows: their row of the page table, by default that of the request.

    Nothing waits for a GPU, and torch.compile sees torch's own ops. Values are not checked here: ops on the CPU check
    them.

    Raises `InvalidArgumentError` for an unknown kind or window_from, or a q_lens that is no list or tensor [requests].
    """
    torch = torch_of(q_lens)
    lens = _array("q_lens", q_lens) if torch is None else _tensor("q_lens", q_lens, torch, q_lens)
    if lens.ndim != 1:
        raise InvalidArgumentError(f"key_spans: q_lens has shape {list(lens.shape)}, expected [num_requests]")
    begin, end = (0, 0) if hole is None else hole
    rows = _numbers(lens) if page_rows is None else page_rows
    columns = {
        "q_off": lens.cumsum(0) - lens,
        "q_len": lens,
        "ctx_len": ctx_lens,
        "phys0": ctx_lens if phys0 is None else phys0,
        "log_shift": log_shift,
        "hole_begin": begin,
        "hole_end": end,
        "kind": _chosen("kind", kind, _KINDS),
        "block_size": block_size,
        "prompt_len": 0 if prompt_lens is None else prompt_lens,
        "padded_prompt_len": 0 if padded_prompt_lens is None else padded_prompt_lens,
        "window_from": _chosen("window_from", window_from, _WINDOWS),
        "page_row": rows,
        "encoder_len": 0 if encoder_lens is None else encoder_lens,
        "encoder_page_row": rows if encoder_page_rows is None else encoder_page_rows,
    }
    return _joined(lens, columns)


# Arguments that are not called as their columns.
_ARGUMENTS = {
    "ctx_len": "ctx_lens",
    "hole_begin": "hole[0]",
    "hole_end": "hole[1]",
    "prompt_len": "prompt_lens",
    "padded_prompt_len": "padded_prompt_lens",
    "page_row": "page_rows",
    "encoder_len": "encoder_lens",
    "encoder_page_row": "encoder_page_rows",
}


_MOST = 2**31 - 1


def _not_integers(name: str, value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"key_spans: {name} is {value!r}, expected integers of 32 bits")


def _array(name: str, value: Any) -> Any:
    """Returns a list or an array as numpy's. Refuses what is no integer of 32 bits."""
    array = importlib.import_module("numpy").asarray(value)
    if array.size == 0:
        return array.astype("int32")
    if array.dtype.kind not in "iu" or array.min() < -_MOST - 1 or array.max() > _MOST:
        raise _not_integers(name, value)
    return array


def _tensor(name: str, value: Any, torch: Any, like: Any) -> Any:
    """Returns `value` as a tensor of torch. Values are not looked at."""
    tensor = torch.as_tensor(value, like)
    if not torch.is_integer(tensor) and tensor.numel() > 0:
        raise _not_integers(name, value)
    return tensor


def _numbers(lens: Any) -> Any:
    """Returns 0 to num_requests - 1."""
    torch = torch_of(lens)
    return (
        importlib.import_module("numpy").arange(lens.shape[0]) if torch is None else torch.arange(lens, lens.shape[0])
    )


def _joined(lens: Any, columns: dict[str, Any]) -> Any:
    """Returns a tensor of the library of `lens` with these columns, each an integer, a tensor or a list."""
    torch, num = torch_of(lens), lens.shape[0]
    shape = (num, len(columns))
    spans = importlib.import_module("numpy").zeros(shape, "int32") if torch is None else torch.zeros(lens, shape)
    for i, (name, value) in enumerate(columns.items()):
        argument = _ARGUMENTS.get(name, name)
        if type(value) is int:
            if not -_MOST - 1 <= value <= _MOST:
                raise _not_integers(argument, value)
            if value != 0:
                spans[:, i] = value
            continue
        column = _array(argument, value) if torch is None else _tensor(argument, value, torch, lens)
        if tuple(column.shape) not in ((), (num,)):
            raise InvalidArgumentError(f"key_spans: {argument} has shape {list(column.shape)}, expected [{num}]")
        spans[:, i] = column
    return spans
