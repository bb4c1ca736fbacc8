#!/usr/bin/env python3
"""Trains demo_models/puzzle-diffusion: a small SDAR-shaped model that solves the tasks of puzzles.py, in blocks or token by token.

  python3 tools/demo_models/train_puzzles.py --out OUT

Problems are made as they are needed and never repeat by design; those of the test and validation parts are left out.
"""
import argparse
import json
import math
from pathlib import Path

import block_diffusion as bd
import puzzles
import torch
from train import fit, make_tokenizer, round_to_bf16

BLOCK = 16
SHARES = {"add": 1, "sort": 1, "reverse": 1, "sudoku": 2}  # of a batch


def character_ids(tokenizer, device):
    """ASCII code -> token id."""
    return torch.tensor([tokenizer.encode(chr(c)).ids[0] for c in range(128)], device=device)


def batch_of(size, ids, generator):
    """Sequences [size, 64], which of their tokens the answer's blocks hold, the answers with one END, who is kept."""
    sequences, whole, answer, kept = [], [], [], []
    at = torch.arange(puzzles.LENGTH, device=ids.device)
    for task, share in SHARES.items():
        prompt_len, answer_len = puzzles.TASKS[task]
        n = size * share // sum(SHARES.values())
        prompt, solution, part = puzzles.make(task, n, generator)
        filler = torch.full((n, puzzles.LENGTH - prompt_len - answer_len), bd.END_ID, device=ids.device)
        sequences.append(torch.cat([ids[prompt], ids[solution], filler], 1))
        end = prompt_len + answer_len
        whole.append(((at >= prompt_len) & (at <= end // BLOCK * BLOCK + BLOCK - 1)).expand(n, -1))
        answer.append(((at >= prompt_len) & (at <= end)).expand(n, -1))
        kept.append(part >= max(puzzles.TEST, puzzles.VALIDATION) + 1)
    return torch.cat(sequences), torch.cat(whole), torch.cat(answer), torch.cat(kept)


@torch.no_grad()
def measure(model, tokenizer, mask_id, items, threshold):
    """Exact answers, visible tokens a denoising forward, per task. Threshold None: next tokens, one by one."""
    ids, result = character_ids(tokenizer, model.device), {}
    was_training = model.training
    model.eval()
    for task, pairs in items.items():
        prompts = ids[torch.tensor([[ord(c) for c in p] for p, _ in pairs], device=model.device)]
        answers = ids[torch.tensor([[ord(c) for c in a] for _, a in pairs], device=model.device)]
        count = answers.shape[1]
        if threshold is None:
            out = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=count,
                                 do_sample=False)[:, prompts.shape[1]:]
            out = torch.nn.functional.pad(out, (0, count - out.shape[1]), value=bd.END_ID)
            forwards = torch.full((len(pairs),), count)
        else:
            out, forwards = bd.reference_decode(model, prompts, count, BLOCK, mask_id, threshold=threshold)
        exact = (out == answers).all(1).float().mean().item()
        result[task] = dict(exact=round(exact, 4), tokens_per_forward=round(count / forwards.float().mean().item(), 3))
    model.train(was_training)
    return result


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--hidden", type=int, default=256)
    ap.add_argument("--layers", type=int, default=6)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--intermediate", type=int, default=768)
    ap.add_argument("--steps", type=int, default=6000)
    ap.add_argument("--single-every", type=int, default=3, help="every such step has blocks of one token")
    ap.add_argument("--full-share", type=float, default=0.3, help="of blocks that are masked whole")
    ap.add_argument("--lr", type=float, default=0.008)
    ap.add_argument("--weight-decay", type=float, default=0.05)
    ap.add_argument("--batch", type=int, default=640)
    ap.add_argument("--minutes", type=float, default=math.inf, help="end the schedule here at the latest")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--every", type=int, default=250)
    ap.add_argument("--validation", type=int, default=256, help="items a task")
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    tokenizer = make_tokenizer([], 257)  # END and the 256 bytes
    mask_id = tokenizer.get_vocab_size()
    ids = character_ids(tokenizer, args.device)
    model = bd.make_model(vocab=-(-(mask_id + 1) // 8) * 8, hidden=args.hidden, layers=args.layers, heads=args.heads,
                          kv_heads=args.kv_heads, intermediate=args.intermediate).to(args.device)
    parameters, curve = sum(p.numel() for p in model.parameters()), []
    print(f"{parameters} parameters", flush=True)
    generator = torch.Generator(device=args.device).manual_seed(args.seed)
    masks = {b: bd.training_mask(puzzles.LENGTH, b, args.device) for b in (1, BLOCK)}
    validation = {t: puzzles.test_items(t, args.validation, puzzles.VALIDATION, seed=100) for t in puzzles.TASKS}
    doubled = bd.Compiled(bd.doubled_loss, args.compile)

    def loss_of(step):
        x, whole, answer, kept = batch_of(args.batch, ids, generator)
        single = step % args.single_every == args.single_every - 1
        block, wanted = (1, answer) if single else (BLOCK, whole)
        noisy, masked, _ = bd.noise(x, block, wanted, mask_id, generator, args.full_share)
        weight = (masked & kept[:, None]).float()
        following = (answer & kept[:, None]).float() if single else torch.zeros_like(weight)
        weight, following = weight / weight.sum(), following / following.sum().clamp(min=1)
        with torch.autocast(args.device, torch.bfloat16):
            return doubled(model, x, noisy, weight, following, masks[block])

    def watch(step, loss):
        exact = {name: {t: r["exact"] for t, r in measure(model, tokenizer, mask_id, validation, threshold).items()}
                 for name, threshold in (("autoregressive", None), ("block_0.9", 0.9))}
        curve.append(dict(step=step, train_loss=round(loss, 5), **exact))
        print(curve[-1], flush=True)

    average, steps, minutes = fit(model, loss_of, watch, steps=args.steps, lr=args.lr, every=args.every,
                                  weight_decay=args.weight_decay, minutes=args.minutes)
    average.exchange()
    round_to_bf16(model)
    final = {name: measure(model, tokenizer, mask_id, validation, threshold) for name, threshold in
             (("autoregressive", None), ("one_token", 1.0), ("0.95", 0.95), ("0.9", 0.9), ("0.5", 0.5), ("0", 0.0))}
    for name, result in final.items():
        print(name, result, flush=True)
    bd.save(model, args.out, block=BLOCK, mask_id=mask_id, generation=dict(do_sample=False))
    tokenizer.save(str(args.out / "tokenizer.json"))
    (args.out / "training.json").write_text(json.dumps(dict(
        arguments={k: str(v) for k, v in vars(args).items() if k != "out"}, parameters=parameters, steps=steps,
        problems=steps * args.batch, minutes=round(minutes, 2), validation=final, curve=curve), indent=1) + "\n")


if __name__ == "__main__":
    main()
