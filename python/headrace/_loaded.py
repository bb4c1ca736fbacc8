"""A loaded model: what LLM and AsyncLLM have in common."""

import itertools
import os
import pathlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

from headrace import _core
from headrace._arguments import drop_neutral, refuse_unknown
from headrace._models import model_path
from headrace._prompts import Prompt, plain_messages
from headrace.errors import InvalidArgumentError, UnsupportedError
from headrace.outputs import RequestOutput

# Those of the program, by Python names, as the compiled part reads them.
_FLAGS = (
    *("activations", "adapter", "dtype", "quantize", "random_weights"),
    *("enable_prefix_caching", "kv_cache_dtype", "kv_cache_memory_bytes", "max_model_len", "page_size"),
    *("max_num_batched_tokens", "max_num_seqs"),
    *("attn_impl", "backend", "deterministic", "device", "graphs", "kernel_set", "threads"),
    *("block_cache", "block_size", "mask_token_id", "merge", "merge_weight", "num_blocks", "strategy"),
)
_NAMES = {*_FLAGS, "revision", "offline", "enforce_eager"}

# vLLM's arguments that headrace does not have, and their values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "cpu_offload_gb": (0, 0.0),
    "data_parallel_size": (1,),
    "disable_log_stats": (True, False),
    "download_dir": (None,),
    "enable_chunked_prefill": (True, None),
    "load_format": ("auto", "safetensors"),
    "pipeline_parallel_size": (1,),
    "quantization": (None,),
    "skip_tokenizer_init": (False,),
    "swap_space": (0, 4, None),
    "task": (None, "auto", "generate"),
    "tensor_parallel_size": (1,),
    "tokenizer": (None,),
    "tokenizer_mode": ("auto",),
    "trust_remote_code": (False, True),  # headrace runs no code of a model
}

# What to use in place of arguments that other engines have.
_ELSEWHERE = {
    "chat_template": "chat(messages, chat_template=...) takes one",
    "enable_lora": "adapter is the directory of a LoRA",
    "hf_token": "HF_TOKEN is the variable with the hub's token",
    "max_logprobs": "SamplingParams(logprobs=...) says how many",
    "served_model_name": "headrace serve --served-model-name names the model of a server",
    "speculative_config": "no second model drafts tokens",
    "cache_dir": "the variable HF_HUB_CACHE names the cache of models",
    "device_map": "device='cuda' chooses the GPU",
    "gpu_memory_utilization": "kv_cache_memory_bytes is the memory of keys, values and recurrent states",
    "load_in_4bit": "quantize='q4_k_m' quantises weights while they are loaded",
    "load_in_8bit": "quantize='q8_0' quantises weights while they are loaded",
    "model_path": "the model is the first argument",
    "n_ctx": "max_model_len is the context",
    "n_gpu_layers": "device='cuda' runs all layers on the GPU",
    "n_threads": "threads is their number",
    "seed": "SamplingParams(seed=...) is that of a request",
    "torch_dtype": "dtype is that of activations",
}

# The same of methods.
_METHODS = {
    "beam_search": "there is none; SamplingParams(n=...) draws several answers",
    "get_default_sampling_params": "SamplingParams() has the model's",
    "get_tokenizer": "encode, decode and chat_prompt tokenise",
    "reset_prefix_cache": "a cache_salt beside a prompt keeps it from others' text",
}


def _flags(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags of `given` as the compiled part reads them, without those of the model's name."""
    kept = drop_neutral(owner, given, _NEUTRAL)
    refuse_unknown(owner, kept, _NAMES, _ELSEWHERE)
    if kept.pop("enforce_eager", False):
        kept["graphs"] = "off"
    for name in ("dtype", "kv_cache_dtype"):
        if kept.get(name) is not None:
            kept[name] = str(kept[name]).removeprefix("torch.")
    if isinstance(kept.get("quantize"), str):
        kept["quantize"] = kept["quantize"].lower()
    if isinstance(kept.get("random_weights"), bool):
        raise InvalidArgumentError(f"random_weights is {kept['random_weights']}, expected their seed, an integer")
    if kept.get("adapter") is not None:
        kept["adapter"] = str(pathlib.Path(kept["adapter"]).expanduser())
    return kept


class LoadedModel:
    """A model with its engine. It may be used by any number of threads, in the process that loaded it."""

    def __init__(self, model: str | os.PathLike[str] | None = None, **flags: Any) -> None:
        kept = _flags(type(self).__name__, flags)
        path = model_path(model, kept.pop("revision", None), bool(kept.pop("offline", False)))
        self._engine = _core.load(path, kept)
        self._path = path
        self._ids = itertools.count()
        # Runs when this object is freed, at the latest when the interpreter ends: no thread outlives it.
        self._finalizer = weakref.finalize(self, self._engine.close)

    def close(self) -> None:
        """Aborts all requests and frees the model. Does nothing the second time."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = "" if self._finalizer.alive else ", closed"
        return f"<headrace.{type(self).__name__} of {self._path}{closed}>"

    def __getattr__(self, name: str) -> NoReturn:
        advice = f": {_METHODS[name]}" if name in _METHODS else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{advice}", name=name, obj=self)

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(f"{type(self).__name__} cannot be sent to another process: load the model there")

    @property
    def info(self) -> dict[str, Any]:
        """What runs: device, architecture, weights (their formats), dtype (of activations), kv_cache_dtype, strategy,
        is_diffusion, max_model_len, max_num_seqs, vocab_size and eos_token_ids."""
        return self._engine.describe()

    @property
    def stats(self) -> dict[str, int]:
        """Numbers of the moment: requests that run and wait, steps, tokens, pages of the cache."""
        return self._engine.stats()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of `text`; special tokens that it spells are read as tokens."""
        if not isinstance(text, str):
            raise InvalidArgumentError(f"text is {text!r}, expected a str")
        return self._encoded(text, add_special_tokens)

    def _encoded(self, text: str, add_special_tokens: bool = True) -> list[int]:
        try:
            return self._engine.encode(text, add_special_tokens)
        except TypeError:  # no UTF-8 can be made of it
            raise InvalidArgumentError(f"the text {text!r} is no Unicode, expected one without surrogates") from None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of `token_ids`."""
        return self._engine.decode(list(token_ids), skip_special_tokens)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Returns the prompt of a conversation, as the model's chat template writes it: its text and its ids.

        `options`: chat_template, add_generation_prompt, continue_final_message, tools, chat_template_kwargs."""
        known = ("chat_template", "add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs")
        refuse_unknown("chat", options, known)
        if options.get("continue_final_message"):
            options.setdefault("add_generation_prompt", False)
        text, ids = self._engine.render_chat(plain_messages(messages), options)
        return {"prompt": text, "prompt_token_ids": ids}

    def _request(self, prompt: Prompt, request_id: str | None = None) -> RequestOutput:
        """Returns the output of a request that has not begun."""
        ids = prompt.token_ids if prompt.token_ids is not None else self._encoded(prompt.text or "")
        if not ids:
            raise InvalidArgumentError("the prompt is empty, expected a text: no token is put in front of it")
        return RequestOutput(request_id or str(next(self._ids)), prompt.text, ids, [])
