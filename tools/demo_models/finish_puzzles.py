#!/usr/bin/env python3
"""Finishes demo_models/puzzle-diffusion: the test items, the model's figures on them, five samples, the loss curve.

  python3 tools/demo_models/finish_puzzles.py --model DIR
"""
import argparse
import json
from pathlib import Path

import block_diffusion as bd
import puzzles
import torch
from loss_curve import draw_training
from tokenizers import Tokenizer
from train_puzzles import BLOCK, character_ids, measure

PER_TASK = 100
THRESHOLDS = {"autoregressive": None, "one_token": 1.0, "0.99": 0.99, "0.95": 0.95, "0.9": 0.9, "0.7": 0.7, "0.5": 0.5,
              "0": 0.0}


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", type=Path, required=True)
    args = ap.parse_args()
    model, block, mask_id = bd.load(args.model)
    assert block == BLOCK
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    items = {t: puzzles.test_items(t, PER_TASK, puzzles.TEST, seed=200) for t in puzzles.TASKS}
    with open(args.model / "test.jsonl", "w", encoding="utf-8") as out:
        for task, pairs in items.items():
            for prompt, answer in pairs:
                out.write(json.dumps(dict(task=task, prompt=prompt, answer=answer)) + "\n")
    training = json.loads((args.model / "training.json").read_text())
    training["test"] = {}
    for name, threshold in THRESHOLDS.items():
        training["test"][name] = measure(model, tokenizer, mask_id, items, threshold)
        print(name, training["test"][name], flush=True)
    (args.model / "training.json").write_text(json.dumps(training, indent=1) + "\n")
    ids, texts = character_ids(tokenizer, "cpu"), []
    for prompt, answer in [items["add"][0], items["sort"][0], items["reverse"][0], *items["sudoku"][:2]]:
        out, forwards = bd.reference_decode(model, ids[torch.tensor([[ord(c) for c in prompt]])], len(answer), block,
                                            mask_id, threshold=0.9)
        text = tokenizer.decode(out[0].tolist())
        texts.append(f"{prompt}\n{text}\n{'right' if text == answer else 'wrong: ' + answer}, {int(forwards)} forwards")
    (args.model / "samples.txt").write_text("\n\n".join(texts) + "\n")
    draw_training(args.model)


if __name__ == "__main__":
    main()
