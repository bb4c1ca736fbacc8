"""headrace runs language models on a CPU or one NVIDIA GPU.

    import headrace
    llm = headrace.LLM()  # a bundled model
    print(llm.generate("Once upon a time"))

Names are loaded when they are first used: `import headrace` alone imports neither numpy nor torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace._build import build_info
    from headrace.async_llm import AsyncLLM
    from headrace.errors import Error, InvalidArgumentError, OutOfMemoryError, UnsupportedError
    from headrace.llm import LLM
    from headrace.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, RequestOutputs, Step
    from headrace.sampling_params import DiffusionParams, RequestOutputKind, SamplingParams

    __version__: str

# The module that has each public name.
_HOMES = {
    "__version__": "headrace._core",
    "build_info": "headrace._build",
    "LLM": "headrace.llm",
    "AsyncLLM": "headrace.async_llm",
    "SamplingParams": "headrace.sampling_params",
    "DiffusionParams": "headrace.sampling_params",
    "RequestOutputKind": "headrace.sampling_params",
    "RequestOutput": "headrace.outputs",
    "RequestOutputs": "headrace.outputs",
    "CompletionOutput": "headrace.outputs",
    "Logprob": "headrace.outputs",
    "RequestMetrics": "headrace.outputs",
    "Step": "headrace.outputs",
    "Error": "headrace.errors",
    "InvalidArgumentError": "headrace.errors",
    "OutOfMemoryError": "headrace.errors",
    "UnsupportedError": "headrace.errors",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "DiffusionParams",
    "Error",
    "InvalidArgumentError",
    "Logprob",
    "OutOfMemoryError",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestOutputs",
    "SamplingParams",
    "Step",
    "UnsupportedError",
    "__version__",
    "build_info",
]


# Modules that are loaded when they are first used, too.
_MODULES = ("attention", "compat", "diffusion", "errors", "integrations", "ops")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"headrace.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
