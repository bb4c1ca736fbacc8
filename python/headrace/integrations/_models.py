"""Which models transformers may give attn_implementation="headrace"."""

import functools
from collections.abc import Callable
from typing import Any

from headrace.errors import UnsupportedError

NAME = "headrace"


def refuse_model(model: Any) -> None:
    """Raises UnsupportedError for a transformers model whose attention cannot be headrace's."""
    if getattr(model.config, "is_encoder_decoder", False):
        what = "encoder-decoder models"
    elif not model._can_set_attn_implementation():
        what = "models that do not use transformers' attention interface"
    elif not (model._supports_sdpa or model._supports_flash_attn):
        what = 'models for which transformers supports neither "sdpa" nor flash attention'
    else:
        return
    raise UnsupportedError(
        f'headrace: {type(model).__name__}: {what} are not built with attn_implementation="headrace", expected '
        "no attn_implementation"
    )


def checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` of PreTrainedModel, whose first argument names an attention, with `refuse_model` before it."""

    @functools.wraps(method)
    def check(self: Any, attention: Any, *args: Any, **kwargs: Any) -> Any:
        if NAME in (attention, attention.get("") if isinstance(attention, dict) else None):
            refuse_model(self)
        return method(self, attention, *args, **kwargs)

    return check
