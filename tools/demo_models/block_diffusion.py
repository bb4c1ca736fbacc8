"""Block diffusion for the two demo models: shape, masks, noise, losses, bits per byte, the reference decoding loop.

A block of B tokens is denoised at a time and sees the clean blocks before it (block-causal; blocks are counted from
position 0). Logits of position i predict the token at i. With B = 1 this is an autoregressive model whose newest row is
a mask. The clean rows of a B = 1 batch also learn the next token, so that plain autoregressive decoding works too.
Recipe: Arriola et al. 2025 (BD3-LMs), Cheng et al. 2025 (SDAR).
"""
import json
import math
from pathlib import Path

import torch
from train import WINDOW
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

END_ID = 0


def make_model(*, vocab, hidden, layers, heads, kv_heads, intermediate):
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=64, max_position_embeddings=4096,
        rope_parameters=dict(rope_type="default", rope_theta=1e5), tie_word_embeddings=True,
        eos_token_id=END_ID, bos_token_id=None, pad_token_id=END_ID, attn_implementation="sdpa"))


def save(model, out, *, block, mask_id, generation):
    """Writes a checkpoint that says what SDAR's do, with the block size and mask id in its config.json."""
    out.mkdir(parents=True, exist_ok=True)
    model.to("cpu").bfloat16().save_pretrained(out, max_shard_size="11500KB")
    path = out / "config.json"
    config = json.loads(path.read_text())
    config.update(architectures=["SDARForCausalLM"], model_type="sdar", block_size=block, mask_token_id=mask_id)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (out / "generation_config.json").write_text(json.dumps(dict(eos_token_id=END_ID, **generation), indent=2) + "\n")


def load(path, device="cpu"):
    """The model in float32 as the Qwen3 that it is, its block size and its mask id."""
    config = json.loads((Path(path) / "config.json").read_text())
    kept = {k: v for k, v in config.items() if k not in ("model_type", "architectures", "dtype")}
    model = Qwen3ForCausalLM.from_pretrained(path, config=Qwen3Config(**kept), dtype=torch.float32,
                                             attn_implementation="sdpa")
    return model.eval().to(device), config["block_size"], config["mask_token_id"]


def training_mask(length, block, device):
    """[1, 1, 2 length, 2 length] for a clean copy followed by a noisy one: true where a row sees a key."""
    at = torch.arange(length, device=device) // block
    row, key = at[:, None], at[None, :]
    clean = torch.cat([key <= row, torch.zeros_like(key <= row)], 1)
    noisy = torch.cat([key < row, key == row], 1)
    return torch.cat([clean, noisy])[None, None]


def noise(clean, block, maskable, mask_id, generator, full_share=0.0):
    """Masks in each block l of its n maskable tokens, l uniform in 1..n, or all n with probability full_share.

    Returns the noisy tokens, which of them are masked [batch, length], and l of each token's block, likewise.
    """
    batch, length = clean.shape
    scores = torch.rand(batch, length // block, block, generator=generator, device=clean.device)
    maskable = maskable.view(scores.shape)
    n = maskable.sum(-1, keepdim=True)
    draw = torch.rand(n.shape, generator=generator, device=clean.device)
    if full_share > 0:
        full = torch.rand(n.shape, generator=generator, device=clean.device) < full_share
        draw = draw.masked_fill(full, 1.0)
    count = (1 + (draw * n).floor()).minimum(n)
    masked = choose(scores, maskable, count).view(batch, length)
    return clean.masked_fill(masked, mask_id), masked, count.expand_as(scores).reshape(batch, length)


def choose(scores, maskable, count):
    """Of each block's maskable tokens the `count` with the smallest scores."""
    rank = scores.masked_fill(~maskable, 2.0).argsort(-1).argsort(-1)
    return (rank < count) & maskable


def nats(logits, targets):
    flat = torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


def doubled_loss(model, clean, noisy, weight, next_weight, mask):
    """sum(weight * nats of the noisy copy's rows) + sum(next_weight * nats of the next token at the clean rows)."""
    length = clean.shape[1]
    positions = torch.arange(length, device=clean.device).repeat(2)[None]
    hidden = model.model(input_ids=torch.cat([clean, noisy], 1), attention_mask=mask, position_ids=positions,
                         use_cache=False).last_hidden_state
    denoise = nats(model.lm_head(hidden[:, length:]), clean)
    following = nats(model.lm_head(hidden[:, :length - 1]), clean[:, 1:])
    return (denoise * weight).sum() + (following * next_weight[:, 1:]).sum()


class Compiled:
    """torch.compile where it works; the plain function from the first failure on, which is reported."""
    def __init__(self, function, wanted):
        self.plain, self.fast = function, torch.compile(function, dynamic=False) if wanted else None

    def __call__(self, *args):
        if self.fast is not None:
            try:
                return self.fast(*args)
            except Exception as error:  # whatever a compiler may raise: training goes on without it
                print(f"not compiled: {type(error).__name__}: {str(error)[:300]}", flush=True)
                self.fast = None
        return self.plain(*args)


@torch.no_grad()
def bits_per_byte(model, ids, lengths, block, mask_id, *, seed=0, windows=None, autocast=False):
    """An upper bound (exact for block 1) of the bits per byte of a text that is decoded in any order within blocks.

    Windows of 512 tokens without overlap, each by itself from position 0, cut to whole blocks; every token counts. For
    each l in 1..block every block gets one random choice of l masked tokens, and
    bits(block) = mean over l of block / l * sum over the masked tokens of -log2 p.
    """
    device, was_training = model.device, model.training
    model.eval()
    generator = torch.Generator(device=device).manual_seed(seed)
    cut = [(i, i + min(WINDOW, (len(ids) - i) // block * block)) for i in range(0, len(ids), WINDOW)]
    cut = [(a, b) for a, b in cut if b > a][:windows]
    full = [w for w in cut if w[1] - w[0] == WINDOW]
    total = 0.0
    for batch in [full[i:i + 16] for i in range(0, len(full), 16)] + [[w] for w in cut if w not in full]:
        x = torch.tensor([ids[a:b] for a, b in batch], device=device)
        mask = training_mask(x.shape[1], block, device)
        everywhere = torch.ones(x.shape[0], x.shape[1] // block, block, dtype=torch.bool, device=device)
        for count in range(1, block + 1):
            scores = torch.rand(everywhere.shape, generator=generator, device=device)
            masked = choose(scores, everywhere, count).view(x.shape)
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                total += float(doubled_loss(model, x, x.masked_fill(masked, mask_id), masked / count,
                                            torch.zeros_like(x), mask))
    model.train(was_training)
    return total / math.log(2) / sum(lengths[i] for a, b in cut for i in range(a, b))


@torch.no_grad()
def reference_decode(model, prompts, count, block, mask_id, *, threshold, temperature=0.0, top_p=1.0, generator=None,
                     trace=None):
    """SDAR's reference loop (`low_confidence_dynamic`, as many steps as a block has tokens); no id from mask_id on.

    prompts [batch, P] of one length. In a step every masked position gets a token (argmax, ties to the lowest id, or a
    sample); those whose probability is above the threshold are kept, or the likeliest one (ties: lowest position).
    A finished block is run once more to store its K and V. Sequences stop after the block with their first END_ID.
    Returns the tokens after the prompt [batch, count] (END_ID after the first) and the denoising forwards of each.
    trace gets one dict a step of a lone sequence: [position, token] kept, and how near a choice was to another one.
    """
    device, (batch, prompt_len) = model.device, prompts.shape
    total = -(-(prompt_len + count) // block) * block
    x = torch.full((batch, total), mask_id, device=device)
    x[:, :prompt_len] = prompts
    cache, forwards = DynamicCache(config=model.config), torch.zeros(batch, dtype=torch.long)
    whole = prompt_len // block * block
    if whole > 0:
        run(model, x[:, :whole], 0, cache, block)
    for start in range(whole, total, block):
        part = x[:, start:start + block]  # a view: writes go to x
        while True:
            masked = part == mask_id
            open_rows = masked.any(1)
            if not open_rows.any():
                break
            logits = run(model, part, start, cache, block).float()
            cache.crop(-block)  # what a noisy block stored is not kept
            logits[..., mask_id:] = -torch.inf  # the mask, and the padding of the vocabulary
            token, confidence = sample(logits, temperature, top_p, generator)
            confidence = confidence.masked_fill(~masked, -1.0)
            keep = passing_or_best(confidence, confidence > threshold)
            if trace is not None:
                trace.append(decision(logits[0], confidence[0], keep[0], threshold, start, token[0]))
            part[keep] = token[keep]
            forwards += open_rows.cpu()
        generated = x[:, prompt_len:start + block]
        if (generated == END_ID).any(1).all():
            break
        run(model, part, start, cache, block)
    out = x[:, prompt_len:prompt_len + count]
    ended = (out == END_ID).cumsum(1) > 0
    return out.masked_fill(ended | (out == mask_id), END_ID), forwards


def passing_or_best(confidence, passing):
    """Of each row the positions that pass, or its likeliest one where none does. Decided positions have confidence -1."""
    best = torch.nn.functional.one_hot(confidence.argmax(1), confidence.shape[1]).bool()
    return torch.where(passing.any(1, keepdim=True), passing, best & (confidence >= 0))


def run(model, ids, start, cache, block):
    """Runs ids at positions start.. and stores their K and V; they see the cache and, block-causally, each other."""
    at = (start + torch.arange(ids.shape[1], device=ids.device)) // block
    new = at[None, :] <= at[:, None]
    mask = torch.cat([torch.ones(len(at), start, dtype=torch.bool, device=ids.device), new], 1)[None, None]
    positions = (start + torch.arange(ids.shape[1], device=ids.device))[None]
    return model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
                 use_cache=True).logits


def sample(logits, temperature, top_p, generator):
    """A token of every row and its probability, after temperature and top-p."""
    if temperature == 0:
        confidence, token = logits.softmax(-1).max(-1)
        return token, confidence
    p, index = (logits / temperature).softmax(-1).sort(descending=True)
    p[(p.cumsum(-1) - p) > top_p] = 0
    p = p / p.sum(-1, keepdim=True)
    pick = torch.multinomial(p.flatten(0, 1), 1, generator=generator).view(*p.shape[:2], 1)
    return index.gather(-1, pick)[..., 0], p.gather(-1, pick)[..., 0]


def decision(logits, confidence, keep, threshold, start, token):
    """What a step kept, and the smallest margin of its choices: between tokens, to the threshold, between positions."""
    open_rows = confidence >= 0
    best = logits[keep].topk(2).values
    margins = [(best[:, 0] - best[:, 1]).min(), (confidence[open_rows] - threshold).abs().min()]
    if not (confidence > threshold).any() and open_rows.sum() > 1:
        first = confidence.topk(2).values
        margins.append(first[0] - first[1])
    return dict(kept=[[start + int(i), int(token[i])] for i in keep.nonzero()[:, 0]],
                margin=float(torch.stack(margins).min()))
