#!/usr/bin/env python3
"""Trains demo_models/puzzle-llada: a small LLaDA-shaped model that solves the tasks of puzzles.py, of any length.

  python3 tools/demo_models/train_llada_puzzles.py --out OUT

Problems are made as they are needed and never repeat by design; those of the test and validation parts are left out.
"""
import argparse
import collections
import json
import math
from pathlib import Path

import block_diffusion as bd
import masked_diffusion as md
import puzzles
import torch
from train import fit, make_tokenizer, round_to_bf16
from train_puzzles import SHARES, character_ids

SHORT, LONG = 80, 512  # tokens of a text
SPACES_BEFORE, SPACES_AFTER = 15, 3  # at most; three prompts in four have none at that end
WIDTH = SPACES_BEFORE + 32 + SPACES_AFTER + 16


def spaces(n, most, draw):
    count = (draw(0, 4 * most, (n, 1)) - (3 * most - 1)).clamp(min=0)
    present = torch.arange(most, device=count.device) < count
    return torch.where(present, ord(" "), puzzles.ABSENT)


def texts_of(task, n, generator):
    """Characters of prompt and answer one after the other [n, WIDTH], ABSENT behind them, and how long prompts and
    answers are; which of the texts may be trained on."""
    def draw(low, high, shape):
        return torch.randint(low, high, shape, generator=generator, device=generator.device)
    prompt, answer, part = puzzles.make(task, n, generator, puzzles.first_few)
    prompt = torch.cat([spaces(n, SPACES_BEFORE, draw), prompt, spaces(n, SPACES_AFTER, draw)], 1)
    chars = torch.cat([prompt, answer], 1)
    absent = chars == puzzles.ABSENT
    chars = chars.gather(1, absent.long().argsort(dim=1, stable=True))
    lengths = [(x != puzzles.ABSENT).sum(1, keepdim=True) for x in (prompt, answer)]
    return torch.nn.functional.pad(chars, (0, WIDTH - chars.shape[1])), *lengths, part > puzzles.VALIDATION


def batch_of(size, length, ids, generator):
    """Token sequences [size, length], filled up with END; the lengths of prompt and answer; who may be trained on."""
    texts = [texts_of(task, size * share // sum(SHARES.values()), generator) for task, share in SHARES.items()]
    chars, prompt_len, answer_len, kept = (torch.cat(column) for column in zip(*texts))
    tokens = ids[chars].masked_fill(chars == puzzles.ABSENT, bd.END_ID)
    return torch.nn.functional.pad(tokens, (0, length - WIDTH), value=bd.END_ID), prompt_len, answer_len, kept


def measure(model, ids, mask_id, items, *, strategy="full_attention", threshold=0.9, count=32):
    """Exact answers, their end token included, and visible tokens a pass, per task."""
    was_training, result = model.training, {}
    model.eval()
    for task, pairs in items.items():
        groups, exact, shown, passes = collections.defaultdict(list), 0, 0, 0
        for prompt, answer in pairs:
            groups[len(prompt), len(answer)].append((prompt, answer))
        for (prompt_len, answer_len), group in groups.items():
            prompts, answers = (ids[torch.tensor([[ord(c) for c in pair[k]] for pair in group], device=ids.device)]
                                for k in (0, 1))
            decoder = md.STRATEGIES[strategy](model, prompt_len, 32)
            out, forwards = md.decode(decoder, prompts, count, mask_id, threshold)
            wanted = torch.nn.functional.pad(answers, (0, count - answer_len), value=bd.END_ID)
            exact += int((out == wanted).all(1).sum())
            shown, passes = shown + answer_len * len(group), passes + int(forwards.sum())
        result[task] = dict(exact=round(exact / len(pairs), 4), tokens_per_forward=round(shown / passes, 3))
    model.train(was_training)
    return result


# What the finished model is asked: how it decodes, whether prompts are shorter ones, whether spaces stand before them.
WAYS = {"one_token": dict(threshold=md.NEVER), **{str(t): dict(threshold=t) for t in (0.99, 0.95, 0.9, 0.7, 0.5, 0.0)},
        "dual_cache_0.9": dict(strategy="dual_cache"), "d2f_0.95": dict(strategy="d2f", threshold=0.95),
        "canvas_of_20": dict(count=20), "canvas_of_256": dict(count=256)}


def measure_all(model, ids, mask_id, items, shorter):
    """The result of every way of WAYS, and of some with shorter prompts and with spaces before the prompt."""
    spaced = {t: [("   " + p, a) for p, a in pairs] for t, pairs in items.items()}
    result = {name: measure(model, ids, mask_id, items, **way) for name, way in WAYS.items()}
    for name in ("0.9", "dual_cache_0.9", "d2f_0.95"):
        result[f"shorter_prompts_{name}"] = measure(model, ids, mask_id, shorter, **WAYS[name])
    result["spaces_before_0.9"] = measure(model, ids, mask_id, spaced)
    for name, tasks in result.items():
        print(f"{name:30}", {t: (r["exact"], r["tokens_per_forward"]) for t, r in tasks.items()}, flush=True)
    return result


def arguments():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--layers", type=int, default=6)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--intermediate", type=int, default=320)
    ap.add_argument("--steps", type=int, default=6000)
    ap.add_argument("--long-every", type=int, default=8, help="every such step has few, long texts")
    ap.add_argument("--full-share", type=float, default=0.3, help="of answers that are masked whole")
    ap.add_argument("--tail-share", type=float, default=0.3, help="of answers that are masked from somewhere on")
    ap.add_argument("--apart-share", type=float, default=0.25, help="of prompts that do not see the answer")
    ap.add_argument("--lr", type=float, default=0.008)
    ap.add_argument("--weight-decay", type=float, default=0.05)
    ap.add_argument("--batch", type=int, default=640, help="short texts")
    ap.add_argument("--minutes", type=float, default=math.inf, help="end the schedule here at the latest")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--every", type=int, default=500)
    ap.add_argument("--validation", type=int, default=256, help="items a task")
    return ap.parse_args()


def loss_function(args, model, ids, mask_id):
    """The loss of a step: a batch of new problems under new noise."""
    generator = torch.Generator(device=args.device).manual_seed(args.seed)
    fast = bd.Compiled(md.loss, args.compile)

    def uniform(rows):
        return torch.rand(rows, 1, generator=generator, device=args.device)

    def loss_of(step):
        length = LONG if step % args.long_every == args.long_every - 1 else SHORT
        clean, prompt_len, answer_len, kept = batch_of(args.batch * SHORT // length, length, ids, generator)
        rows = len(clean)
        end = prompt_len + 1 + ((length - prompt_len) * uniform(rows)).long()  # of the canvas, maybe before the answer's
        noisy, weight = md.noise(clean, prompt_len, end, mask_id, generator, args.full_share, args.tail_share)
        weight = weight * kept[:, None] / ((answer_len + 1)[:, 0] * kept).sum().clamp(min=1)
        mask = md.visible(length, prompt_len, end, uniform(rows) < args.apart_share)
        with torch.autocast(args.device, torch.bfloat16):
            return fast(model, clean, noisy, weight, mask)
    return loss_of


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    tokenizer = make_tokenizer([], 257)  # END and the 256 bytes
    mask_id = tokenizer.get_vocab_size()
    ids = character_ids(tokenizer, args.device)
    model = md.make_model(vocab=-(-(mask_id + 1) // 8) * 8, hidden=args.hidden, layers=args.layers, heads=args.heads,
                          intermediate=args.intermediate, context=LONG).to(args.device)
    parameters, curve = sum(p.numel() for p in model.parameters()), []
    print(f"{parameters} parameters", flush=True)
    items, shorter = ({t: puzzles.test_items(t, args.validation, puzzles.VALIDATION, seed=100, cut=cut)
                       for t in puzzles.TASKS} for cut in (puzzles.all_of, puzzles.first_few))

    def watch(step, loss):
        exact = {t: r["exact"] for t, r in measure(model, ids, mask_id, items).items()}
        curve.append(dict(step=step, train_loss=round(loss, 5), **exact))
        print(curve[-1], flush=True)

    average, steps, minutes = fit(model, loss_function(args, model, ids, mask_id), watch, steps=args.steps, lr=args.lr,
                                  every=args.every, weight_decay=args.weight_decay, minutes=args.minutes)
    average.exchange()
    round_to_bf16(model)
    md.save(model, args.out, mask_id=mask_id)
    tokenizer.save(str(args.out / "tokenizer.json"))
    torch.backends.cuda.matmul.allow_tf32 = False
    final = measure_all(model, ids, mask_id, items, shorter)
    (args.out / "training.json").write_text(json.dumps(dict(
        arguments={k: str(v) for k, v in vars(args).items() if k != "out"}, parameters=parameters, steps=steps,
        problems=steps * args.batch, minutes=round(minutes, 2), validation=final, curve=curve), indent=1) + "\n")


if __name__ == "__main__":
    main()
