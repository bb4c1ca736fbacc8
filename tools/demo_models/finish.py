#!/usr/bin/env python3
"""Finishes a trained demo model: samples and their measures, the loss curve, and the greedy golden of the tests.

  python3 tools/demo_models/finish.py --model DIR --books DIR --golden DIR
"""
import argparse
import json
import re
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Qwen3_5ForCausalLM

PROMPTS = ["Once upon a time", "There was once a king who had three daughters", "In the middle of a great forest",
           "The old woman looked at the boy and said", "Far away, where the swallows fly in winter",
           "“Good evening,” said the fox", "A poor miller had"]
HELD_OUT = "The-Wind-in-the-Willows.txt"


@torch.no_grad()
def generate(model, ids, count, temperature, top_p, generator):
    out, cache, x, margin = [], None, torch.tensor([ids]), float("inf")
    for _ in range(count):
        result = model(input_ids=x, past_key_values=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1].float()
        if temperature == 0:
            top = logits.topk(2)
            margin = min(margin, float(top.values[0] - top.values[1]))
            token = int(top.indices[0])
        else:
            p, index = (logits / temperature).softmax(-1).sort(descending=True)
            p[(p.cumsum(-1) - p) > top_p] = 0
            token = int(index[torch.multinomial(p / p.sum(), 1, generator=generator)])
        out.append(token)
        x = torch.tensor([[token]])
    return out, margin


def measures(samples, ids, books, tokenizer):
    words = set(re.findall(r"[a-z]+", " ".join(books).lower()))
    found = [w for s in samples for w in re.findall(r"[a-z]+", s.lower())]
    grams = [tuple(i[k:k + 4]) for i in ids for k in range(len(i) - 3)]
    stream = [tokenizer.encode(b).ids for b in books]
    runs = {tuple(s[k:k + 30]) for s in stream for k in range(len(s) - 29)}
    copied = any(tuple(i[k:k + 30]) in runs for i in ids for k in range(len(i) - 29))
    return dict(dictionary_words=round(sum(w in words for w in found) / len(found), 4),
                distinct_4grams=round(len(set(grams)) / len(grams), 4), copied_run_of_30_tokens=copied)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", type=Path, required=True)
    ap.add_argument("--books", type=Path, required=True)
    ap.add_argument("--golden", type=Path, required=True)
    args = ap.parse_args()
    torch.set_num_threads(4)
    model = Qwen3_5ForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    assert type(AutoModelForCausalLM.from_pretrained(args.model)).__name__ == "Qwen3_5ForCausalLM"
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    books = [p.read_text(encoding="utf-8") for p in sorted(args.books.glob("*.txt")) if p.name != HELD_OUT]
    generator = torch.Generator().manual_seed(7)
    ids = [generate(model, tokenizer.encode(p).ids, 200, 0.8, 0.95, generator)[0] for p in PROMPTS[:5]]
    samples = [p + tokenizer.decode(i, skip_special_tokens=False) for p, i in zip(PROMPTS, ids)]
    result = measures(samples, ids, books, tokenizer)
    (args.model / "samples.txt").write_text("\n\n----\n\n".join(samples) + "\n", encoding="utf-8")
    training = json.loads((args.model / "training.json").read_text())
    training["samples"] = dict(temperature=0.8, top_p=0.95, seed=7, tokens=200, **result)
    (args.model / "training.json").write_text(json.dumps(training, indent=1) + "\n")
    print(json.dumps(training["samples"]), flush=True)
    greedy = []
    for prompt in PROMPTS:
        prompt_ids = tokenizer.encode(prompt).ids
        out, margin = generate(model, prompt_ids, 200, 0, 1, None)
        print(f"greedy {prompt!r}: smallest margin {margin:.2e}", flush=True)
        if margin >= 2e-4 and len(greedy) < 5:  # below that, rounding may choose the other token
            greedy.append(dict(prompt=prompt, prompt_ids=prompt_ids, ids=out, smallest_margin=margin))
    assert len(greedy) == 5, "fewer than five prompts with a safe margin"
    args.golden.mkdir(parents=True, exist_ok=True)
    (args.golden / "fairy_hybrid_greedy.json").write_text(json.dumps(greedy, ensure_ascii=False, indent=0) + "\n")
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        curve = training["curve"]
        plt.figure(figsize=(6, 3.5))
        plt.plot([c["step"] for c in curve], [c["held_out_bpb"] for c in curve], label="held-out bits per byte")
        plt.plot([c["step"] for c in curve], [c["train_loss"] for c in curve], label="training loss (nats per token)")
        plt.xlabel("step"), plt.legend(), plt.grid(alpha=0.3), plt.tight_layout()
        plt.savefig(args.model / "loss_curve.png", dpi=110)
    except ImportError:
        print("matplotlib is missing: no loss curve drawn")


if __name__ == "__main__":
    main()
