#!/usr/bin/env python3
"""Finishes a trained demo model: samples and their measures, held-out bits per byte, the loss curve, the greedy golden.

  python3 tools/demo_models/finish.py --model DIR --books DIR --golden DIR
"""
import argparse
import hashlib
import json
import math
import re
from pathlib import Path

import torch
from loss_curve import draw_training
from tokenizers import Tokenizer
from train import HELD_OUT, WINDOW, encode
from transformers import AutoModelForCausalLM, Qwen3_5ForCausalLM

PROMPTS = ["Once upon a time", "There was once a king who had three daughters", "In the middle of a great forest",
           "The old woman looked at the boy and said", "Far away, where the swallows fly in winter",
           "“Good evening,” said the fox", "A poor miller had"]


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


RECIPE = ("tokens of the whole book cut into windows of 512 without overlap, the last one shorter; a window is run by "
          "itself from position 0 and predicts its tokens 1 and on; bits = -log2 p summed over the predicted tokens, "
          "bytes = UTF-8 bytes of the predicted tokens")


@torch.no_grad()
def held_out(model, tokenizer, book):
    """Bits per byte in float32 on the CPU; the first windows come with their ids, to be checked without the book."""
    text = book.read_text(encoding="utf-8")
    ids, lengths = encode(tokenizer, text)
    windows = []
    for at in range(0, len(ids) - 1, WINDOW):
        part = ids[at:at + WINDOW]
        if len(part) < 2:
            break
        x = torch.tensor([part])
        logits = model(input_ids=x, use_cache=False).logits
        nats = torch.nn.functional.cross_entropy(logits[0, :-1].double(), x[0, 1:], reduction="sum").item()
        windows.append(dict(bits=nats / math.log(2), bytes=sum(lengths[at + 1:at + len(part)]), ids=part))
    bits, size = sum(w["bits"] for w in windows), sum(w["bytes"] for w in windows)
    return dict(recipe=RECIPE, book=HELD_OUT, book_sha256=hashlib.sha256(text.encode()).hexdigest(),
                book_bytes=len(text.encode()), tokens=len(ids), windows=len(windows),
                predicted_tokens=sum(len(w["ids"]) - 1 for w in windows), predicted_bytes=size, bits=bits,
                bits_per_byte=bits / size, first_windows=windows[:4])


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
    measured = held_out(model, tokenizer, args.books / HELD_OUT)
    (args.golden / "fairy_hybrid_bpb.json").write_text(json.dumps(measured, indent=0) + "\n")
    training["held_out_bpb"] = round(measured["bits_per_byte"], 4)
    (args.model / "training.json").write_text(json.dumps(training, indent=1) + "\n")
    print({k: v for k, v in measured.items() if k != "first_windows"}, flush=True)
    draw_training(args.model)


if __name__ == "__main__":
    main()
