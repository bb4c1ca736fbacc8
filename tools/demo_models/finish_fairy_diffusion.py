#!/usr/bin/env python3
"""Finishes demo_models/fairy-diffusion: samples and their measures, the loss curve, the goldens of greedy decoding and of
the bits of held-out windows. With --only-bits the last alone.

  python3 tools/demo_models/finish_fairy_diffusion.py --model DIR --books DIR --golden DIR
"""
import argparse
import hashlib
import json
import math
from pathlib import Path

import block_diffusion as bd
import torch
from finish import PROMPTS, measures
from loss_curve import draw_training
from tokenizers import Tokenizer
from train import HELD_OUT, encode, read_books

MORE_PROMPTS = ["The princess opened the little door", "“Who are you?” asked the giant", "In a far country there lived",
                "When the prince came to the castle", "The wolf said to the goat"]
SAMPLING = dict(threshold=0.9, temperature=1.0, top_p=0.9)  # likeliest first is already careful
OF_FAIRY_HYBRID = dict(threshold=0.9, temperature=0.8, top_p=0.95)
SEEDS = (7, 1, 11)  # samples.txt is by the first
MARGIN = 2e-4  # below it, rounding may choose another token, or another position
BITS_OF = 128  # tokens of a window in the golden of bits


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


@torch.no_grad()
def window_bits(model, block, mask_id, ids):
    """Of one window: its bits in blocks of one token, in the model's blocks with the noisy copies that they are a mean over,
    and as a next-token model."""
    x, generator = torch.tensor([ids]), torch.Generator().manual_seed(len(ids))
    result = dict(ids=ids, noisy=[])
    for size in (1, block):
        mask, bits = bd.training_mask(len(ids), size, x.device), 0.0
        for count in range(1, size + 1):
            everywhere = torch.ones(1, len(ids) // size, size, dtype=torch.bool)
            masked = bd.choose(torch.rand(everywhere.shape, generator=generator), everywhere, count).view(x.shape)
            noisy = x.masked_fill(masked, mask_id)
            bits += float(bd.doubled_loss(model, x, noisy, masked / count, torch.zeros_like(x), mask)) / math.log(2)
            if size > 1:
                result["noisy"].append(noisy[0].tolist())
        result["bits_of_one" if size == 1 else "bits_of_blocks"] = bits
    result["bits_of_next"] = float(bd.nats(model(x, use_cache=False).logits[:, :-1], x[:, 1:]).sum()) / math.log(2)
    return result


def held_out(model, block, mask_id, tokenizer, book):
    """Two windows of the held-out book, to check without it."""
    text = book.read_text(encoding="utf-8")
    ids, _ = encode(tokenizer, text)
    windows = [window_bits(model, block, mask_id, ids[at:at + BITS_OF]) for at in (0, 40 * BITS_OF)]
    return dict(book=HELD_OUT, book_sha256=hashlib.sha256(text.encode()).hexdigest(), block_size=block, mask_id=mask_id,
                windows=windows)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", type=Path, required=True)
    ap.add_argument("--books", type=Path, required=True)
    ap.add_argument("--golden", type=Path, required=True)
    ap.add_argument("--only-bits", action="store_true")
    args = ap.parse_args()
    model, block, mask_id = bd.load(args.model)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    books, _ = read_books(args.books)
    bits = held_out(model, block, mask_id, tokenizer, args.books / HELD_OUT)
    (args.golden / "fairy_diffusion_bpb.json").write_text(json.dumps(bits, separators=(",", ":")) + "\n")
    if args.only_bits:
        return
    training = json.loads((args.model / "training.json").read_text())
    one = (model, block, mask_id, tokenizer, books)
    training["samples"] = samples(*one, SAMPLING, SEEDS[0], args.model / "samples.txt")
    training["more_samples"] = [samples(*one, SAMPLING, seed) for seed in SEEDS[1:]]
    training["more_samples"] += [samples(*one, OF_FAIRY_HYBRID, seed) for seed in SEEDS]
    (args.model / "training.json").write_text(json.dumps(training, indent=1) + "\n")
    draw_training(args.model)
    result = golden(model, block, mask_id, tokenizer, 9, 0.5)
    (args.golden / "fairy_diffusion_greedy.json").write_text(json.dumps(result, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
