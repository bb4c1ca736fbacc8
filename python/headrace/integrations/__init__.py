"""headrace's kernels in transformers: attn_implementation="headrace".

    import headrace.integrations
    headrace.integrations.enable()  # before the model is made
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="headrace")

Attention runs over a paged pool, `HeadraceCache`, which such a model gets by default. The Gated DeltaNet layers of
Qwen3-Next and Qwen3.5 run by headrace's kernels too. Models, masks and caches that are not built are refused in a
sentence, and so is training.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from headrace.integrations._attention import headrace_attention
from headrace.integrations._cache import HeadraceCache
from headrace.integrations._gated_delta_net import gated_delta_net_forward
from headrace.integrations._masks import padding_mask
from headrace.integrations._models import NAME, checked

__all__ = ["HeadraceCache", "disable", "enable", "headrace_attention"]

_GATED_DELTA_NETS = {
    "transformers.models.qwen3_next.modeling_qwen3_next": "Qwen3NextGatedDeltaNet",
    "transformers.models.qwen3_5.modeling_qwen3_5": "Qwen3_5GatedDeltaNet",
    "transformers.models.qwen3_5_moe.modeling_qwen3_5_moe": "Qwen3_5MoeGatedDeltaNet",
}
_undo: list[Callable[[], None]] = []


def enable() -> None:
    """Registers attn_implementation="headrace" with transformers; models that do not ask for it stay as they are.

    A second call does nothing. Raises ImportError without transformers 5."""
    if _undo:
        return
    masking = importlib.import_module("transformers.masking_utils")
    modeling = importlib.import_module("transformers.modeling_utils")
    modeling.ALL_ATTENTION_FUNCTIONS.register(NAME, headrace_attention)
    masking.ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, padding_mask)
    for method in ("get_correct_attn_implementation", "set_attn_implementation"):
        _replace(modeling.PreTrainedModel, method, checked(getattr(modeling.PreTrainedModel, method)))
    _make_default_cache(importlib.import_module("transformers.cache_utils").DynamicCache)
    for module, name in _GATED_DELTA_NETS.items():
        try:
            _replace_gated_delta_net(getattr(importlib.import_module(module), name))
        except ImportError:
            continue  # this transformers has no such family


def disable() -> None:
    """Takes back what `enable` changed, but for the name "headrace", which stays registered."""
    while _undo:
        _undo.pop()()


def _replace(owner: type, name: str, value: Any) -> None:
    before = getattr(owner, name)
    setattr(owner, name, value)
    _undo.append(lambda: setattr(owner, name, before))


def _make_default_cache(dynamic_cache: Any) -> None:
    """A model makes DynamicCache(config=...) where it is given no cache: with "headrace" that becomes HeadraceCache."""

    def make(cls: type, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        if _undo and cls is dynamic_cache and config is not None and asks_for_headrace(config):
            return HeadraceCache(config)
        return object.__new__(cls)

    dynamic_cache.__new__ = staticmethod(make)  # stays: a class that loses its __new__ takes no arguments any more


def asks_for_headrace(config: Any) -> bool:
    """Returns True if attention of that model is headrace's."""
    return bool(config.get_text_config(decoder=True)._attn_implementation == NAME)


def _replace_gated_delta_net(layer: Any) -> None:
    init, forward = layer.__init__, layer.forward

    @functools.wraps(init)
    def init_with_config(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        init(self, config, *args, **kwargs)
        self.headrace_config = config

    @functools.wraps(forward)
    def forward_by_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = getattr(self, "headrace_config", None)  # a layer made before enable() has none
        if config is None or not asks_for_headrace(config):
            return forward(self, *args, **kwargs)
        return gated_delta_net_forward(self, *args, **kwargs)

    _replace(layer, "__init__", init_with_config)
    _replace(layer, "forward", forward_by_config)
