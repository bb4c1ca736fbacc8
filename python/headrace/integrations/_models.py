"""Which models transformers may give attn_implementation="headrace"."""

import functools
import inspect
import sys
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
    elif _hides_its_window(type(model).__module__) and getattr(model.config.get_text_config(), "sliding_window", None):
        what = "sliding windows of models that do not pass them to attention"
    else:
        return
    raise UnsupportedError(
        f'headrace: {type(model).__name__}: {what} are not built with attn_implementation="headrace", expected '
        "no attn_implementation"
    )


@functools.cache
def _hides_its_window(module: str) -> bool:
    """Returns True if layers in a model's module leave a window to their mask, which headrace's attention lacks.
    False where there is no source."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return False
    calls_attention = "ALL_ATTENTION_FUNCTIONS.get_interface(" in source
    return calls_attention and "create_sliding_window_causal_mask" in source and "sliding_window=" not in source


def checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` of PreTrainedModel, whose first argument names an attention, with `refuse_model` before it."""

    @functools.wraps(method)
    def check(self: Any, attention: Any, *args: Any, **kwargs: Any) -> Any:
        if NAME in (attention, attention.get("") if isinstance(attention, dict) else None):
            refuse_model(self)
        return method(self, attention, *args, **kwargs)

    return check
