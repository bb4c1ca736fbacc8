"""Masked diffusion as LLaDA has it: shape, files, noise, loss, and the decoding loops of its strategies.

Every position sees every other one, and logits of position i predict the token at i. In training each token behind the
prompt is a mask with a probability t that is uniform for each text, and a masked token's loss has weight 1 / t.
Recipe: Nie et al. 2025 (LLaDA), Wu et al. 2025 (Fast-dLLM, dual cache), Wang et al. 2025 (D2F).
"""
import json
import math
import sys
from pathlib import Path

import block_diffusion as bd
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.append(str(Path(__file__).parents[1] / "golden"))
from llada_files import LLADA_CONFIG, as_llada, llada_name

SMALLEST_T = 0.05  # bounds the weights


def make_model(*, vocab, hidden, layers, heads, intermediate, context):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=context, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=1e4), tie_word_embeddings=True,
        eos_token_id=bd.END_ID, bos_token_id=None, pad_token_id=bd.END_ID, attn_implementation="sdpa"))


def save(model, out, *, mask_id):
    """Writes a checkpoint with LLaDA's names."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    config, tensors = as_llada(model.config.to_dict(), tensors)
    config.update(architectures=["LLaDAModelLM"], model_type="llada", mask_token_id=mask_id, eos_token_id=bd.END_ID,
                  pad_token_id=bd.END_ID, torch_dtype="bfloat16")
    save_file(tensors, out / "model.safetensors", metadata=dict(format="pt"))
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (out / "generation_config.json").write_text(json.dumps(dict(eos_token_id=bd.END_ID), indent=2) + "\n")


def load(path, device="cpu"):
    """The model in float32 as the Llama that it is, and its mask id."""
    config = json.loads((Path(path) / "config.json").read_text())
    shape = {native: config[stored] for stored, native in LLADA_CONFIG.items()}
    model = make_model(vocab=shape["vocab_size"], hidden=shape["hidden_size"], layers=shape["num_hidden_layers"],
                       heads=shape["num_attention_heads"], intermediate=shape["intermediate_size"],
                       context=shape["max_position_embeddings"])
    stored = load_file(Path(path) / "model.safetensors")
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(stored.pop(llada_name(name)))
    assert not stored, f"not read: {list(stored)}"
    return model.eval().to(device), config["mask_token_id"]


def noise(clean, prompt_len, end, mask_id, generator, full_share, tail_share):
    """Masks tokens [prompt_len, end) of each row with probability t, and in a share of the rows all from a random one on.

    t is uniform, stratified over the rows, and 1 in a share of them. Masked tails are what a text that is decoded in
    blocks looks like. Returns the noisy tokens and each token's weight: 1 / (its probability), or 0 where it is no mask.
    """
    rows, device = clean.shape[0], clean.device

    def uniform():
        return torch.rand(rows, 1, generator=generator, device=device)
    order = torch.randperm(rows, generator=generator, device=device)[:, None]
    t = SMALLEST_T + (1 - SMALLEST_T) * ((order + uniform()) / rows)
    t = t.masked_fill(uniform() < full_share, 1.0)
    at = torch.arange(clean.shape[1], device=device)
    tail = prompt_len + 1 + ((end - prompt_len) * uniform()).long()
    probability = torch.where((at >= tail) & (uniform() < tail_share), 1.0, t)
    chance = torch.rand(clean.shape, generator=generator, device=device)
    masked = (chance < probability) & (at >= prompt_len) & (at < end)
    return clean.masked_fill(masked, mask_id), masked / probability


def visible(length, prompt_len, end, apart):
    """[rows, 1, length, length]: true where a row's position sees a key: all of its text, but with `apart` the prompt
    sees itself alone, as where its keys and values were cached before the answer was known."""
    at = torch.arange(length, device=end.device)
    prompt = at < prompt_len
    keys = (at < end)[:, None, :]
    return (keys & ~(apart[:, :, None] & prompt[:, :, None] & ~prompt[:, None, :]))[:, None]


def loss(model, clean, noisy, weight, mask):
    """sum(weight * nats of the clean token)."""
    hidden = model.model(input_ids=noisy, attention_mask=mask, use_cache=False).last_hidden_state
    return (bd.nats(model.lm_head(hidden), clean) * weight).sum()


class FullAttention:
    """Every pass runs the whole canvas. Blocks are counted from the prompt's end; a token passes at the threshold."""
    def __init__(self, model, prompt_len, block):
        self.model, self.prompt_len, self.block = model, prompt_len, block

    def begins(self, total):
        return range(self.prompt_len, total, self.block)

    def passes(self, confidence, threshold):
        return confidence >= threshold

    def logits(self, x, first, begin, end):
        return self.model(input_ids=x, attention_mask=self.all_of(x), use_cache=False).logits[:, begin:end]

    @staticmethod
    def all_of(x):
        return torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)


class DualCache(FullAttention):
    """Passes over a block see keys and values of all other positions as the block's first pass left them.

    The same by one pass: behind the canvas as it was (`first`) stands the block as it is.
    """
    def logits(self, x, first, begin, end):
        total, size = x.shape[1], end - begin
        at = torch.arange(total + size, device=x.device)
        other = (at < begin) | ((at >= end) & (at < total))
        mask = torch.where((at < total)[:, None], at < total, other | (at >= total))[None, None]
        positions = torch.cat([at[:total], at[begin:end]])[None]
        ids = torch.cat([first, x[:, begin:end]], 1)
        return self.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, total:]


class D2F(FullAttention):
    """The prompt sees itself, the rest of its last block that block, and all others the blocks up to their own."""
    def begins(self, total):
        return [self.prompt_len, *range((self.prompt_len // self.block + 1) * self.block, total, self.block)]

    def passes(self, confidence, threshold):
        return confidence > threshold

    def logits(self, x, first, begin, end):
        at = torch.arange(x.shape[1], device=x.device)
        until = torch.where(at < self.prompt_len, self.prompt_len, (at // self.block + 1) * self.block)
        mask = (at[None, :] < until[:, None])[None, None]
        return self.model(input_ids=x, attention_mask=mask, use_cache=False).logits[:, begin:end]


@torch.no_grad()
def decode(strategy, prompts, count, mask_id, threshold, block=32):
    """Greedy decoding of prompts [rows, P] of one length: tokens that pass the threshold, or the likeliest one.

    Nothing behind a decided END_ID is decided. Returns the tokens after the prompt [rows, count] (END_ID after the
    first) and the passes of each row.
    """
    model, (rows, prompt_len) = strategy.model, prompts.shape
    total = prompt_len + count
    x = torch.full((rows, total), mask_id, device=prompts.device)
    x[:, :prompt_len] = prompts
    generated, forwards = x[:, prompt_len:], torch.zeros(rows, dtype=torch.long)
    begins = [b for b in strategy.begins(total) if b < total]
    for begin, end in zip(begins, [*begins[1:], total]):
        first, part = x.clone(), x[:, begin:end]
        while True:
            behind_end = ((generated == bd.END_ID).cumsum(1) > 0)[:, begin - prompt_len:end - prompt_len]
            open_places = (part == mask_id) & ~behind_end
            open_rows = open_places.any(1)
            if not open_rows.any():
                break
            logits = strategy.logits(x, first, begin, end).float()
            logits[..., mask_id:] = -torch.inf
            token, confidence = bd.sample(logits, 0.0, 1.0, None)
            confidence = confidence.masked_fill(~open_places, -1.0)
            passing = strategy.passes(confidence, threshold) & open_places
            keep = bd.passing_or_best(confidence, passing)
            part[keep] = token[keep]
            forwards += open_rows.cpu()
    ended = (generated == bd.END_ID).cumsum(1) > 0
    return generated.masked_fill(ended | (generated == mask_id), bd.END_ID), forwards


NEVER = math.inf  # no probability passes it: one token a pass
STRATEGIES = {"full_attention": FullAttention, "dual_cache": DualCache, "d2f": D2F}
