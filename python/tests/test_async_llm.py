"""AsyncLLM: streams, aborts, cancellations, several loops."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import headrace
from headrace import AsyncLLM, RequestOutputKind, SamplingParams

PROMPT = "Once upon a time"
LONG = SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True)


def run(use: Callable[[AsyncLLM], Awaitable[None]]) -> None:
    """Runs `use` with a model, in an event loop of its own."""

    async def main() -> None:
        async with AsyncLLM(deterministic=True) as llm:
            await use(llm)

    asyncio.run(main())


async def idle(llm: AsyncLLM) -> None:
    """Waits until no request runs."""
    while llm.stats["num_running"] + llm.stats["num_waiting"] > 0:
        await asyncio.sleep(0.01)


async def ids_of(outputs: AsyncIterator[headrace.RequestOutput]) -> list[int]:
    """The tokens of the last output."""
    ids: list[int] = []
    async for output in outputs:
        ids = output.outputs[0].token_ids
    return ids


def test_outputs_hold_the_text_so_far(llm: headrace.LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, logprobs=1)

    async def use(stream: AsyncLLM) -> None:
        outputs = [output async for output in stream.generate(PROMPT, params)]
        texts = [output.outputs[0].text for output in outputs]
        assert len(outputs) > 1
        assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        (expected,) = llm.generate(PROMPT, params)
        assert outputs[-1].outputs[0].text == expected.outputs[0].text
        assert outputs[-1].outputs[0].logprobs == expected.outputs[0].logprobs
        assert outputs[-1].outputs[0].finish_reason == "length"

    run(use)


def test_deltas_join_to_the_whole() -> None:
    async def use(llm: AsyncLLM) -> None:
        texts, ids, rows = "", [], []
        params = SamplingParams(seed=1, max_tokens=40, output_kind=RequestOutputKind.DELTA, logprobs=0)
        async for output in llm.generate(PROMPT, params):
            texts += output.outputs[0].text
            ids += output.outputs[0].token_ids
            rows += output.outputs[0].logprobs or []
        params.output_kind = RequestOutputKind.FINAL_ONLY
        (whole,) = [output async for output in llm.generate(PROMPT, params)]
        assert (texts, ids, rows) == (whole.outputs[0].text, whole.outputs[0].token_ids, whole.outputs[0].logprobs)

    run(use)


def test_deltas_of_several_answers() -> None:
    async def use(llm: AsyncLLM) -> None:
        texts = ["", "", ""]
        params = SamplingParams(n=3, seed=1, max_tokens=20, output_kind=RequestOutputKind.DELTA)
        async for output in llm.generate(PROMPT, params):
            (answer,) = output.outputs
            texts[answer.index] += answer.text
        params.output_kind = RequestOutputKind.FINAL_ONLY
        (whole,) = [output async for output in llm.generate(PROMPT, params)]
        assert [answer.text for answer in whole.outputs] == texts

    run(use)


def test_many_at_once_give_what_each_gives_alone() -> None:
    async def use(llm: AsyncLLM) -> None:
        params = [SamplingParams(seed=i, max_tokens=10 + i) for i in range(40)]
        together = await asyncio.gather(*(ids_of(llm.generate(PROMPT, one)) for one in params))
        for one, ids in list(zip(params, together, strict=True))[::8]:
            assert await ids_of(llm.generate(PROMPT, one)) == ids

    run(use)


def test_abort_ends_a_request_with_a_last_output() -> None:
    async def use(llm: AsyncLLM) -> None:
        outputs = []
        async for output in llm.generate(PROMPT, LONG, request_id="mine"):
            outputs.append(output)
            await llm.abort("mine")
        assert outputs[-1].outputs[0].finish_reason == "abort"
        assert outputs[-1].request_id == "mine"
        assert len(outputs[-1].outputs[0].token_ids) < 2000
        await llm.abort("mine")  # it has ended

    run(use)


def test_leaving_the_loop_aborts() -> None:
    async def use(llm: AsyncLLM) -> None:
        answer = llm.generate(PROMPT, LONG)
        async for _ in answer:
            break
        await answer.aclose()
        await idle(llm)
        assert llm.stats["num_tokens"] < 2000

    run(use)


def test_cancelling_a_task_aborts_its_request_alone() -> None:
    async def use(llm: AsyncLLM) -> None:
        short = SamplingParams(temperature=0, max_tokens=30)
        expected = await ids_of(llm.generate(PROMPT, short))
        begun = asyncio.Event()

        async def long() -> None:
            async for _ in llm.generate(PROMPT, LONG):
                begun.set()

        task = asyncio.create_task(long())
        await begun.wait()
        other = asyncio.create_task(ids_of(llm.generate(PROMPT, short)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await other == expected
        await idle(llm)
        assert llm.stats["num_tokens"] < 2000

    run(use)


def test_closing_wakes_who_waits() -> None:
    async def main() -> None:
        llm = AsyncLLM()
        task = asyncio.create_task(ids_of(llm.generate(PROMPT, LONG)))
        while llm.stats["num_running"] == 0:
            await asyncio.sleep(0.01)
        llm.close()
        with pytest.raises(headrace.Error, match=r"this LLM was closed while requests ran|this LLM is closed"):
            await task

    asyncio.run(main())


def test_loops_of_several_threads_share_a_model() -> None:
    params = SamplingParams(temperature=0, max_tokens=30)
    with AsyncLLM(deterministic=True) as llm:
        expected = asyncio.run(ids_of(llm.generate(PROMPT, params)))
        found: list[list[int]] = []

        async def several() -> None:
            found.extend(await asyncio.gather(*(ids_of(llm.generate(PROMPT, params)) for _ in range(4))))

        threads = [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 16


def test_errors_come_before_anything_runs() -> None:
    async def use(llm: AsyncLLM) -> None:
        with pytest.raises(ValueError, match="temperature is -1"):
            await ids_of(llm.generate(PROMPT, SamplingParams(temperature=-1)))
        with pytest.raises(ValueError, match="prompts has 3, expected"):
            await ids_of(llm.generate(3))  # type: ignore[arg-type]
        first = llm.generate(PROMPT, LONG, request_id="a")
        await anext(first)
        with pytest.raises(ValueError, match="request_id is 'a'"):
            await ids_of(llm.generate(PROMPT, LONG, request_id="a"))
        await first.aclose()
        await idle(llm)

    run(use)


def test_chat_streams(llm: headrace.LLM) -> None:
    messages = [{"role": "user", "content": "A fox came"}]
    params = SamplingParams(temperature=0, max_tokens=20)

    async def use(stream: AsyncLLM) -> None:
        assert await ids_of(stream.chat(messages, params)) == llm.chat(messages, params)[0].outputs[0].token_ids

    run(use)


def test_parameters_are_checked() -> None:
    async def use(llm: AsyncLLM) -> None:
        for wrong in ({"max_tokens": 3}, 5):
            with pytest.raises(ValueError, match=r"sampling_params is .+, expected SamplingParams"):
                await anext(llm.generate(PROMPT, wrong))  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError, match="generate: priority is 3, expected None: it is not supported"):
            await anext(llm.generate(PROMPT, priority=3))

    run(use)
