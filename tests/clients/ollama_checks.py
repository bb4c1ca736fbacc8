"""Ollama's Python client."""

import ollama
from serving import KEY, Server, finish, greedy_text, run_checks

PROMPT = "Once upon a time there was a king who"
MESSAGES = [{"role": "user", "content": PROMPT}]
GREEDY = {"temperature": 0, "num_predict": 16}


def models(client):
    """list, ps and show"""
    names = [m.model for m in client.list().models]
    assert any(name.startswith("fairy") for name in names), names
    loaded = client.ps().models[0]
    assert loaded.model == names[0] and loaded.size > 0 and loaded.expires_at.year == 9999, loaded
    assert client.show(names[0]) is not None


def generate(client):
    """generate: whole and streamed, the text of a direct run"""
    whole = client.generate("fairy", PROMPT, raw=True, options=GREEDY)
    direct = greedy_text(PROMPT, 16)
    assert whole.response == direct, (whole.response, direct)
    assert whole.done and whole.done_reason == "length" and whole.eval_count == 16 and whole.total_duration > 0, whole
    pieces = list(client.generate("fairy", PROMPT, raw=True, options=GREEDY, stream=True))
    assert "".join(p.response for p in pieces) == whole.response and pieces[-1].done, pieces


def chat(client):
    """chat: whole and streamed"""
    whole = client.chat("fairy", MESSAGES, options=GREEDY)
    assert whole.message.role == "assistant" and whole.message.content == greedy_text(PROMPT, 16), whole
    pieces = list(client.chat("fairy", MESSAGES, options=GREEDY, stream=True))
    assert "".join(p.message.content for p in pieces) == whole.message.content and pieces[-1].done, pieces


def errors(client):
    """errors: a ResponseError with a sentence and its status"""
    for call, status in ((lambda: client.chat("nobody", MESSAGES), 404),
                         (lambda: client.generate("fairy", PROMPT, options={"temperature": -1}), 400)):
        try:
            call()
        except ollama.ResponseError as error:
            assert error.status_code == status and len(error.error) > 10, (error.status_code, error.error)
        else:
            raise AssertionError("no error")


with Server() as server:
    official = ollama.Client(host=server.url, headers={"Authorization": f"Bearer {KEY}"})
    failed = run_checks("ollama", [(models, official), (generate, official), (chat, official), (errors, official)])
finish(failed)
