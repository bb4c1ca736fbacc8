"""Refusals of arguments by name, each in one sentence."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from headrace.errors import InvalidArgumentError, UnsupportedError


def drop_neutral(owner: str, given: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Returns `given` without vLLM's arguments that headrace does not have, whose values change nothing.

    `neutral`: for each of them the values that change nothing. Another value is an UnsupportedError."""
    kept = {}
    for name, value in given.items():
        if name not in neutral:
            kept[name] = value
        elif not any(value is one or (type(value) is type(one) and value == one) for one in neutral[name]):
            raise UnsupportedError(f"{owner}: {name} is {value!r}, expected {neutral[name][0]!r}: it is not supported")
    return kept


def refuse_unknown(
    owner: str, given: Mapping[str, Any], known: Collection[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Raises InvalidArgumentError for a name that is not `known`, with what to use instead.

    `elsewhere`: that of names that other engines have; for others it is the nearest one that is known."""
    for name in given:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        if elsewhere and name in elsewhere:
            advice = elsewhere[name]
        elif near:
            advice = f"did you mean '{near[0]}'?"
        else:
            advice = f"expected some of {', '.join(sorted(known))}"
        raise InvalidArgumentError(f"{owner} has no argument '{name}'; {advice}")


# vLLM's arguments of generate that headrace does not have, with values that change nothing, and what to use for others.
_NEUTRAL_IN_GENERATE: dict[str, tuple[Any, ...]] = {
    "lora_request": (None,),
    "priority": (None, 0),
    "tokenization_kwargs": (None,),
    "trace_headers": (None,),
}
_INSTEAD_IN_GENERATE = {
    **{
        name: f"SamplingParams({name}=...) has it"
        for name in ("max_tokens", "n", "seed", "stop", "temperature", "top_p")
    },
    "prompt_token_ids": "prompts takes token ids, too",
}


def refuse_in_generate(given: Mapping[str, Any]) -> None:
    """Raises UnsupportedError or InvalidArgumentError for arguments that generate does not have, unless they change
    nothing."""
    kept = drop_neutral("generate", given, _NEUTRAL_IN_GENERATE)
    refuse_unknown("generate", kept, ("prompts", "sampling_params", "use_tqdm", "request_id"), _INSTEAD_IN_GENERATE)
