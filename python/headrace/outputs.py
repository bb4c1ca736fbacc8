"""What a request gives, by vLLM's names."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class Logprob:
    """A token's natural log-probability in the model's distribution: before temperature, filters and penalties."""

    logprob: float
    rank: int | None = None
    """1: the likeliest token of its place; None: it is not among those that were asked for."""
    decoded_token: str | None = None


@dataclasses.dataclass
class RequestMetrics:
    """Times in seconds since 1970, and the passes of the model."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    num_forwards: int = 0
    """Forward passes that chose tokens, of all answers; a diffusion model may choose several tokens in one."""


@dataclasses.dataclass
class Step:
    """A step of the engine in which a request took part (SamplingParams.trace)."""

    step: int
    context_len: int
    first_position: int
    num_rows: int
    stored: tuple[int, int]
    blocks: list[tuple[int, int, str, int]]
    """(begin, end, "active" or "to_cache", undecided tokens) of the blocks in flight when the step began."""
    decided: list[tuple[int, int, float]]
    """(position, token id, confidence) of the tokens that the step decided or changed."""
    pending: list[tuple[int, int, float] | None]
    """Positions that are not final, in order; None: undecided."""


@dataclasses.dataclass
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    """For each token: itself and the likeliest in its place, if they were asked for."""
    finish_reason: str | None = None
    """"stop", "length", "abort"; None: there is more to come."""
    stop_reason: str | int | None = None
    """The stop text or the token of stop_token_ids that ended the answer."""
    seed: int | None = None
    """What the tokens were drawn with."""
    steps: list[Step] | None = None

    def finished(self) -> bool:
        """Returns True if nothing more comes."""
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestOutput:
    """A prompt and its answers. str() of it is the text: the prompt and what goes on behind it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    """Tokens of the prompt that came from the prefix cache."""

    def __str__(self) -> str:
        return "\n".join(f"{self.prompt or ''}{output.text}" for output in self.outputs)


class RequestOutputs(list[RequestOutput]):
    """What LLM.generate returns: a list, whose str() is the texts with empty lines between them."""

    def __str__(self) -> str:
        return "\n\n".join(str(output) for output in self)


def step_of(report: dict[str, Any]) -> Step:
    """Returns a Step of what the compiled part reports."""
    return Step(**report)
