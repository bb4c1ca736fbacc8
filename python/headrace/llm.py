"""LLM: texts in, texts out, many at a time."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace import _core
from headrace._arguments import refuse_in_generate
from headrace._loaded import LoadedModel
from headrace._prompts import PromptType, all_prompts
from headrace._results import Result
from headrace.errors import InvalidArgumentError
from headrace.outputs import RequestOutputs
from headrace.sampling_params import SamplingParams

Messages = Sequence[Mapping[str, Any]]


def _params_of_each(given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    if not isinstance(given, Sequence) or not all(isinstance(one, SamplingParams) for one in given):
        raise InvalidArgumentError(f"sampling_params is {given!r}, expected SamplingParams or a list of them")
    if len(given) != count:
        raise InvalidArgumentError(
            f"sampling_params has {len(given)} entries, expected one for each of {count} prompts"
        )
    return list(given)


def _progress_bar(use_tqdm: bool | Callable[..., Any], total: int) -> Any:
    """Returns a bar of tqdm, or None where none is wanted or tqdm is not installed. One request has none."""
    if not use_tqdm or total < 2:
        return None
    if callable(use_tqdm):
        return use_tqdm(total=total, desc="Processed prompts")
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    hidden = False if "ipykernel" in sys.modules else None  # None: shown on a terminal
    return tqdm(total=total, desc="Processed prompts", dynamic_ncols=True, disable=hidden)


class LLM(LoadedModel):
    """A model that completes prompts, as vLLM's LLM does. Threads may share it; a forked child may not.

    `model`: a directory in Hugging Face's format, a GGUF file, the name of a bundled model, or a name on Hugging Face's
    hub, which is downloaded unless it is here. None: a bundled model of fairy tales. `flags`: the program's, by Python
    names (docs/python.md)."""

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        **others: Any,
    ) -> RequestOutputs:
        """Completes each prompt; returns one output for each, in their order.

        All run at once, as many as memory holds. `sampling_params`: for all, or one for each prompt. Ctrl-C ends the
        call and its requests. Errors of one request end the others. `others`: arguments of vLLM's that change nothing
        (lora_request=None)."""
        refuse_in_generate(others)
        asked = all_prompts(prompts)
        params = _params_of_each(sampling_params, len(asked))
        stream = _core.RequestStream(self._engine, True)
        results: dict[int, Result] = {}
        try:
            for prompt, one in zip(asked, params, strict=True):
                output = self._request(prompt)
                request = stream.add(output.prompt_token_ids, one._as_dict(), prompt.cache_salt)
                results[request] = Result(self._engine, output, one)
            self._finish(stream, results, use_tqdm)
        finally:
            stream.close()
        return RequestOutputs(result.output for result in results.values())

    @staticmethod
    def _finish(stream: Any, results: Mapping[int, Result], use_tqdm: bool | Callable[..., Any]) -> None:
        """Takes the updates of `stream` until all results are finished."""
        bar = _progress_bar(use_tqdm, len(results))
        left = len(results)
        try:
            while left > 0:
                for update in stream.wait():
                    result = results[update.request_id]
                    result.add(update)
                    if result.output.finished:
                        left -= 1
                        if bar is not None:
                            bar.update(1)
        finally:
            if bar is not None:
                bar.close()

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        **options: Any,
    ) -> RequestOutputs:
        """Answers one conversation, or each of several: lists of {"role": ..., "content": ...}.

        `options`: as of chat_prompt."""
        is_one = isinstance(messages, str) or (bool(messages) and isinstance(messages[0], Mapping))
        conversations: Any = [messages] if is_one else messages  # chat_prompt refuses a text
        prompts = [self.chat_prompt(conversation, **options) for conversation in conversations]
        return self.generate(prompts, sampling_params, use_tqdm)
