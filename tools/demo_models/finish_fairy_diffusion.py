#!/usr/bin/env python3
"""Finishes demo_models/fairy-diffusion: samples and their measures, the loss curve, the golden of greedy decoding.

  python3 tools/demo_models/finish_fairy_diffusion.py --model DIR --books DIR --golden DIR
"""
import argparse
import json
from pathlib import Path

import block_diffusion as bd
import torch
from finish import PROMPTS, draw_curve, measures
from tokenizers import Tokenizer
from train import read_books

MORE_PROMPTS = ["The princess opened the little door", "“Who are you?” asked the giant", "In a far country there lived",
                "When the prince came to the castle", "The wolf said to the goat"]
SAMPLING = dict(threshold=0.9, temperature=1.0, top_p=0.9)  # likeliest first is already careful
OF_FAIRY_HYBRID = dict(threshold=0.9, temperature=0.8, top_p=0.95)
SEEDS = (7, 1, 11)  # samples.txt is by the first
MARGIN = 2e-4  # below it, rounding may choose another token, or another position


def samples(model, block, mask_id, tokenizer, books, sampling, seed, path=None):
    """The measures of five texts of 200 tokens, which are written to `path`."""
    generator, ids, forwards = torch.Generator().manual_seed(seed), [], 0
    for prompt in PROMPTS[:5]:
        out, steps = bd.reference_decode(model, torch.tensor([tokenizer.encode(prompt).ids]), 200, block, mask_id,
                                         generator=generator, **sampling)
        ids.append(out[0].tolist())
        forwards += int(steps)
    texts = [p + tokenizer.decode(i, skip_special_tokens=False) for p, i in zip(PROMPTS, ids)]
    if path:
        path.write_text("\n\n----\n\n".join(texts) + "\n", encoding="utf-8")
    result = dict(**sampling, seed=seed, tokens=200, tokens_per_forward=round(1000 / forwards, 3),
                  **measures(texts, ids, books, tokenizer))
    print(result, flush=True)
    return result


def golden(model, block, mask_id, tokenizer, blocks, threshold):
    entries = []
    for prompt in PROMPTS + MORE_PROMPTS:
        ids, trace = tokenizer.encode(prompt).ids, []
        count = blocks * block - len(ids) % block  # the last block ends with the output
        out, forwards = bd.reference_decode(model, torch.tensor([ids]), count, block, mask_id, threshold=threshold,
                                            trace=trace)
        margin = min(t["margin"] for t in trace)
        print(f"greedy {prompt!r}: {int(forwards)} forwards, smallest margin {margin:.2e}", flush=True)
        if margin >= MARGIN:
            entries.append(dict(prompt=prompt, prompt_ids=ids, ids=out[0].tolist(), forwards=int(forwards),
                                smallest_margin=margin, kept=[t["kept"] for t in trace]))
    assert len(entries) >= 5, "fewer than five prompts with a safe margin"
    entries = sorted(entries, key=lambda e: e["forwards"])[:5]  # those that keep most tokens at once
    return dict(threshold=threshold, block_size=block, prompts=entries)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", type=Path, required=True)
    ap.add_argument("--books", type=Path, required=True)
    ap.add_argument("--golden", type=Path, required=True)
    args = ap.parse_args()
    model, block, mask_id = bd.load(args.model)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    books, _ = read_books(args.books)
    training = json.loads((args.model / "training.json").read_text())
    one = (model, block, mask_id, tokenizer, books)
    training["samples"] = samples(*one, SAMPLING, SEEDS[0], args.model / "samples.txt")
    training["more_samples"] = [samples(*one, SAMPLING, seed) for seed in SEEDS[1:]]
    training["more_samples"] += [samples(*one, OF_FAIRY_HYBRID, seed) for seed in SEEDS]
    (args.model / "training.json").write_text(json.dumps(training, indent=1) + "\n")
    draw_curve(training["curve"], dict(held_out_bpb_block_1="held out, bits per byte, block 1",
                                       held_out_bpb_block=f"held out, bits per byte, block {block}",
                                       train_loss="training loss, nats per token"), args.model / "loss_curve.png")
    result = golden(model, block, mask_id, tokenizer, 9, 0.5)
    (args.golden / "fairy_diffusion_greedy.json").write_text(json.dumps(result, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
