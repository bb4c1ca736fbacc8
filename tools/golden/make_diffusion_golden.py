#!/usr/bin/env python3
"""Tiny random checkpoints of diffusion families and their fp32 logits: tests/golden/<family>/.

  pip install transformers==5.23.0 torch==2.11.0 peft==0.21.2
  python3 tools/golden/make_diffusion_golden.py --out tests/golden [--only sdar,...]

transformers has no native classes for these families. Each network is that of a native class under another mask, which
the class takes as a 4-D `attention_mask`; afterwards config.json and the tensors get the family's names. formula.py gives
the weights, each of them exact in bf16. golden.safetensors holds
  input_ids [T], logits [T, V]              one pass over the text under the family's mask
  noisy_ids [T], noisy_logits [T, V]        block-causal families only: row i of a pass in which i's block has masks and
                                            all blocks before it are clean
"""
import argparse
import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

import formula
from llada_files import LLADA_CONFIG, llada_name
from make_golden import rope

BASE = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=256, num_hidden_layers=2, tie_word_embeddings=False)
MOE = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32)
MASK, LENGTH = 250, 45  # the last block is not whole

# folder: native class, its fields, block size (None: full attention), architecture, fields of the written config.json
FAMILIES = {
    "sdar": ("Qwen3", dict(BASE, head_dim=32, rope_parameters=rope(1e6)), 4, "SDARForCausalLM",
             dict(model_type="sdar", mask_token_id=MASK, block_size=4)),
    "llada": ("Llama", dict(BASE, num_key_value_heads=4, rms_norm_eps=1e-5, rope_parameters=rope(5e5)), None,
              "LLaDAModelLM", dict(model_type="llada", mask_token_id=MASK)),
    "dream": ("Qwen2", dict(BASE, rope_parameters=rope(1e6)), None, "DreamModel",
              dict(model_type="Dream", mask_token_id=MASK)),
    # seven query heads of a key head, as in the release
    "diffucoder": ("Qwen2", dict(BASE, hidden_size=112, num_attention_heads=7, num_key_value_heads=1,
                                 rope_parameters=rope(1e6)), None, "DreamModel",
                   dict(model_type="Dream", mask_token_id=MASK)),
    "fast_dllm_v2": ("Qwen2", dict(BASE, tie_word_embeddings=True, rope_parameters=rope(1e6)), 16,
                     "Fast_dLLM_QwenForCausalLM", dict(model_type="Fast_dLLM_Qwen", mask_token_id=MASK, bd_size=16)),
    "stable_diffcoder": ("Llama", dict(BASE, rope_parameters=rope(5e5)), 4, "StableDiffcoderForCausalLM",
                         dict(model_type="llama")),  # the family's mask, 5, is in the vocabulary
    "llada_moe": ("Qwen3Moe", dict(BASE, **MOE, num_key_value_heads=4, head_dim=16, norm_topk_prob=False,
                                   rms_norm_eps=1e-5, rope_parameters=rope(5e4)), None, "LLaDAMoEModelLM",
                  dict(model_type="llada_moe", mask_token_id=MASK)),
    "llada2": ("Glm4Moe", dict(BASE, num_hidden_layers=3, head_dim=32, moe_intermediate_size=24, use_qk_norm=True,
                               attention_bias=False, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=3,
                               n_group=4, topk_group=2, first_k_dense_replace=1, norm_topk_prob=True,
                               routed_scaling_factor=2.5, rms_norm_eps=1e-6,
                               rope_parameters=rope(6e5, partial_rotary_factor=0.5)), 8, "LLaDA2MoeModelLM",
               dict(model_type="llada2_moe", mask_token_id=MASK, block_size=8)),
    "sdar_moe": ("Qwen3Moe", dict(BASE, **MOE, head_dim=32, norm_topk_prob=True, rope_parameters=rope(1e6)), 8,
                 "SDARMoeForCausalLM", dict(model_type="sdar_moe", mask_token_id=MASK, block_size=8)),
}


LLADA2_TENSORS = [("model.embed_tokens", "model.word_embeddings"), (".self_attn.o_proj", ".attention.dense"),
                  (".self_attn.q_norm", ".attention.query_layernorm"),
                  (".self_attn.k_norm", ".attention.key_layernorm"), ("e_score_correction_bias", "expert_bias")]
def llada_config(config):
    return dict({new: config[old] for new, old in LLADA_CONFIG.items()},
                rope_theta=config["rope_parameters"]["rope_theta"], block_type="llama", activation_type="silu",
                layer_norm_type="rms", rope=True, include_bias=False, include_qkv_bias=False, block_group_size=1,
                torch_dtype="float32")


def llada_tensors(tensors):
    return {llada_name(name): tensor for name, tensor in tensors.items()}


def llada_moe_config(config):
    for key in ("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "intermediate_size", "layer_types"):
        config.pop(key, None)
    experts = config.pop("num_local_experts", None) or config.pop("num_experts")
    config.update(num_experts=experts, expert_intermediate_size=config.pop("moe_intermediate_size"),
                  dense_intermediate_size=96, moe_layer_freq=[1, 1], qk_layernorm=True, norm_topk_prob=True,
                  rope_theta=config.pop("rope_parameters")["rope_theta"])  # norm_topk_prob is not to be believed
    return config


def llada2_config(config):
    rotary = config.pop("rope_parameters")
    config.pop("partial_rotary_factor", None)
    config.update(num_experts=config.pop("n_routed_experts"), num_shared_experts=config.pop("n_shared_experts"),
                  rope_theta=rotary["rope_theta"], partial_rotary_factor=0.5, use_qkv_bias=False, use_bias=False,
                  score_function="sigmoid", moe_router_enable_expert_bias=True)
    return config


def llada2_tensors(tensors):
    renamed = {}
    for name, tensor in tensors.items():
        if ".self_attn.q_proj." in name:
            parts = [tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            renamed[name.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(parts)
        elif ".self_attn.k_proj." not in name and ".self_attn.v_proj." not in name:
            for old, new in LLADA2_TENSORS:
                name = name.replace(old, new)
            renamed[name] = tensor
    return renamed


def as_it_is(config_or_tensors):
    return config_or_tensors


SPELLINGS = {"llada": (llada_config, llada_tensors), "llada_moe": (llada_moe_config, as_it_is),
             "llada2": (llada2_config, llada2_tensors)}


def additive(visible):
    return torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]


def full_pass(model, ids, block):
    position = torch.arange(len(ids))
    visible = torch.ones(len(ids), len(ids), dtype=torch.bool)
    if block is not None:
        visible = position[:, None] // block >= position[None] // block
    return model(input_ids=ids[None], attention_mask=additive(visible)).logits[0]


def block_steps(model, ids, noisy, block):
    """Block by block over the cache: the noisy block, whose K and V are dropped again, then the clean one."""
    cache, clean_logits, noisy_logits = transformers.DynamicCache(), [], []
    for begin in range(0, len(ids), block):
        end = min(begin + block, len(ids))
        mask = additive(torch.ones(end - begin, end, dtype=torch.bool))
        position = torch.arange(begin, end)[None]
        for tokens, out in ((noisy, noisy_logits), (ids, clean_logits)):
            if cache.get_seq_length() > begin:
                cache.crop(begin - cache.get_seq_length())
            step = model(input_ids=tokens[None, begin:end], attention_mask=mask, position_ids=position,
                         past_key_values=cache, use_cache=True)
            out.append(step.logits[0])
    return torch.cat(clean_logits), torch.cat(noisy_logits)


def golden_of(model, ids, block):
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        logits = full_pass(model, ids, block)
        golden = dict(input_ids=ids, logits=logits.contiguous())
        if block is None:
            return golden
        noisy = torch.where(torch.rand(len(ids), generator=generator) < 0.5, torch.tensor(MASK), ids)
        clean, noisy_logits = block_steps(model, ids, noisy, block)
        worst = (clean - logits).abs().max().item()
        assert worst < 5e-5 * logits.abs().max(), f"block steps differ from one pass by {worst}"
        print(f"  largest logit {logits.abs().max():.2f}, block steps differ by {worst:.1e}, "
              f"masks change logits by {(noisy_logits - logits).abs().max():.2f}")
        return dict(golden, noisy_ids=noisy, noisy_logits=noisy_logits.contiguous())


GEMMA_TEXT = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, sliding_window=8,
                  num_experts=6, top_k_experts=2, moe_intermediate_size=32, max_position_embeddings=256)
GEMMA_VISION = dict(model_type="gemma4_vision", hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                    num_attention_heads=2, num_key_value_heads=2, head_dim=16)  # the class has to have one


def save_gemma(folder):
    """tests/golden/diffusion_gemma: a text of 21, a canvas of 16 without and with a signal, and the next canvas.
    Its generation_config.json is no output: settings under which the tiny network takes several steps."""
    config = transformers.DiffusionGemmaConfig(text_config=GEMMA_TEXT, vision_config=GEMMA_VISION, canvas_length=16)
    model, weights = formula.given_weights(transformers.DiffusionGemmaForBlockDiffusion, config, folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    vision = [name for name in weights.pieces if name.startswith(("model.encoder.vision", "model.encoder.embed_vision"))]
    # the loader skips them: two stay, to be skipped
    weights.write(folder, lambda tensors: {name: t for name, t in tensors.items() if name not in vision[2:]})
    generator = torch.Generator().manual_seed(13)
    text = torch.randint(0, 256, (21,), generator=generator)
    canvases = torch.randint(0, 256, (2, 16), generator=generator)
    signal = torch.randn(16, 256, generator=generator)
    cache = transformers.DynamicCache(config=config.text_config)
    with torch.no_grad():
        first = model(input_ids=text[None], decoder_input_ids=canvases[:1], past_key_values=cache).logits[0]
        second = model(decoder_input_ids=canvases[:1], past_key_values=cache, self_conditioning_logits=signal[None]).logits[0]
        third = model(input_ids=canvases[:1], decoder_input_ids=canvases[1:], past_key_values=cache).logits[0]
    print(f"{folder.name}: {sum(p.numel() for p in model.parameters())} parameters, largest logit "
          f"{first.abs().max():.2f}, the signal changes logits by {(second - first).abs().max():.2f}, cap "
          f"{config.text_config.final_logit_softcapping}")
    save_file(dict(input_ids=torch.cat([text, canvases.flatten()]), signal=signal, first_logits=first.contiguous(),
                   second_logits=second.contiguous(), third_logits=third.contiguous()), folder / "golden.safetensors")


def save_adapter(base, folder, ids):
    """A LoRA of the full-attention golden `base`, made by peft: tests/golden/<base>_lora."""
    import peft
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**FAMILIES[base][1], attn_implementation="eager"))
    model.load_state_dict(formula.read(folder.parent / base))
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "v_proj", "down_proj"])
    adapted = peft.get_peft_model(model.eval(), config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_" in name:
                p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
        adapted.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        stated = json.loads((folder / "adapter_config.json").read_text())
        stated["target_modules"].sort()  # peft keeps a set
        (folder / "adapter_config.json").write_text(json.dumps(stated, indent=1, sort_keys=True) + "\n")
        logits = full_pass(adapted, ids, None)
    print(f"{folder.name}: largest logit {logits.abs().max():.2f}")
    save_file(dict(input_ids=ids, logits=logits.contiguous()), folder / "golden.safetensors")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", type=Path, default=Path("tests/golden"))
    ap.add_argument("--only", default="")
    args = ap.parse_args()
    torch.set_num_threads(1)
    ids = torch.randint(0, MASK, (LENGTH,), generator=torch.Generator().manual_seed(7))
    if not args.only or "diffusion_gemma" in args.only:
        save_gemma(args.out / "diffusion_gemma")
    for family in args.only.split(",") if args.only else FAMILIES:
        if family == "diffusion_gemma":
            continue
        cls, fields, block, architecture, written = FAMILIES[family]
        config = getattr(transformers, cls + "Config")(**fields)
        model, weights = formula.given_weights(getattr(transformers, cls + "ForCausalLM"), config, family)
        folder = args.out / family
        folder.mkdir(parents=True, exist_ok=True)
        model.config.save_pretrained(folder)
        stated = json.loads((folder / "config.json").read_text())
        spelled_config, spelled_tensors = SPELLINGS.get(family, (as_it_is, as_it_is))
        weights.write(folder, spelled_tensors)
        stated = dict(spelled_config(stated), **written, architectures=[architecture])
        (folder / "config.json").write_text(json.dumps(stated, indent=1, sort_keys=True) + "\n")
        print(family, sum(p.numel() for p in model.parameters()), "parameters", flush=True)
        save_file(golden_of(model, ids, block), folder / "golden.safetensors")
        if family == "dream":
            save_adapter(family, args.out / "dream_lora", ids)


if __name__ == "__main__":
    main()
