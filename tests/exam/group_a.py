"""Group A: the JSON of requests."""

import itertools
import json
import threading
import time

from harness import case, expect


@case("A1", "a body that is no object")
def _(s):
    for body in (b"", b"{}", b"nu", b"null", b"[]", b'"x"', b"17"):
        error = s.refuse(body).error()
        expect(error["type"] == "invalid_request_error", error)


@case("A2", "broken JSON")
def _(s):
    for body in (b'{"prompt": "a"', b'{"prompt": "a"} x', b'{"prompt": "a"}{"prompt": "a"}',
                 b'\xef\xbb\xbf{"prompt": "a"}', b'{"prompt": "a"} // no', b'{/* no */"prompt": "a"}', b"{'prompt': 'a'}"):
        s.refuse(body)


@case("A3", "deep nesting")
def _(s):
    deep = 100_000
    for inner in ("[" * deep + "]" * deep, '{"a":' * deep + "1" + "}" * deep):
        for name in ("metadata", "prompt", "messages", "tools", "chat_template_kwargs", "logit_bias"):
            body = '{"%s": %s, "prompt": "a"}' % (name, inner)
            path = "/v1/chat/completions" if name in ("messages", "tools", "chat_template_kwargs") else "/v1/completions"
            s.refuse(body.encode(), path, says="nesting deeper than 64")


@case("A4", "bytes that are not UTF-8, half surrogates and NUL")
def _(s):
    for text in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x82"):
        s.refuse(b'{"prompt": "' + text + b'"}')
    for text in (r"\ud800", r"\udc00\ud800", r"a\u0000b"):
        reply = s.post("/v1/completions", b'{"max_tokens": 2, "echo": true, "prompt": "%s"}' % text.encode())
        expect(reply.status == 200, f"{text}: {reply.status}")
        shown = reply.body.decode("utf-8", "strict")
        expect("\ufffd" in shown or "\\u0000" in shown, shown)


@case("A5", "a key that is there twice")
def _(s):
    s.refuse(b'{"prompt": "a", "n": 1, "n": 9}', param="n")
    s.refuse(b'{"prompt": "a", "logit_bias": {"1": 1, "1": 2}}')


@case("A6", "a body above the limit", quick=False)
def _(s):
    size = (32 << 20) + 1
    connection = s.connect()
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-length", str(size))
    connection.endheaders()
    expect(connection.getresponse().status == 413, "by its length")
    connection = s.connect()
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()
    try:
        for _ in range(40):
            connection.send(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
    except OSError:
        pass  # it has stopped reading
    expect(connection.getresponse().status == 413, "by its chunks")


@case("A7", "n")
def _(s):
    for n in ("0", "-1", "1000000000", "4294967297", "1.5", '"3"', "true", "65"):
        s.refuse(b'{"prompt": "a", "n": %s}' % n.encode(), param="n")


@case("A8", "max_tokens and min_tokens")
def _(s):
    for value in ("-1", "0", "2147483648", "9223372036854775808", "1.5", '"3"'):
        s.refuse(b'{"prompt": "a", "max_tokens": %s}' % value.encode(), param="max_tokens")
    expect(s.complete(max_tokens=None).json()["usage"]["completion_tokens"] <= 16, "null is the default")
    s.refuse({"prompt": "a", "max_tokens": 3, "min_tokens": 4}, param="min_tokens")
    s.refuse({"prompt": "a", "max_tokens": None, "min_tokens": 17}, param="min_tokens")


@case("A9", "numbers of the distribution")
def _(s):
    wrong = {"temperature": ("-1", "2.1e308", "NaN", "Infinity", "-Infinity", '"0.7"', "101"),
             "top_p": ("0", "-0.1", "1.1"), "top_k": ("-2", "8589934592", "1.5"), "min_p": ("2", "-0.1"),
             "presence_penalty": ("1e30", "-1e30"), "frequency_penalty": ("1e30", "-1e30"),
             "repetition_penalty": ("0", "-1", "1e30")}
    for name, values in wrong.items():
        for value in values:
            s.refuse(b'{"prompt": "a", "%s": %s}' % (name.encode(), value.encode()), param=name)
    greedy = s.complete(temperature=0).json()["choices"][0]["text"]
    expect(s.complete(temperature=1e-30).json()["choices"][0]["text"] == greedy, "a temperature of nearly 0 is greedy")


@case("A10", "logit_bias")
def _(s):
    for bias in ({str(i): 1 for i in range(1025)}, {"-1": 1}, {"4294967296": 1}, {"1": 1e308}, {"x": 1}, {"1": "2"}, {"": 1},
                 {"999999": 1}, [1]):
        s.refuse({"prompt": "a", "logit_bias": bias}, param="logit_bias")
    many = b'{"prompt": "a", "logit_bias": {' + b", ".join(b'"%d": 1' % i for i in range(1_000_000)) + b"}}"
    s.refuse(many, param="logit_bias")


@case("A11", "stop")
def _(s):
    for stop in (["x"] * 100_000, [""], "", "x" * 1_000_000, ["x"] * 17, [1], {"a": 1}):
        s.refuse({"prompt": "a", "stop": stop}, param="stop")
    for ids in ([-1], [999_999], [1.5], "1"):
        s.refuse({"prompt": "a", "stop_token_ids": ids}, param="stop_token_ids")


@case("A14", "prompts of ids")
def _(s):
    for prompt in ([-1], [999_999], [2147483648], [1.5], [], [[]], [1, "a"], ["a", 1], [True], None, 5, {"a": 1}):
        s.refuse({"prompt": prompt}, param="prompt" if prompt != [999_999] else None)
    s.refuse({"prompt": [1] * 1_000_000}, says="context")


@case("A15", "prompts that leave no room")
def _(s):
    context = s.get("/v1/models").json()["data"][0]["max_model_len"]
    for length in (context + 1, context):
        error = s.refuse({"prompt": [5] * length}).error()
        expect(error["code"] == "context_length_exceeded", error)
        expect(str(length) in error["message"] and str(context) in error["message"], error)
    reply = s.post("/v1/completions", {"prompt": [5] * (context - 1), "max_tokens": 1})
    expect(reply.status == 200, reply.body)
    slowest = 0
    done = threading.Event()

    def long_prompt():
        s.refuse(b'{"prompt": "' + b"x" * (30 << 20) + b'"}', says="context")
        done.set()

    thread = threading.Thread(target=long_prompt)
    thread.start()
    while not done.wait(0.01) and thread.is_alive():
        slowest = max(slowest, s.get("/health").seconds)
    thread.join()
    expect(done.is_set(), "30 MB of one letter were not refused")
    expect(slowest < 0.5, f"/health took {slowest:.3f} s meanwhile")


@case("A18", "other models, fields and content types", quick=False)
def _(s):
    expect(s.refuse({"prompt": "a", "model": "gpt-4"}, status=404).error()["code"] == "model_not_found", "its code")
    expect(s.complete(nonsense={"a": [1]}).status == 200, "an unknown field is ignored")
    expect(s.post("/v1/completions", {"prompt": "a"}, **{"content-type": "text/xml"}).status == 415, "text/xml")


FEATURES = {"presence_penalty": 1.5, "frequency_penalty": -1, "repetition_penalty": 1.3, "n": 2, "logprobs": 3, "stop": ["e", "."],
            "echo": True, "logit_bias": {"5": 4, "7": -100}, "min_tokens": 3, "top_k": 5, "top_p": 0.9, "min_p": 0.01,
            "stop_token_ids": [9], "prompt_logprobs": 2, "ignore_eos": True, "temperature": 0.9, "stream": True,
            "cache_salt": "a", "skip_special_tokens": False, "headrace": {"explain_cache": True}}


@case("A20", "all pairs of features")
def _(s):
    for one, two in itertools.combinations(FEATURES, 2):
        reply = s.complete(seed=1, max_tokens=3, **{one: FEATURES[one], two: FEATURES[two]})
        expect(reply.status == 200, f"{one} and {two}: {reply.status} {reply.body[:200]!r}")
        reply.body.decode("utf-8", "strict")


@case("A21", "fields beyond their ranges", quick=False)
def _(s):
    s.refuse({"prompt": "a", "stream_options": {"include_usage": True}}, param="stream_options")
    s.refuse({"prompt": "a", "seed": -1}, param="seed")
    s.refuse({"prompt": "a", "seed": 2**64}, param="seed")
    expect(s.complete(user="x" * 1_000_000).status == 200, "user is ignored")
    expect(s.complete(priority=2**70).status == 200, "priority is ignored")


def chat(**fields):
    return {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}


@case("A16", "messages")
def _(s):
    path = "/v1/chat/completions"
    for messages in ([], None, 5, [5], [{}], [{"role": 5}], [{"role": "user", "content": 5}],
                     [{"role": "user", "content": ["a", 5]}], [{"role": "user", "content": [{"type": "image_url"}]}],
                     [{"role": "user", "content": [{"type": "text"}]}]):
        s.refuse({"messages": messages}, path, param="messages")
    many = [{"role": "user", "content": "x"}] * 100_000
    expect(s.refuse({"messages": many}, path).error()["code"] in ("context_length_exceeded", "chat_template_error"), "its code")
    for streams in (False, True):
        expect(s.post(path, chat(stream=streams)).status == 200, "a chat")


@case("A17", "tools, schemas and other fields that change the answer")
def _(s):
    for name, value in {"tools": [{"type": "function"}], "functions": [{}], "function_call": "auto", "tool_choice": "required",
                        "response_format": {"type": "json_object"}, "audio": {}, "chat_template": "x",
                        "web_search_options": {}, "verbosity": "low"}.items():
        s.refuse(chat(**{name: value}), "/v1/chat/completions", param=name)
    for name in ("tokenize", "messages", "__class__", "chat_template", "add_generation_prompt"):
        s.refuse(chat(chat_template_kwargs={name: 1}), "/v1/chat/completions", param="chat_template_kwargs")
