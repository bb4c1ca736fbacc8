"""The official openai client, which here refuses responses that are not as OpenAI's API describes them."""

import asyncio
import time

import openai
from serving import KEY, Server, finish, greedy_text, run_checks

PROMPT = "Once upon a time there was a king who"
LONG = "The king and the queen had a daughter, and she was fair. " * 12
MESSAGES = [{"role": "user", "content": PROMPT}]


def client_of(server, key=KEY, strict=True):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=60,
                         _strict_response_validation=strict)


def expect(holds, found):
    assert holds, found


def models(client):
    """models.list and models.retrieve"""
    listed = client.models.list().data
    expect([m.id for m in listed] == ["fairy"], listed)
    expect(client.models.retrieve("fairy").object == "model", listed)


def completion(client):
    """completions: text of a direct run, usage, finish reason, request id"""
    direct = greedy_text(PROMPT, 24)
    r = client.completions.create(model="fairy", prompt=PROMPT, max_tokens=24, temperature=0)
    expect(r.choices[0].text == direct, (r.choices[0].text, direct))
    expect(r.choices[0].finish_reason == "length" and r.object == "text_completion", r)
    expect(r.usage.completion_tokens == 24 and r.usage.total_tokens == r.usage.prompt_tokens + 24, r.usage)
    expect(r._request_id, "no x-request-id")


def completion_logprobs(client, lenient):
    """completions: logprobs, echo, n, ids"""
    shown = client.completions.create(model="fairy", prompt=PROMPT, max_tokens=5, temperature=0, logprobs=3)
    # A prompt's first token has no log-probability: null, as OpenAI's server had it, which the client's type lacks.
    r = lenient.completions.create(model="fairy", prompt=PROMPT, max_tokens=5, temperature=0, logprobs=3, echo=True)
    expect(r.choices[0].logprobs.token_logprobs[-5:] == shown.choices[0].logprobs.token_logprobs, (r, shown))
    logprobs = r.choices[0].logprobs
    count = r.usage.prompt_tokens + r.usage.completion_tokens
    lists = (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)
    expect([len(one) for one in lists] == [count] * 4, logprobs)
    expect(logprobs.token_logprobs[0] is None and all(p <= 0 for p in logprobs.token_logprobs[1:]), logprobs)
    expect("".join(logprobs.tokens) == r.choices[0].text, r.choices[0])
    offsets = zip(logprobs.text_offset, logprobs.text_offset[1:])
    expect([r.choices[0].text[a:b] for a, b in offsets] == logprobs.tokens[:-1], logprobs.text_offset)
    many = client.completions.create(model="fairy", prompt=[[5, 6, 7], [8, 9]], max_tokens=2, n=2, seed=1)
    expect([c.index for c in many.choices] == [0, 1, 2, 3], many)
    expect(many.usage.prompt_tokens == 5, many.usage)


def completion_stream(client, lenient):
    """completions: a stream has the same text and usage"""
    fields = {"model": "fairy", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**fields)
    # A piece before the last has no finish reason: null, as OpenAI's server sends it, which the client's type lacks.
    pieces = list(lenient.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    expect("".join(c.text for p in pieces for c in p.choices) == whole.choices[0].text, pieces)
    expect(pieces[-1].usage.completion_tokens == 40 and not pieces[-1].choices, pieces[-1])
    expect([c.finish_reason for p in pieces for c in p.choices if c.finish_reason] == ["length"], pieces)
    expect(len({p.id for p in pieces}) == 1 and len(pieces) > 10, len(pieces))


def chat(client):
    """chat: text, logprobs, n, stop"""
    fields = {"model": "fairy", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    r = client.chat.completions.create(**fields, logprobs=True, top_logprobs=4)
    expect(r.object == "chat.completion" and r.choices[0].message.role == "assistant", r)
    content = r.choices[0].logprobs.content
    expect(len(content) == 12 and all(len(t.top_logprobs) == 4 for t in content), content)
    expect(b"".join(bytes(t.bytes) for t in content).decode() == r.choices[0].message.content, content)
    expect(all(t.logprob == t.top_logprobs[0].logprob for t in content), "a greedy token is not the likeliest")
    stopped = client.chat.completions.create(**{**fields, "max_tokens": 60}, stop=[" beautiful"])
    expect(" beautiful" not in stopped.choices[0].message.content, stopped)
    expect(stopped.choices[0].finish_reason == "stop", stopped)
    drawn = client.chat.completions.create(**{**fields, "temperature": 1}, n=3, seed=4)
    expect(len({c.message.content for c in drawn.choices}) > 1, drawn)
    again = client.chat.completions.create(**{**fields, "temperature": 1}, n=3, seed=4)
    expect([c.message.content for c in drawn.choices] == [c.message.content for c in again.choices], again)
    parts = client.chat.completions.create(**{**fields, "messages": [
        {"role": "user", "content": [{"type": "text", "text": PROMPT}]}]}, max_completion_tokens=12)
    expect(parts.choices[0].message.content == r.choices[0].message.content, parts)


def chat_stream(client):
    """chat: a stream has the same text, roles, logprobs and usage"""
    fields = {"model": "fairy", "messages": MESSAGES, "max_tokens": 30, "temperature": 0, "logprobs": True}
    whole = client.chat.completions.create(**fields)
    pieces = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    choices = [c for p in pieces for c in p.choices]
    expect("".join(c.delta.content or "" for c in choices) == whole.choices[0].message.content, choices)
    expect(choices[0].delta.role == "assistant", choices[0])
    expect([t.logprob for c in choices if c.logprobs for t in c.logprobs.content] ==
           [t.logprob for t in whole.choices[0].logprobs.content], "other logprobs")
    expect(pieces[-1].usage == whole.usage or pieces[-1].usage.completion_tokens == 30, pieces[-1])
    with client.chat.completions.stream(model="fairy", messages=MESSAGES, max_tokens=60, temperature=0,
                                        stop=[" beautiful"]) as events:
        final = events.get_final_completion()
    expect(whole.choices[0].message.content.startswith(final.choices[0].message.content[:20]), final)


def cached(client):
    """usage: cached tokens of a prompt that was there before; of another salt none"""
    fields = {"model": "fairy", "prompt": LONG, "max_tokens": 1}
    salt = {"cache_salt": str(time.time())}
    first = client.completions.create(**fields, extra_body=salt)
    second = client.completions.create(**fields, extra_body=salt)
    expect(first.usage.prompt_tokens_details.cached_tokens == 0, first.usage)
    expect(second.usage.prompt_tokens_details.cached_tokens > 100, second.usage)
    other = client.completions.create(**fields, extra_body={"cache_salt": salt["cache_salt"] + "x"})
    expect(other.usage.prompt_tokens_details.cached_tokens == 0, other.usage)


def error_of(kind, call):
    try:
        call()
    except kind as error:
        assert type(error) is kind, type(error)
        return error
    raise AssertionError(f"no {kind.__name__}")


def errors(server, client):
    """errors: each is the exception class that the client has for it"""
    complete = client.completions.create
    wrong = error_of(openai.BadRequestError, lambda: complete(model="fairy", prompt="a", temperature=-1))
    expect(wrong.param == "temperature" and wrong.type == "invalid_request_error", wrong.body)
    long = error_of(openai.BadRequestError, lambda: complete(model="fairy", prompt="a b c " * 9000))
    expect(long.code == "context_length_exceeded", long.body)
    missing = error_of(openai.NotFoundError, lambda: complete(model="gpt-4", prompt="a"))
    expect(missing.code == "model_not_found", missing.body)
    error_of(openai.NotFoundError, lambda: client.embeddings.create(model="fairy", input="a"))
    error_of(openai.AuthenticationError, lambda: client_of(server, key="wrong").models.list())
    tools = error_of(openai.BadRequestError, lambda: client.chat.completions.create(
        model="fairy", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]))
    expect(tools.param == "tools", tools.body)
    error_of(openai.APITimeoutError, lambda: client.with_options(timeout=0.05).completions.create(
        model="fairy", prompt="a", max_tokens=2000, extra_body={"ignore_eos": True}))


def full_queue():
    """errors: a full queue is RateLimitError with Retry-After, and the client's own retry gets through"""
    with Server("--max-num-seqs", "1", "--max-queued-requests", "0") as server:
        client = client_of(server)
        stream = client_of(server, strict=False).completions.create(
            model="fairy", prompt="a", max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        fields = {"model": "fairy", "prompt": "a", "max_tokens": 1}
        error = error_of(openai.RateLimitError, lambda: client.completions.create(**fields))
        expect(int(error.response.headers["retry-after"]) >= 1, error.response.headers)
        stream.close()
        expect(client.with_options(max_retries=3).completions.create(**fields).choices, "no choice")


def concurrent(server):
    """32 requests of the asynchronous client at a time: each has the text that it has alone"""
    async def all_at_once():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0, timeout=60,
                                      _strict_response_validation=True) as client:
            def ask(i):
                return client.completions.create(
                    model="fairy", prompt=f"There were {i} giants", max_tokens=12, temperature=0)
            together = await asyncio.gather(*[ask(i) for i in range(32)])
            return [r.choices[0].text for r in together], [(await ask(i)).choices[0].text for i in range(32)]

    together, alone = asyncio.run(all_at_once())
    expect(together == alone, "a text depends on other requests")


with Server() as served:
    official, lenient = client_of(served), client_of(served, strict=False)
    failed = run_checks("openai", [
        (models, official), (completion, official), (completion_logprobs, official, lenient),
        (completion_stream, official, lenient),
        (chat, official), (chat_stream, official), (cached, official), (errors, served, official), (full_queue,),
        (concurrent, served)])
finish(failed)
