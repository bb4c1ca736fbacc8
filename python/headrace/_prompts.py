"""Prompts as people write them: texts, token ids, dicts and lists of these."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from headrace.errors import InvalidArgumentError

PromptType: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""A text; token ids; or {"prompt": text} or {"prompt_token_ids": ids}, also with a "cache_salt"."""

_EXPECTED = "a str, token ids, a dict with 'prompt' or 'prompt_token_ids', or a list of these"


class Prompt(NamedTuple):
    """One prompt: the text or the ids are None where they were not given."""

    text: str | None = None
    token_ids: list[int] | None = None
    cache_salt: str = ""


def _is_id(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _of_dict(given: Mapping[str, Any]) -> Prompt:
    unknown = set(given) - {"prompt", "prompt_token_ids", "cache_salt"}
    text, ids = given.get("prompt"), given.get("prompt_token_ids")
    if unknown or (text is None and ids is None):
        raise InvalidArgumentError(f"prompts has a dict with {', '.join(map(repr, given))}, expected {_EXPECTED}")
    if text is not None and not isinstance(text, str):
        raise InvalidArgumentError(f"prompts has a dict whose 'prompt' is {text!r}, expected a str")
    return Prompt(text, None if ids is None else [int(one) for one in ids], given.get("cache_salt") or "")


def one_prompt(given: Any) -> Prompt:
    """Returns `given` as one prompt. InvalidArgumentError if it is none."""
    if isinstance(given, str):
        return Prompt(text=given)
    if isinstance(given, Mapping):
        return _of_dict(given)
    ids = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(ids, Sequence) and not isinstance(ids, bytes) and ids and all(_is_id(one) for one in ids):
        return Prompt(token_ids=[int(one) for one in ids])
    raise InvalidArgumentError(f"prompts has {given!r}, expected {_EXPECTED}")


def all_prompts(given: Any) -> list[Prompt]:
    """Returns a prompt, or a list of prompts, as a list. InvalidArgumentError for what is neither."""
    values = given.tolist() if hasattr(given, "tolist") else given
    is_one = isinstance(values, str | Mapping) or (isinstance(values, Sequence) and values and _is_id(values[0]))
    if is_one:
        return [one_prompt(values)]
    if not isinstance(values, Sequence) or isinstance(values, bytes):
        raise InvalidArgumentError(f"prompts is {given!r}, expected {_EXPECTED}")
    return [one_prompt(value) for value in values]


def plain_messages(given: Any) -> list[dict[str, Any]]:
    """Returns a conversation whose contents are texts: those of parts are joined by line ends, as in the server.
    InvalidArgumentError for parts that are no text, and for what is no list of messages."""
    if isinstance(given, str) or not all(isinstance(one, Mapping) for one in given):
        raise InvalidArgumentError(f"messages is {given!r}, expected a list of {{'role': ..., 'content': ...}}")
    return [{**one, "content": _content(one["content"])} if "content" in one else dict(one) for one in given]


def _content(given: Any) -> Any:
    if not isinstance(given, list | tuple):
        return given
    for part in given:
        if not isinstance(part, str) and not (
            isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)
        ):
            raise InvalidArgumentError(f"a message has the part {part!r}, expected {{'type': 'text', 'text': ...}}")
    return "\n".join(part if isinstance(part, str) else part["text"] for part in given)
