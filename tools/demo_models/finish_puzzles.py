#!/usr/bin/env python3
"""Finishes demo_models/puzzle-diffusion or puzzle-llada: the model's figures on the test items, samples, the loss curve.

  python3 tools/demo_models/finish_puzzles.py --model DIR

The items are written beside a block-diffusion model. They are the same for both models.
"""
import argparse
import json
import re
from pathlib import Path

import block_diffusion as bd
import masked_diffusion as md
import puzzles
import torch
import train_llada_puzzles
import train_puzzles
from loss_curve import draw_curve
from tokenizers import Tokenizer

PER_TASK = 100
THRESHOLDS = {"autoregressive": None, "one_token": 1.0, "0.99": 0.99, "0.95": 0.95, "0.9": 0.9, "0.7": 0.7, "0.5": 0.5,
              "0": 0.0}


class Blocks:
    """A model as train_puzzles.py makes it."""
    ways = THRESHOLDS

    def __init__(self, path, tokenizer):
        self.model, block, self.mask_id = bd.load(path)
        assert block == train_puzzles.BLOCK
        self.tokenizer = tokenizer

    def measure(self, items, threshold):
        return train_puzzles.measure(self.model, self.tokenizer, self.mask_id, items, threshold)

    def answer(self, prompt, count):
        return bd.reference_decode(self.model, prompt, count, train_puzzles.BLOCK, self.mask_id, threshold=0.9)

    @staticmethod
    def columns(entry):
        return {f"{kind} {task}".replace("_", " "): entry[kind][task] for task in puzzles.TASKS
                for kind in ("autoregressive", "block_0.9")}


class Whole:
    """A model as train_llada_puzzles.py makes it."""
    ways = train_llada_puzzles.WAYS

    def __init__(self, path, tokenizer):
        self.model, self.mask_id = md.load(path)
        self.ids = train_puzzles.character_ids(tokenizer, "cpu")

    def measure(self, items, way):
        return train_llada_puzzles.measure(self.model, self.ids, self.mask_id, items, **way)

    def answer(self, prompt, count):
        decoder = md.FullAttention(self.model, prompt.shape[1], 32)
        return md.decode(decoder, prompt, count, self.mask_id, 0.9)

    @staticmethod
    def columns(entry):
        return {task: entry[task] for task in puzzles.TASKS}


def write_json(path, value):
    """Indented, and objects that hold no others in a line each."""
    text = json.dumps(value, indent=1)
    path.write_text(re.sub(r"{[^{}]*}", lambda m: re.sub(r"\s*\n\s*", " ", m[0]), text) + "\n")


def write_items(path, items):
    with open(path, "w", encoding="utf-8") as out:
        for task, pairs in items.items():
            for prompt, answer in pairs:
                out.write(json.dumps(dict(task=task, prompt=prompt, answer=answer)) + "\n")


def write_samples(path, model, tokenizer, items):
    ids, texts = train_puzzles.character_ids(tokenizer, "cpu"), []
    for prompt, answer in [items["add"][0], items["sort"][0], items["reverse"][0], *items["sudoku"][:2]]:
        out, forwards = model.answer(ids[torch.tensor([[ord(c) for c in prompt]])], len(answer))
        text = tokenizer.decode(out[0].tolist())
        texts.append(f"{prompt}\n{text}\n{'right' if text == answer else 'wrong: ' + answer}, {int(forwards)} forwards")
    path.write_text("\n\n".join(texts) + "\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", type=Path, required=True)
    path = ap.parse_args().model
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    kind = Whole if json.loads((path / "config.json").read_text())["model_type"] == "llada" else Blocks
    model, items = kind(path, tokenizer), {t: puzzles.test_items(t, PER_TASK, puzzles.TEST, seed=200) for t in puzzles.TASKS}
    if kind is Blocks:
        write_items(path / "test.jsonl", items)
    training = json.loads((path / "training.json").read_text())
    training["test"] = {}
    for name, way in kind.ways.items():
        training["test"][name] = model.measure(items, way)
        print(name, training["test"][name], flush=True)
    write_json(path / "training.json", training)
    write_samples(path / "samples.txt", model, tokenizer, items)
    curve = [dict(step=c["step"], loss=c["train_loss"], **kind.columns(c)) for c in training["curve"]]
    draw_curve(curve, {k: k for k in curve[0] if k != "step"}, path / "loss_curve.svg",
               "share of exact answers; loss in nats per token")


if __name__ == "__main__":
    main()
