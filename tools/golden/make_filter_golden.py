#!/usr/bin/env python3
"""What is left of a row of logits after temperature, top-k and top-p, in the orders that the families publish.

  python3 tools/golden/make_filter_golden.py --out tests/golden/filters.json

Dream: logits / T, top-p, top-k, softmax. LLaDA2: logits / T, top-k, top-p, softmax. A filter sets what it cuts to minus
infinity and the next one starts from the softmax of what is left. In float64 over float32 logits. The tokens left are
listed in descending order of their probability, with it.
"""
import argparse
import json
from pathlib import Path

import numpy as np


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def top_k(logits, k):
    if k == 0 or k >= len(logits):
        return logits
    kept = np.argsort(-logits, kind="stable")[:k]
    return np.where(np.isin(np.arange(len(logits)), kept), logits, -np.inf)


def top_p(logits, p):
    """Cuts tokens behind the first with which the sum passes p; the likeliest always stays."""
    order = np.argsort(-logits, kind="stable")
    cut = np.cumsum(softmax(logits)[order]) > p
    cut = np.concatenate([[False], cut[:-1]])
    return np.where(np.isin(np.arange(len(logits)), order[cut]), -np.inf, logits)


ORDERS = dict(dream=lambda z, k, p: top_k(top_p(z, p), k), llada2=lambda z, k, p: top_p(top_k(z, k), p))
# size of the vocabulary, temperature, top_k, top_p
CASES = [(12, 1.0, 4, 0.6), (12, 0.7, 6, 0.8), (40, 1.0, 8, 0.5), (40, 1.5, 20, 0.9), (200, 0.5, 20, 0.8),
         (200, 1.0, 90, 0.4), (40, 1.0, 0, 0.5), (40, 1.0, 7, 1.0)]


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", type=Path, default=Path("tests/golden/filters.json"))
    args = ap.parse_args()
    lines, differ = [], 0
    for seed, (vocab, temperature, k, p) in enumerate(CASES):
        logits = np.random.default_rng(seed).normal(0, 1, vocab).round(3).astype(np.float32)
        left = {}
        for name, filtered in ORDERS.items():
            shares = softmax(filtered(logits.astype(np.float64) / np.float64(np.float32(temperature)), k,
                                      np.float64(np.float32(p))))
            order = np.argsort(-shares, kind="stable")[:int((shares > 0).sum())]
            left[name] = [[int(i), float(shares[i])] for i in order]
        differ += left["dream"] != left["llada2"]
        lines.append(json.dumps(dict(logits=[float(str(x)) for x in logits], temperature=temperature, top_k=k, top_p=p,
                                     **left)))
    assert differ >= 5, "the orders hardly differ"
    args.out.write_text("[" + ",\n ".join(lines) + "]\n")


if __name__ == "__main__":
    main()
