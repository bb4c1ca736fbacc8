#!/usr/bin/env python3
"""Trains demo_models/fairy-diffusion: an SDAR-shaped block-diffusion model on the hybrid's books, with its tokenizer.

  python3 tools/demo_models/train_fairy_diffusion.py --books DIR --tokenizer demo_models/fairy-hybrid/tokenizer.json --out OUT

First autoregressive, then continued: a clean and a noisy copy under the block-causal mask, every fourth step in blocks
of one token. Needs PyTorch and transformers >= 5.17; a GPU unless the steps are few.
"""
import argparse
import json
import math
import random
from pathlib import Path

import block_diffusion as bd
import torch
from tokenizers import Tokenizer
from train import WINDOW, add_dropout, encode, fit, random_windows, read_books, round_to_bf16


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--books", type=Path, required=True)
    ap.add_argument("--tokenizer", type=Path, required=True)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--block", type=int, default=8)
    ap.add_argument("--hidden", type=int, default=384)
    ap.add_argument("--layers", type=int, default=6)
    ap.add_argument("--heads", type=int, default=6)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--intermediate", type=int, default=1024)
    ap.add_argument("--ar-steps", type=int, default=400, help="autoregressive steps before the diffusion begins")
    ap.add_argument("--steps", type=int, default=2400, help="of both")
    ap.add_argument("--single-every", type=int, default=4, help="every such diffusion step has blocks of one token")
    ap.add_argument("--dropout", type=float, default=0.15)
    ap.add_argument("--lr", type=float, default=0.008)
    ap.add_argument("--weight-decay", type=float, default=0.3)
    ap.add_argument("--batch", type=int, default=32, help="windows of 512 tokens")
    ap.add_argument("--minutes", type=float, default=math.inf, help="end the schedule here at the latest")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--watch-windows", type=int, default=48, help="held-out windows of the curve")
    ap.add_argument("--every", type=int, default=100)
    args = ap.parse_args()
    random.seed(args.seed), torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    texts, held = read_books(args.books)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    mask_id = tokenizer.get_vocab_size()
    stream = [i for t in texts for i in tokenizer.encode(t).ids + [bd.END_ID]]
    held_ids, held_lengths = encode(tokenizer, held)
    model = bd.make_model(vocab=-(-(mask_id + 1) // 8) * 8, hidden=args.hidden, layers=args.layers, heads=args.heads,
                          kv_heads=args.kv_heads, intermediate=args.intermediate).to(args.device)
    add_dropout(model, args.dropout)
    parameters, curve = sum(p.numel() for p in model.parameters()), []
    print(f"{parameters} parameters, {len(stream)} tokens", flush=True)
    windows = random_windows(torch.tensor(stream, device=args.device), args.batch)
    generator = torch.Generator(device=args.device).manual_seed(args.seed)
    masks = {b: bd.training_mask(WINDOW, b, args.device) for b in (1, args.block)}
    everywhere = torch.ones(args.batch, WINDOW, dtype=torch.bool, device=args.device)
    doubled = bd.Compiled(bd.doubled_loss, args.compile)

    def bits(block, count=args.watch_windows, autocast=args.device == "cuda"):
        return bd.bits_per_byte(model, held_ids, held_lengths, block, mask_id, windows=count, autocast=autocast)

    def watch(step, loss):
        curve.append(dict(step=step, train_loss=round(loss, 4), held_out_bpb_block_1=round(bits(1), 4),
                          held_out_bpb_block=round(bits(args.block), 4)))
        print(curve[-1], flush=True)

    def loss_of(step):
        x = next(windows)
        with torch.autocast(args.device, torch.bfloat16):
            if step < args.ar_steps:
                logits = model(input_ids=x, use_cache=False).logits
                return bd.nats(logits[:, :-1], x[:, 1:]).mean()
            block = 1 if (step - args.ar_steps) % args.single_every == args.single_every - 1 else args.block
            noisy, masked, count = bd.noise(x, block, everywhere, mask_id, generator)
            share = 0.5 if block == 1 else 0.0  # of the clean rows' next-token loss
            weight = (1 - share) * block * masked / count / x.numel()
            following = torch.full_like(weight, share / x.numel())
            return doubled(model, x, noisy, weight, following, masks[block])

    average, steps, minutes = fit(model, loss_of, watch, steps=args.steps, lr=args.lr, every=args.every,
                                  weight_decay=args.weight_decay, minutes=args.minutes)
    last = bits(1) + bits(args.block)
    average.exchange()
    averaged = bits(1) + bits(args.block)
    if last < averaged:
        average.exchange()
    round_to_bf16(model)
    torch.backends.cuda.matmul.allow_tf32 = False
    final = {f"held_out_bpb_block_{b}": round(bits(b, None, False), 4) for b in (1, args.block)}
    print(f"last {last:.4f} averaged {averaged:.4f} {final}", flush=True)
    bd.save(model, args.out, block=args.block, mask_id=mask_id, generation=dict(do_sample=True, temperature=1.0, top_p=0.9))
    (args.out / "tokenizer.json").write_bytes(args.tokenizer.read_bytes())
    (args.out / "training.json").write_text(json.dumps(dict(
        arguments={k: str(v) for k, v in vars(args).items() if k not in ("books", "out", "tokenizer")}, **final,
        parameters=parameters, training_tokens=len(stream), steps=steps,
        epochs_run=round(steps * args.batch * WINDOW / len(stream), 2), minutes=round(minutes, 2),
        weights="average" if averaged <= last else "last", curve=curve), indent=1) + "\n")


if __name__ == "__main__":
    main()
