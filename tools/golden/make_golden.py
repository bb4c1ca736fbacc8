#!/usr/bin/env python3
"""Tiny random checkpoints and their fp32 logits, made by transformers: tests/golden/<family>/.

  python3 tools/golden/make_golden.py --out tests/golden

Every value is exact in bf16, so a checkpoint stored in bf16 is the network that made the logits.
"""
import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

BASE = dict(vocab_size=512, hidden_size=96, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=256)
GDN = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=24, linear_value_head_dim=16,
           linear_conv_kernel_dim=4)
MOE = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48)
ROPE_35 = dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_interleaved=True,
               mrope_section=[2, 1, 1])


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


def randomise(model):
    generator = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("A_log"):
                p.copy_(torch.rand(p.shape, generator=generator) * 2 - 1)
            elif p.ndim == 1:
                p.add_(torch.randn(p.shape, generator=generator) * 0.1)
            elif "conv1d" in name:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.5)
            else:
                p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
            p.copy_(p.bfloat16().float())


def to_disk(tensors):
    """bf16 where released checkpoints have bf16, float32 where they have float32."""
    f32 = ("A_log", "linear_attn.norm.weight")
    return {n: (t.float() if n.endswith(f32) else t.bfloat16()).contiguous() for n, t in tensors.items()}


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


def released_layout(source, folder, architecture, model_type):
    """The layout of released Qwen3.5 files: text_config, model.language_model., stacked experts, vision and MTP."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors, experts = {}, {}
    for name, t in load_file(source / "model.safetensors").items():
        renamed = name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
        if ".mlp.experts." in renamed and renamed.split(".mlp.experts.")[1][0].isdigit():
            head, tail = renamed.split(".mlp.experts.")
            index, part, _ = tail.split(".")
            experts.setdefault(head, {}).setdefault(part, {})[int(index)] = t
        else:
            tensors[renamed] = t
    for head, parts in experts.items():
        stack = {part: torch.stack([by_index[i] for i in sorted(by_index)]) for part, by_index in parts.items()}
        tensors[f"{head}.mlp.experts.gate_up_proj"] = torch.cat([stack["gate_proj"], stack["up_proj"]], 1).contiguous()
        tensors[f"{head}.mlp.experts.down_proj"] = stack["down_proj"].contiguous()
    for name in ("model.visual.patch_embed.proj.weight", "model.visual.blocks.0.norm1.weight",
                 "model.visual.merger.norm.weight", "mtp.fc.weight", "mtp.norm.weight",
                 "mtp.layers.0.input_layernorm.weight", "mtp.layers.0.self_attn.q_proj.weight"):
        tensors[name] = torch.zeros(4, dtype=torch.bfloat16)  # the loader skips them: neither shape nor value matters
    save_file(tensors, folder / "model.safetensors", metadata=dict(format="pt"))
    text = json.loads((source / "config.json").read_text())
    config = dict(architectures=[architecture], model_type=model_type, text_config=text,
                  tie_word_embeddings=text.pop("tie_word_embeddings"), vision_config=dict(depth=0))
    text.pop("architectures", None)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    shutil.copy(source / "golden.safetensors", folder / "golden.safetensors")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", type=Path, default=Path("tests/golden"))
    args = ap.parse_args()
    ids = torch.randint(0, 512, (77,), generator=torch.Generator().manual_seed(7))
    for family, (cls, fields) in FAMILIES.items():
        name = "TextConfig" if cls.startswith("Qwen3_5") else "Config"
        config = getattr(transformers, cls + name)(**fields)
        config._attn_implementation = "eager"
        model = getattr(transformers, cls + "ForCausalLM")(config).eval().float()
        randomise(model)
        folder = args.out / family
        model.save_pretrained(folder)
        save_file(to_disk(load_file(folder / "model.safetensors")), folder / "model.safetensors",
                  metadata=dict(format="pt"))
        save_golden(model, folder, ids)
        (folder / "generation_config.json").unlink(missing_ok=True)
        print(family, sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    released_layout(args.out / "qwen3_5", args.out / "qwen3_5_released", "Qwen3_5ForConditionalGeneration", "qwen3_5")
    released_layout(args.out / "qwen3_5_moe", args.out / "qwen3_5_moe_released", "Qwen3_5MoeForConditionalGeneration",
                    "qwen3_5_moe")


if __name__ == "__main__":
    main()
