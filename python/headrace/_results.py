"""From the updates of the compiled part to outputs."""

import dataclasses
import time
from typing import Any

from headrace.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, step_of
from headrace.sampling_params import SamplingParams


def _logprob_dict(engine: Any, token: tuple[int, float], top: list[tuple[int, float]]) -> dict[int, Logprob]:
    """Returns the likeliest tokens of a place, and the one that is there: `token`."""
    ranks = {one: rank for rank, (one, _) in enumerate(top, 1)}
    found = {token[0]: token[1], **dict(top)}
    return {one: Logprob(value, ranks.get(one), engine.decode([one], False)) for one, value in found.items()}


class Result:
    """What came of one request so far."""

    def __init__(self, engine: Any, output: RequestOutput, params: SamplingParams) -> None:
        self._engine, self._params = engine, params
        self._open = params.n
        self._metrics = output.metrics = RequestMetrics(arrival_time=time.time())
        output.outputs = [CompletionOutput(index=i) for i in range(params.n)]
        self.output = output
        """All so far: it is the same object each time."""

    def add(self, update: Any) -> None:
        """Adds an update. Raises the error of a request that failed."""
        if update.error is not None:
            raise update.error
        self._add_tokens(self.output.outputs[update.choice], update)
        metrics = self._metrics
        self.output.num_cached_tokens = max(self.output.num_cached_tokens, update.num_cached_tokens)
        if update.last_token_s > 0:
            first = metrics.arrival_time + update.first_token_s
            metrics.first_token_time = min(first, metrics.first_token_time or first)
            metrics.last_token_time = metrics.arrival_time + update.last_token_s
        if update.finish_reason is not None:
            metrics.num_forwards += update.num_forwards
            self._open -= 1
            self.output.finished = self._open == 0

    def _add_tokens(self, answer: CompletionOutput, update: Any) -> None:
        answer.text += update.text
        answer.token_ids += update.token_ids
        answer.cumulative_logprob = (answer.cumulative_logprob or 0.0) + sum(update.logprobs)
        answer.finish_reason, answer.stop_reason = update.finish_reason, update.stop_reason
        answer.seed = update.seed
        if self._params.logprobs is not None:
            tokens = zip(update.token_ids, update.logprobs, strict=True)
            rows = [_logprob_dict(self._engine, token, top) for token, top in zip(tokens, update.top, strict=True)]
            answer.logprobs = (answer.logprobs or []) + rows
        if self._params.trace:
            answer.steps = (answer.steps or []) + [step_of(report) for report in update.steps]
        if update.prompt_logprobs:
            rows = [_logprob_dict(self._engine, (one, value), top) for one, value, top in update.prompt_logprobs]
            self.output.prompt_logprobs = [None, *rows]

    def snapshot(self) -> RequestOutput:
        """Returns a copy that later updates leave as it is."""
        answers = [dataclasses.replace(answer, token_ids=list(answer.token_ids)) for answer in self.output.outputs]
        return dataclasses.replace(self.output, outputs=answers, metrics=dataclasses.replace(self._metrics))

    def news(self, update: Any) -> RequestOutput:
        """Adds an update, and returns what is new alone: one answer."""
        whole = self.output.outputs[update.choice]
        num_rows, num_steps = len(whole.logprobs or []), len(whole.steps or [])
        self.add(update)
        part = dataclasses.replace(
            whole,
            text=update.text,
            token_ids=list(update.token_ids),
            cumulative_logprob=sum(update.logprobs),
            logprobs=whole.logprobs[num_rows:] if whole.logprobs is not None else None,
            steps=whole.steps[num_steps:] if whole.steps is not None else None,
        )
        return dataclasses.replace(self.output, outputs=[part], metrics=dataclasses.replace(self._metrics))
