"""Parameters of a request, by vLLM's names."""

import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace import _core
from headrace._arguments import drop_neutral, refuse_unknown
from headrace.errors import InvalidArgumentError

_T = TypeVar("_T")

# vLLM's parameters that headrace does not have, and their values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "best_of": (None,),
    "detokenize": (True,),
    "extra_args": (None,),
    "flat_logprobs": (False,),
    "include_stop_str_in_output": (False,),
    "logits_processors": (None,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (None,),
}


def _refusing(neutral: dict[str, tuple[Any, ...]]) -> Callable[[type[_T]], type[_T]]:
    """Lets a dataclass refuse unknown arguments in a sentence, and take those of `neutral` that change nothing."""

    def decorated(cls: type[_T]) -> type[_T]:
        fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        plain: Callable[..., None] = vars(cls)["__init__"]

        @functools.wraps(plain)
        def init(self: Any, *args: Any, **given: Any) -> None:
            kept = drop_neutral(cls.__name__, given, neutral)
            refuse_unknown(cls.__name__, kept, fields)
            plain(self, *args, **kept)

        setattr(cls, "__init__", init)  # noqa: B010 (mypy allows no assignment)
        return cls

    return decorated


class RequestOutputKind(enum.Enum):
    """What each output of AsyncLLM.generate holds."""

    CUMULATIVE = 0
    """All text and tokens so far."""
    DELTA = 1
    """What is new."""
    FINAL_ONLY = 2
    """The whole answer: there is one output."""


@_refusing({})
@dataclasses.dataclass
class DiffusionParams:
    """How a diffusion model decides the tokens of a block; None: the model's own choice.

    Each strategy reads some of these (docs/diffusion.md) and refuses the others."""

    schedule: str | None = None
    """"threshold": a pass keeps every token that passes `threshold`; "reference": the model's published loop."""
    accept: str | None = None
    """How the tokens of a pass are ranked: "confidence", "margin", "entropy", "entropy_bound", "leftmost", "random"."""
    threshold: float | None = None
    """Keep the tokens of a pass whose confidence is at least this."""
    steps: int | None = None
    """Denoising passes per block, of Dream over the whole output, with schedule="reference"."""
    max_passes: int | None = None
    """Passes at most in which a block is decided."""
    add_block: float | None = None
    """Open the next block when this share of a block is decided."""
    stability: float | None = None
    """Open the next block when the last pass chose this share of a block's decided tokens again."""
    semi_complete: float | None = None
    """Let the next block decide a token in every pass when this share of a block is decided."""
    edit_threshold: float | None = None
    """Replace a kept token by another one of at least this confidence."""
    remask_threshold: float | None = None
    """Make a kept token a mask again when its confidence falls below this."""
    max_edits: int | None = None
    """Passes at most that may change a block without masks."""
    order_temperature: float | None = None
    """Above 0: keep tokens drawn by exp(score / order_temperature) in place of the best ones."""
    merge_candidates: int | None = None
    """Blend this many candidates into the input of an undecided place."""
    copy_penalty: float | None = None
    """Subtract this from the logit of the token on the left."""
    cfg_scale: float | None = None
    """Weight of classifier-free guidance; above 0 every pass runs twice the tokens."""


@_refusing(_NEUTRAL)
@dataclasses.dataclass
class SamplingParams:
    """How a request's tokens are chosen and when it ends. None: the model's default (generation_config.json)."""

    n: int = 1
    """Answers to the prompt, each with a seed of its own."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that the output has; -2 to 2."""
    frequency_penalty: float = 0.0
    """Subtracted for each time that the output has the token; -2 to 2."""
    repetition_penalty: float | None = None
    """Above 1: tokens that occurred become less likely."""
    temperature: float | None = None
    """Randomness; 0: always the most likely token."""
    top_p: float | None = None
    """Draw from the likeliest tokens that together have this probability."""
    top_k: int | None = None
    """Draw from the so many most likely tokens; 0 or -1: from all."""
    min_p: float | None = None
    """Draw from tokens with at least this share of the likeliest one's probability."""
    seed: int | None = None
    """The same seed draws the same tokens; None or -1: another seed each time."""
    stop: str | Sequence[str] | None = None
    """Texts in front of which the output ends."""
    stop_token_ids: Sequence[int] | None = None
    """Tokens that end the output, besides the model's."""
    ignore_eos: bool = False
    """Do not end at the model's end tokens."""
    ban_end_tokens: bool = False
    """Never choose one of the model's end tokens."""
    max_tokens: int | None = 256
    """New tokens at most; None: until the context is full."""
    min_tokens: int = 0
    """Before so many new tokens, choose none that ends the output."""
    logprobs: int | None = None
    """Report each token's log-probability, and so many of the likeliest in its place."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    logit_bias: dict[int, float] | None = None
    """Numbers from -100 to 100, or -inf, that are added to tokens' logits."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """What the outputs of AsyncLLM.generate hold."""
    diffusion: DiffusionParams | None = None
    """For diffusion models."""
    trace: bool = False
    """Report each step of the engine (CompletionOutput.steps); expects n=1."""

    def __post_init__(self) -> None:
        if not isinstance(self.output_kind, RequestOutputKind):
            raise InvalidArgumentError(f"output_kind is {self.output_kind!r}, expected a RequestOutputKind")
        if not isinstance(self.diffusion, DiffusionParams | None):
            raise InvalidArgumentError(f"diffusion is {self.diffusion!r}, expected DiffusionParams or None")
        if self.seed == -1:
            self.seed = None
        _core.check_params(self._as_dict())

    def _as_dict(self) -> dict[str, Any]:
        """Returns the fields that are set, as the compiled part reads them."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del given["output_kind"]
        if (diffusion := given.pop("diffusion")) is not None:
            given |= dataclasses.asdict(diffusion)
        given["max_tokens"] = -1 if self.max_tokens is None else self.max_tokens
        if isinstance(self.stop, str):
            given["stop"] = [self.stop]
        return {name: value for name, value in given.items() if value is not None}
