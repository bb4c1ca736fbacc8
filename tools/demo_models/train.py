#!/usr/bin/env python3
"""Trains demo_models/fairy-hybrid: a small Qwen3.5 hybrid (3 GDN layers to 1 full) on public-domain fairy tales.

  python3 tools/demo_models/train.py --books DIR --out demo_models/fairy-hybrid

Needs PyTorch and transformers >= 5.17 and one GPU. One book is held out of both the tokenizer and the training.
"""
import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

HELD_OUT = "The-Wind-in-the-Willows.txt"
WINDOW = 512
END = "<|endoftext|>"
# The pre-tokenizer of Qwen3.5: words take their combining marks along.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def make_tokenizer(texts, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END],
                                                             initial_alphabet=alphabet, show_progress=False))
    return tokenizer


def make_config(vocab_size, hidden_size, intermediate_size):
    return Qwen3_5TextConfig(
        vocab_size=vocab_size, hidden_size=hidden_size, intermediate_size=intermediate_size, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=2, head_dim=64, max_position_embeddings=4096,
        linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=64, linear_value_head_dim=64,
        linear_conv_kernel_dim=4, layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
        rope_parameters=dict(rope_type="default", rope_theta=1e5, partial_rotary_factor=0.5,
                             mrope_interleaved=True, mrope_section=[6, 5, 5]),
        tie_word_embeddings=True, eos_token_id=0, bos_token_id=None, pad_token_id=0)


def add_dropout(model, p):
    """Dropout after the embedding and after every mixer and MLP; active in training mode only."""
    def hook(module, inputs, output):
        if not module.training:
            return output
        if isinstance(output, tuple):
            return (torch.nn.functional.dropout(output[0], p),) + output[1:]
        return torch.nn.functional.dropout(output, p)
    model.model.embed_tokens.register_forward_hook(hook)
    for layer in model.model.layers:
        (layer.linear_attn if hasattr(layer, "linear_attn") else layer.self_attn).register_forward_hook(hook)
        layer.mlp.register_forward_hook(hook)


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix updates are made orthogonal by five Newton-Schulz steps (Jordan et al. 2024)."""
    def __init__(self, params, lr, weight_decay):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p))
                m.mul_(0.95).add_(p.grad, alpha=0.05)
                x = p.grad.mul(0.05).add(m, alpha=0.95).bfloat16()
                x = x / (x.norm() + 1e-7)
                flip = x.shape[0] > x.shape[1]
                x = x.T if flip else x
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                x = x.T if flip else x
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(x.float(), alpha=-group["lr"] * 0.2 * math.sqrt(max(p.shape)))


def optimizers(model, lr, weight_decay):
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    embeddings = [p for n, p in model.named_parameters() if "embed" in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2]
    return [Muon(matrices, lr, weight_decay),
            torch.optim.AdamW([dict(params=embeddings, weight_decay=weight_decay), dict(params=rest, weight_decay=0.0)],
                              lr=lr, betas=(0.9, 0.98))]


@torch.no_grad()
def bits_per_byte(model, ids, lengths, device, autocast=True):
    """Windows of 512 tokens without overlap; in each, tokens 1.. are predicted and their bytes counted."""
    model.eval()
    bits, size = 0.0, 0
    windows = [(i, min(i + WINDOW, len(ids))) for i in range(0, len(ids), WINDOW)]
    windows = [w for w in windows if w[1] - w[0] >= 2]
    full = [w for w in windows if w[1] - w[0] == WINDOW]
    batches = [full[i:i + 16] for i in range(0, len(full), 16)] + [[w] for w in windows if w not in full]
    for batch in batches:
        x = torch.tensor([ids[a:b] for a, b in batch], device=device)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast and device.startswith("cuda")):
            logits = model(input_ids=x, use_cache=False).logits
        bits += torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), x[:, 1:].flatten(),
                                                  reduction="sum").item() / math.log(2)
        size += sum(lengths[i] for a, b in batch for i in range(a + 1, b))
    model.train()
    return bits / size


def encode(tokenizer, text):
    encoding = tokenizer.encode(text)
    return encoding.ids, [len(t) for t in encoding.tokens]  # byte-level: one character of a token is one byte


class Average:
    """The running average of a model's parameters, over about the last 200 steps."""
    def __init__(self, model):
        self.params = list(model.parameters())
        self.values = [p.detach().clone() for p in self.params]

    @torch.no_grad()
    def update(self, step):
        torch._foreach_lerp_(self.values, self.params, 1 - min(0.995, (step + 1) / (step + 20)))

    @torch.no_grad()
    def exchange(self):
        """Swaps the average and the parameters: a second call undoes the first."""
        for p, v in zip(self.params, self.values):
            kept = p.detach().clone()
            p.copy_(v)
            v.copy_(kept)


def round_to_bf16(model):
    """What is stored: bf16, the recurrence's own vectors too."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16().float())


def random_windows(data, batch):
    """Endless batches of windows; another cut of the text in every epoch. Draws from `random`."""
    while True:
        offset = random.randrange(WINDOW)
        order = list(range(offset, len(data) - WINDOW, WINDOW))
        random.shuffle(order)
        for at in range(0, len(order) - batch + 1, batch):
            yield torch.stack([data[i:i + WINDOW] for i in order[at:at + batch]])


def fit(model, loss_of, watch, *, steps, lr, weight_decay, minutes=math.inf, every=50):
    """Warm-up of 100 steps, then a linear descent to 0 over the last 60 %; by the clock, if `minutes` end first.

    loss_of(step) returns the loss, watch(step, loss) is called every `every` steps and at the end.
    Returns the average of the parameters, the steps run and the minutes taken.
    """
    opts, average = optimizers(model, lr, weight_decay), Average(model)
    start, step = time.time(), 0
    model.train()
    while True:
        frac = max(step / steps, (time.time() - start) / 60 / minutes)
        if frac >= 1:
            break
        scale = min(1.0, (step + 1) / 100) * min(1.0, (1 - frac) / 0.6)
        for opt, base in zip(opts, (lr, lr * 0.6)):
            for group in opt.param_groups:
                group["lr"] = base * scale
        loss = loss_of(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        average.update(step)
        step += 1
        if step % every == 0:
            watch(step, loss.item())
    if step % every != 0:
        watch(step, loss.item())
    return average, step, (time.time() - start) / 60


def read_books(folder):
    """The training texts in the order of their names, and the book that is held out."""
    names = sorted(p.name for p in folder.glob("*.txt") if p.name not in (HELD_OUT, "SOURCES.txt"))
    return [(folder / n).read_text(encoding="utf-8") for n in names], (folder / HELD_OUT).read_text(encoding="utf-8")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--books", type=Path, required=True)
    ap.add_argument("--out", type=Path, default=Path("demo_models/fairy-hybrid"))
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--vocab", type=int, default=4096)
    ap.add_argument("--hidden", type=int, default=320, help="512 and --intermediate 1280 for rows of K-quants: multiples of 256")
    ap.add_argument("--intermediate", type=int, default=704)
    ap.add_argument("--epochs", type=float, default=4.2)
    ap.add_argument("--dropout", type=float, default=0.15)
    ap.add_argument("--lr", type=float, default=0.008)
    ap.add_argument("--weight-decay", type=float, default=0.3)
    ap.add_argument("--batch", type=int, default=32, help="windows of 512 tokens")
    ap.add_argument("--minutes", type=float, default=math.inf, help="end the schedule here at the latest")
    args = ap.parse_args()
    random.seed(args.seed), torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = "cuda"
    texts, held = read_books(args.books)
    tokenizer = make_tokenizer(texts, args.vocab)
    stream = [i for t in texts for i in tokenizer.encode(t).ids + [0]]
    held_ids, held_lengths = encode(tokenizer, held)
    model = Qwen3_5ForCausalLM(make_config(args.vocab, args.hidden, args.intermediate)).to(device)
    add_dropout(model, args.dropout)
    windows = random_windows(torch.tensor(stream, device=device), args.batch)
    per_epoch, curve = len(stream) // (WINDOW * args.batch), []
    steps = int(per_epoch * args.epochs)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(stream)} tokens, {steps} steps", flush=True)

    def watch(step, loss):
        bpb = bits_per_byte(model, held_ids, held_lengths, device)
        curve.append(dict(step=step, train_loss=round(loss, 4), held_out_bpb=round(bpb, 4)))
        print(f"step {step}/{steps} loss {loss:.3f} held-out {bpb:.4f}", flush=True)

    def loss_of(step):
        x = next(windows)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=x, use_cache=False).logits
            return torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), x[:, 1:].flatten())

    average, step, minutes = fit(model, loss_of, watch, steps=steps, lr=args.lr, weight_decay=args.weight_decay,
                                 minutes=args.minutes)
    raw = bits_per_byte(model, held_ids, held_lengths, device)
    average.exchange()
    averaged = bits_per_byte(model, held_ids, held_lengths, device)
    if raw < averaged:
        average.exchange()
    round_to_bf16(model)
    torch.backends.cuda.matmul.allow_tf32 = False
    final = bits_per_byte(model, held_ids, held_lengths, device, autocast=False)
    print(f"raw {raw:.4f} averaged {averaged:.4f} stored in bf16 {final:.4f}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    model.to("cpu").bfloat16().save_pretrained(args.out, max_shard_size="11500KB")
    tokenizer.save(str(args.out / "tokenizer.json"))
    (args.out / "generation_config.json").write_text(json.dumps(dict(eos_token_id=0, temperature=0.8, top_p=0.95), indent=2) + "\n")
    (args.out / "training.json").write_text(json.dumps(dict(
        arguments={k: str(v) for k, v in vars(args).items() if k not in ("books", "out")}, held_out_bpb=round(final, 4),
        parameters=sum(p.numel() for p in model.parameters()), training_tokens=len(stream),
        steps=step, epochs_run=round(step / per_epoch, 2), minutes=round(minutes, 2),
        weights="average" if averaged <= raw else "last", curve=curve),
        indent=1) + "\n")


if __name__ == "__main__":
    main()
