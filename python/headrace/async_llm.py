"""AsyncLLM: requests of an asyncio program, streamed."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Self

from headrace import _core
from headrace._arguments import refuse_in_generate
from headrace._loaded import LoadedModel
from headrace._prompts import PromptType, one_prompt
from headrace._results import Result
from headrace.errors import Error, InvalidArgumentError, error_of
from headrace.outputs import RequestOutput
from headrace.sampling_params import RequestOutputKind, SamplingParams


class _LoopStream:
    """The requests of one event loop, which wakes when there is news of them."""

    def __init__(self, engine: Any) -> None:
        self.stream = _core.RequestStream(engine, False)
        self._inboxes: dict[int, asyncio.Queue[Any]] = {}

    def add(self, *request: Any) -> tuple[int, asyncio.Queue[Any]]:
        """Queues a request; returns its id, and what its updates, or an exception, come in."""
        number = self.stream.add(*request)
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        if not self._inboxes:
            asyncio.get_running_loop().add_reader(self.stream.fileno(), self._deliver)
        self._inboxes[number] = inbox
        return number, inbox

    def remove(self, number: int) -> None:
        """Forgets a request: it has ended, or nobody waits for it."""
        del self._inboxes[number]
        if not self._inboxes:
            asyncio.get_running_loop().remove_reader(self.stream.fileno())

    def _deliver(self) -> None:
        try:
            for update in self.stream.poll():
                if (inbox := self._inboxes.get(update.request_id)) is not None:
                    inbox.put_nowait(update)
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Ends all requests with `error`."""
        for inbox in self._inboxes.values():
            inbox.put_nowait(error)


class AsyncLLM(LoadedModel):
    """A model that streams answers, as vLLM's AsyncLLM does. Arguments as of LLM.

    Each event loop, of each thread, may have requests at the same time."""

    def __init__(self, model: Any = None, **flags: Any) -> None:
        super().__init__(model, **flags)
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopStream] = weakref.WeakKeyDictionary()
        self._running: dict[str, int] = {}  # requests of the engine by request_id

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **others: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Completes a prompt; yields the output so far whenever there is more (SamplingParams.output_kind).

        Leaving the loop over it, closing it or cancelling its task aborts the request. `others`: as of LLM.generate."""
        refuse_in_generate(others)
        params = SamplingParams() if sampling_params is None else sampling_params
        if not isinstance(params, SamplingParams):
            raise InvalidArgumentError(f"sampling_params is {params!r}, expected SamplingParams")
        asked = one_prompt(prompt)
        output = self._request(asked, request_id)
        if output.request_id in self._running:
            raise InvalidArgumentError(f"request_id is {output.request_id!r}, expected one that does not run already")
        loop = asyncio.get_running_loop()
        requests = self._loops.get(loop) or self._loops.setdefault(loop, _LoopStream(self._engine))
        number, inbox = requests.add(output.prompt_token_ids, params._as_dict(), asked.cache_salt)
        self._running[output.request_id] = number
        result = Result(self._engine, output, params)
        try:
            while not result.output.finished:
                update = await inbox.get()
                if isinstance(update, Exception):
                    raise update
                if params.output_kind is RequestOutputKind.DELTA:
                    yield result.news(update)
                    continue
                result.add(update)
                if params.output_kind is RequestOutputKind.CUMULATIVE or result.output.finished:
                    yield result.snapshot()
        finally:
            del self._running[output.request_id]
            requests.remove(number)
            if not result.output.finished:
                self._abort(number)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answers a conversation, as generate completes a prompt. `options`: as of chat_prompt."""
        answer = self.generate(self.chat_prompt(messages, **options), sampling_params, request_id)
        try:
            async for output in answer:
                yield output
        finally:
            await answer.aclose()

    async def abort(self, request_id: str) -> None:
        """Ends a request: its last output has finish_reason "abort". Ignores one that does not run."""
        if (number := self._running.get(request_id)) is not None:
            self._abort(number)

    def _abort(self, number: int) -> None:
        with contextlib.suppress(Error):  # of an engine that is closed
            self._engine.abort(number)

    def close(self) -> None:
        """Aborts all requests and frees the model. Generators that wait end with an Error of code "cancelled"."""
        super().close()
        for loop, requests in list(self._loops.items()):
            with contextlib.suppress(RuntimeError):  # of a loop that is closed
                loop.call_soon_threadsafe(
                    requests.fail, error_of("cancelled", "this LLM was closed while requests ran")
                )

    def shutdown(self) -> None:
        """As close: vLLM's name of it."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
