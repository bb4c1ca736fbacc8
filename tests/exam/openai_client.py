#!/usr/bin/env python3
"""OpenAI's and Ollama's own Python clients against a server, OpenAI's with strict validation of responses.

usage: openai_client.py PROGRAM    (needs the packages openai and ollama)
"""

import sys

import ollama
from openai import BadRequestError, NotFoundError, OpenAI

from harness import Server, expect

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


def check_chats(client, model):
    messages = [{"role": "user", "content": "Hi"}]
    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=8, seed=1, n=2, logprobs=True, top_logprobs=2)
    expect([choice.index for choice in whole.choices] == [0, 1], whole)
    expect(len(whole.choices[0].logprobs.content) == 8 and whole.usage.completion_tokens == 16, whole)
    text, usage = "", None
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    for chunk in client.chat.completions.create(model=model, messages=parts, max_completion_tokens=8, seed=1, stream=True,
                                                stream_options={"include_usage": True}, logprobs=True):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    expect(text == whole.choices[0].message.content and usage.completion_tokens == 8, (text, usage, whole))


def check_completions(client, lenient, model):
    whole = client.completions.create(model=model, prompt=["Once", "The"], max_tokens=5, logprobs=2, n=2, seed=1)
    expect(len(whole.choices) == 4 and whole.usage.completion_tokens == 20, whole)
    pieces = lenient.completions.create(model=model, prompt="Once", max_tokens=5, seed=1, stream=True)
    expect("".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text, whole)


def check_errors(client, model):
    messages = [{"role": "user", "content": "Hi"}]
    for kind, param, arguments in ((NotFoundError, "model", {"model": "gpt"}),
                                   (BadRequestError, "tools", {"model": model, "tools": [{"type": "function", "function": {"name": "f"}}]}),
                                   (BadRequestError, "temperature", {"model": model, "temperature": -1})):
        try:
            client.chat.completions.create(messages=messages, **arguments)
            expect(False, f"{arguments} was taken")
        except kind as error:
            expect(error.param == param, error)


def check_ollama(client, model):
    messages = [{"role": "user", "content": "Hi"}]
    expect(client.list().models[0].model == model and client.show(model).details.format == "safetensors", "its models")
    options = {"num_predict": 5, "seed": 1}
    whole = client.chat(model=model, messages=messages, options=options)
    pieces = list(client.chat(model=model, messages=messages, options=options, stream=True))
    expect(whole.message.content == "".join(piece.message.content for piece in pieces), whole)
    expect(pieces[-1].done and pieces[-1].eval_count == 5, pieces[-1])
    expect(client.generate(model=model, prompt="Once", options=options).response, "a text")
    try:
        client.chat(model="none", messages=messages)
        expect(False, "another model was taken")
    except ollama.ResponseError as error:
        expect(error.status_code == 404, error)


def main():
    server = Server(sys.argv[1], "-c", "512", "--chat-template", TEMPLATE)
    url = f"http://127.0.0.1:{server.port}"
    strict = OpenAI(base_url=url + "/v1", api_key="none", _strict_response_validation=True)
    lenient = OpenAI(base_url=url + "/v1", api_key="none")  # its type of pieces of completions knows no null
    model = strict.models.list().data[0].id
    expect(strict.models.retrieve(model).id == model, "its model")
    check_chats(strict, model)
    check_completions(strict, lenient, model)
    check_errors(strict, model)
    check_ollama(ollama.Client(host=url), model)
    expect(server.end() == 0, "its status")
    print("clients: all right")


main()
