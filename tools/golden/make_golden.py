#!/usr/bin/env python3
"""Tiny random checkpoints and their fp32 logits, made by transformers: tests/golden/<family>/.

  pip install transformers==5.23.0 torch==2.11.0
  python3 tools/golden/make_golden.py --out tests/golden

formula.py gives the weights. Every value is exact in bf16, so a checkpoint stored in bf16 is the network that made the
logits. A folder <family>_released has the same network in the layout of released files, and no logits of its own.
"""
import argparse
import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from formula import given_weights

VOCAB = 272
BASE = dict(vocab_size=VOCAB, hidden_size=96, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=256)
GDN = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=24, linear_value_head_dim=16,
           linear_conv_kernel_dim=4)
MOE = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48)
ROPE_35 = dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_interleaved=True,
               mrope_section=[2, 1, 1])

# Another network of these shapes, where float32 and bfloat16 implementations seldom choose different experts: one other
# expert is a step and no rounding, which no tolerance tells from a fault.
STREAMS = {"qwen3_moe": "qwen3_moe 1", "qwen3_next": "qwen3_next 8", "qwen3_5_moe": "qwen3_5_moe 1"}


def rope(theta, **more):
    return dict(rope_type="default", rope_theta=theta, **more)


FAMILIES = {
    "llama": ("Llama", dict(BASE, num_hidden_layers=2, head_dim=24, tie_word_embeddings=False, rope_parameters=dict(
        rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64))),
    "qwen2": ("Qwen2", dict(BASE, num_hidden_layers=2, tie_word_embeddings=True, rope_parameters=rope(1e6))),
    "qwen3": ("Qwen3", dict(BASE, num_hidden_layers=2, head_dim=32, tie_word_embeddings=True, rope_parameters=rope(1e6))),
    "qwen3_moe": ("Qwen3Moe", dict(BASE, **MOE, num_hidden_layers=2, head_dim=32, norm_topk_prob=True,
                                   tie_word_embeddings=False, rope_parameters=rope(1e6))),
    "qwen3_next": ("Qwen3Next", dict(BASE, **MOE, **GDN, shared_expert_intermediate_size=40, num_hidden_layers=4,
                                     head_dim=32, norm_topk_prob=True, tie_word_embeddings=False,
                                     rope_parameters=rope(1e7, partial_rotary_factor=0.25))),
    "qwen3_5": ("Qwen3_5", dict(BASE, **GDN, num_hidden_layers=4, head_dim=32, tie_word_embeddings=True,
                                rope_parameters=ROPE_35)),
    "qwen3_5_moe": ("Qwen3_5Moe", dict({k: v for k, v in BASE.items() if k != "intermediate_size"}, **MOE, **GDN,
                                       shared_expert_intermediate_size=40, num_hidden_layers=4, head_dim=32,
                                       tie_word_embeddings=False, rope_parameters=ROPE_35)),
}


def save_golden(model, folder, ids):
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0]
        step, worst = model(input_ids=ids[None, :20], use_cache=True), 0.0
        for i in range(20, len(ids)):
            step = model(input_ids=ids[None, i:i + 1], past_key_values=step.past_key_values, use_cache=True)
            worst = max(worst, (step.logits[0, -1] - logits[i]).abs().max().item())
    print(f"{folder.name}: largest logit {logits.abs().max():.2f}, cached decode differs by {worst:.1e}", flush=True)
    # Seen: at most 3e-5 of the largest logit, in Qwen3.5, whose gated delta nets amplify float32's rounding: against a
    # float64 reference the stored logits and the cached decode alike are off by 2e-5 to 1.3e-4.
    assert worst < 5e-5 * logits.abs().max(), f"{folder.name}: cached decode differs by {worst}"
    save_file(dict(input_ids=ids, logits=logits.contiguous()), folder / "golden.safetensors")


SKIPPED = ("model.visual.patch_embed.proj.weight", "model.visual.blocks.0.norm1.weight", "model.visual.merger.norm.weight",
           "mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.input_layernorm.weight",
           "mtp.layers.0.self_attn.q_proj.weight")  # by the loader: neither shape nor value matters


def released_tensors(stored):
    """Released Qwen3.5 files: model.language_model., stacked experts, vision and MTP."""
    tensors, experts = {}, {}
    for name, t in stored.items():
        renamed = name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
        if ".mlp.experts." in renamed and renamed.split(".mlp.experts.")[1][0].isdigit():
            head, tail = renamed.split(".mlp.experts.")
            index, part, _ = tail.split(".")
            experts.setdefault(head, {}).setdefault(part, {})[int(index)] = t
        else:
            tensors[renamed] = t
    for head, parts in experts.items():
        stack = {part: torch.stack([by_index[i] for i in sorted(by_index)]) for part, by_index in parts.items()}
        tensors[f"{head}.mlp.experts.gate_up_proj"] = torch.cat([stack["gate_proj"], stack["up_proj"]], 1)
        tensors[f"{head}.mlp.experts.down_proj"] = stack["down_proj"]
    norm = next(t for name, t in stored.items() if name == "model.norm.weight")
    return tensors | {name: norm for name in SKIPPED}


def released_config(text, architecture, model_type):
    config = dict(architectures=[architecture], model_type=model_type, text_config=text,
                  tie_word_embeddings=text.pop("tie_word_embeddings"), vision_config=dict(depth=0))
    text.pop("architectures", None)
    return config


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", type=Path, default=Path("tests/golden"))
    ap.add_argument("--only", nargs="*", default=list(FAMILIES))
    args = ap.parse_args()
    torch.set_num_threads(1)
    ids = torch.randint(0, VOCAB, (77,), generator=torch.Generator().manual_seed(7))
    for family in args.only:
        cls, fields = FAMILIES[family]
        name = "TextConfig" if cls.startswith("Qwen3_5") else "Config"
        config = getattr(transformers, cls + name)(**fields)
        model, weights = given_weights(getattr(transformers, cls + "ForCausalLM"), config,
                                       STREAMS.get(family, family))
        folder = args.out / family
        folder.mkdir(parents=True, exist_ok=True)
        model.config.save_pretrained(folder)
        weights.write(folder)
        save_golden(model, folder, ids)
        print(family, sum(p.numel() for p in model.parameters()), "parameters", flush=True)
        if cls.startswith("Qwen3_5"):
            released = args.out / f"{family}_released"
            released.mkdir(exist_ok=True)
            weights.write(released, released_tensors)
            text = json.loads((folder / "config.json").read_text())
            stated = released_config(text, cls + "ForConditionalGeneration", family)
            (released / "config.json").write_text(json.dumps(stated, indent=1) + "\n")


if __name__ == "__main__":
    main()
