"""transformers with headrace's kernels beside its own: Qwen3.5-0.8B's shape, random weights, one GPU.

Usage: transformers_attention.py [TOKENS] [sdpa] [headrace]: a prompt (default: 16384 tokens), and 64 tokens behind it.
Prints JSON lines: the median of five, and how far the prompt's logits are from those of the first run (of the largest
logit). Beside sdpa transformers takes flash-linear-attention for Gated DeltaNet where it is installed, else PyTorch.
"""

import importlib.util
import json
import os
import statistics
import sys
import time

import torch
import transformers

import headrace.integrations

SHAPE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes", "qwen3_5_0_8b")


def seconds(work):
    torch.cuda.synchronize()
    began = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return time.perf_counter() - began, result


def gated_delta_net_of(attention):
    if attention == "headrace":
        return attention
    return "flash-linear-attention" if importlib.util.find_spec("fla") else "PyTorch"


def measure(attention, length, expected):
    """Prints the line of one run; returns the prompt's logits, which are compared with `expected` unless that is None."""
    config = transformers.AutoConfig.from_pretrained(SHAPE).get_text_config(decoder=True)
    config._attn_implementation = attention
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.randint(0, 1000, (1, length), device="cuda")
    prompts, steps = [], []
    for _ in range(6):
        took, out = seconds(lambda: model(ids, use_cache=True, logits_to_keep=1))
        prompts.append(took)
        cache, token = out.past_key_values, ids[:, :1]
        took, _ = seconds(lambda: [model(token, past_key_values=cache) for _ in range(64)])
        steps.append(took / 64)
    logits = out.logits.float()
    expected = logits if expected is None else expected
    apart = ((logits - expected).abs().max() / expected.abs().max()).item()
    print(json.dumps({"attention": attention, "gated_delta_net": gated_delta_net_of(attention), "prompt": length,
                      "prompt_s": statistics.median(prompts[1:]), "step_s": statistics.median(steps[1:]),
                      "logits_apart": apart, "transformers": transformers.__version__,
                      "torch": torch.__version__}), flush=True)
    return logits


def main(words):
    lengths = [int(word) for word in words if word.isdigit()] or [16384]
    names = [word for word in words if not word.isdigit()] or ["sdpa", "headrace"]
    headrace.integrations.enable()
    with torch.no_grad():
        for length in lengths:
            expected = None
            for name in names * 2:
                logits = measure(name, length, expected)
                expected = logits if expected is None else expected


if __name__ == "__main__":
    main(sys.argv[1:])
