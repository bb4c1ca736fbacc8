"""lm-eval's class for completions APIs: its log-likelihoods are those of a direct run."""

import json
import logging
import math
import os
import tempfile

import requests
from serving import KEY, MODEL, SAME_BITS, Server, finish, greedy_text, headrace, run_checks

os.environ["OPENAI_API_KEY"] = KEY
os.environ["TQDM_DISABLE"] = "1"
logging.disable(logging.WARNING)

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402

TEXTS = [
    "There was once a king who had a daughter, and she was so proud that no suitor was good enough for her.",
    "The wolf said to Little Red-Cap, \u2018What have you got in your apron?\u2019",
    "In olden times when wishing still helped one, there lived a king whose daughters were all beautiful.",
    "12 + 30 = 42; na\u00efve caf\u00e9 \U0001f600",
]


def instance(kind, arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def first_token(server, text):
    """The text up to its first token's end."""
    def ask(path, body):
        return requests.post(server.url + path, json=body, headers={"Authorization": f"Bearer {KEY}"}).json()

    ids = ask("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    return ask("/detokenize", {"tokens": ids[:1]})["prompt"]


def direct_log_likelihood(text):
    """Of all tokens but the first, and how exactly `eval perplexity` prints it."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        found = json.loads(headrace("eval", "perplexity", "-m", MODEL, "-f", file.name, "--json", *SAME_BITS))
    perplexity, tokens = found["perplexity"], found["tokens"]
    # It prints six digits behind the point; log-probabilities are floats.
    return -tokens * math.log(perplexity), tokens * (1e-6 / perplexity + 5e-7)


def log_likelihoods(server, model):
    """loglikelihood by echo, logprobs and token ids: a direct run's, within what is printed"""
    pairs = [(begin := first_token(server, text), text[len(begin):]) for text in TEXTS]
    found = model.loglikelihood([instance("loglikelihood", pair) for pair in pairs], disable_tqdm=True)
    for text, (likelihood, _) in zip(TEXTS, found):
        expected, tolerance = direct_log_likelihood(text)
        assert abs(likelihood - expected) <= tolerance, (text, likelihood, expected, tolerance)


def greedy_flags(model):
    """loglikelihood: is_greedy of the greedy continuation, and not of another"""
    prompt = "Once upon a time there was a king who"
    pairs = [(prompt, greedy_text(prompt, 8)), (prompt, " xylophone")]
    found = model.loglikelihood([instance("loglikelihood", pair) for pair in pairs], disable_tqdm=True)
    assert [is_greedy for _, is_greedy in found] == [True, False], found
    assert found[0][0] > found[1][0], found


def generations(model):
    """generate_until: the text of a direct run up to the stop"""
    prompt = "Once upon a time there was a king who"
    text = greedy_text(prompt, 24)
    stop = text[10:13]
    request = instance("generate_until", (prompt, {"until": [stop], "max_gen_toks": 24}))
    found = model.generate_until([request], disable_tqdm=True)
    assert found == [text[:text.index(stop)]], (found, text)


with Server() as served:
    evaluated = LocalCompletionsAPI(model="fairy", base_url=served.url + "/v1/completions", tokenizer_backend="remote",
                                    tokenized_requests=True, batch_size=2, auth_token=KEY, max_length=1024)
    checks = [(log_likelihoods, served, evaluated), (greedy_flags, evaluated), (generations, evaluated)]
    failed = run_checks("lm-eval", checks)
finish(failed)
