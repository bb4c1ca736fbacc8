#!/usr/bin/env python3
"""What transformers' own generate of DiffusionGemma writes on the tiny checkpoint, canvas by canvas.

  python3 tools/golden/make_canvas_golden.py --golden tests/golden --out tests/golden/canvas.json

Its random numbers come from the streams that src/headrace/sampling/random_draw.h describes instead of torch's: noise for
position and step, and the draw of a token. Every decision lies well away from its alternative, in units of what float32
implementations of this network differ by (3e-5 in logits), so that another one must agree. A step sees what the one before
made of its canvas, so that differences grow: a decision also lies ten times further from its alternative than from where
products that are summed in float64 put it.
"""
import argparse
import contextlib
import json
import math
from pathlib import Path

import torch
import transformers
from transformers.models.diffusion_gemma import generation_diffusion_gemma as generation

import formula

LOGIT, CHANCE, ENTROPY = 1.2e-4, 1.2e-4, 1.5e-3  # the least differences
WORD = 2**64 - 1


def uniform(seed, position, step):
    """SplitMix64 of the three, in [0, 1)."""
    z = (seed + 0x9E3779B97F4A7C15 * (position + 1) + 0xD1342543DE82EF95 * step) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


class Streams:
    """Stands in for torch's generators while one request runs, and notes what each step drew."""

    def __init__(self, seed, prompt_len, canvas, vocab, bound, confidence, temperature):
        self.temperature = temperature  # of a step
        self.seed, self.begin, self.canvas, self.vocab = seed, prompt_len, canvas, vocab
        self.bound, self.confidence = bound, confidence
        self.step, self.canvases, self.steps, self.distances = 0, 0, [], []

    def near(self, least, *differences):
        self.distances += [float(d) / least for d in differences]

    def closest(self, other):
        """The least distance, in units of 1 and in tenths of what it is off in another run of the same request."""
        if len(self.distances) != len(other.distances):
            return 0.0
        return min(abs(a) / max(1.0, 10 * abs(a - b)) for a, b in zip(self.distances, other.distances))

    def noise(self):
        return [int(uniform(self.seed ^ 0x6E6F697365, self.begin + i, self.step) * self.vocab) for i in range(self.canvas)]

    def draw(self, probabilities):
        drawn = []
        for i, row in enumerate(probabilities.double()):
            order = sorted(range(self.vocab), key=lambda v: (-float(row[v]), v))
            total, reached, u = float(row.sum()), 0.0, uniform(self.seed, self.begin + i - 1, self.step)
            for v in order:
                reached += float(row[v])
                if u * total < reached:
                    break
            self.near(CHANCE, u - reached, u - reached + float(row[v]))
            at = order.index(v)  # neighbours could change places
            for w in order[max(at - 1, 0):at] + order[at + 1:at + 2]:
                if w != v:
                    self.near(LOGIT, self.temperature(self.step) * math.log(float(row[v]) / max(float(row[w]), 1e-300)))
            self.near(LOGIT, self.temperature(self.step) * math.log(float(row[order[0]]) / float(row[order[1]])))
            drawn.append(v)
        entropy = -(probabilities.double() * probabilities.double().clamp(min=1e-300).log()).sum(-1)
        ascending = entropy.sort().values
        self.near(ENTROPY, *(ascending.cumsum(0) - ascending - self.bound))
        accepted = int(((ascending.cumsum(0) - ascending) <= self.bound).sum())
        if accepted < self.canvas:
            self.near(ENTROPY, ascending[accepted] - ascending[accepted - 1])
        self.near(ENTROPY, entropy.mean() - self.confidence)
        self.steps.append([self.canvases, self.step, accepted, round(float(entropy.mean()), 3)])
        return drawn


@contextlib.contextmanager
def exact_products():
    functional, linear = torch.nn.functional, torch.nn.functional.linear
    functional.linear = lambda x, w, bias=None: linear(x.double(), w.double(), bias and bias.double()).float()
    try:
        yield
    finally:
        functional.linear = linear


def generate(model, prompt, seed, **options):
    canvas, vocab = model.config.canvas_length, model.config.text_config.vocab_size
    config = dict(model.generation_config.to_dict(), **options)
    bound = options.get("sampler_config", model.generation_config.sampler_config).entropy_bound
    steps, low, high = config["max_denoising_steps"], config["t_min"], config["t_max"]
    s = Streams(seed, len(prompt), canvas, vocab, bound, config["confidence_threshold"],
                lambda step: low + (high - low) * (steps - step) / steps)

    def initialize_canvas(self, batch_size, device):
        return torch.tensor([s.noise()])

    def multinomial(probabilities, num_samples):
        drawn = torch.tensor(s.draw(probabilities))[:, None]
        s.step += 1  # what is renoised now belongs to the next step
        return drawn

    class Streamer:
        def put(self, ids):
            pass

        def end(self):
            pass

    reset = generation.StableAndConfidentStoppingCriteria.reset
    saved = generation.EntropyBoundSampler.initialize_canvas, torch.multinomial, model._finalize_canvas

    def finalize(*args, **kwargs):
        s.begin, s.step, s.canvases = s.begin + canvas, 0, s.canvases + 1
        return saved[2](*args, **kwargs)

    generation.EntropyBoundSampler.initialize_canvas, torch.multinomial = initialize_canvas, multinomial
    model._finalize_canvas = finalize
    try:
        out = model.generate(input_ids=torch.tensor([prompt]), **options)
    finally:
        generation.EntropyBoundSampler.initialize_canvas, torch.multinomial = saved[:2]
        del model._finalize_canvas
    return out.sequences[0, len(prompt):].tolist(), s


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--golden", type=Path, default=Path("tests/golden"))
    ap.add_argument("--out", type=Path, default=Path("tests/golden/canvas.json"))
    args = ap.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with formula.checkpoint(args.golden / "diffusion_gemma") as folder:
        model = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
    bound = lambda b: generation.EntropyBoundSamplerConfig(entropy_bound=b)
    cases = [(21, 16, {}, False),  # all of it as generation_config.json says
             (5, 16, dict(max_denoising_steps=3, sampler_config=bound(0.5)), False),
             (12, 32, dict(sampler_config=bound(1000.0), max_denoising_steps=2), False),
             (7, 16, dict(stability_threshold=0), False), (17, 16, dict(t_min=0.01, t_max=0.05), False),
             (9, 24, dict(max_denoising_steps=2), True), (30, 7, dict(max_denoising_steps=1), False)]
    lines = []
    for seed, (length, tokens, options, ends) in enumerate(cases):
        for attempt in range(200):
            prompt = torch.randint(2, 256, (length,), generator=torch.Generator().manual_seed(100 * seed + attempt)).tolist()
            eos = 999  # none
            run = lambda: generate(model, prompt, seed + 5, max_new_tokens=tokens, eos_token_id=eos, **options)
            out, s = run()
            if ends:
                eos = out[len(out) * 2 // 3]
                if eos in out[:16]:  # the first canvas would be the last
                    continue
                out, s = run()
            with exact_products():
                same, other = run()
            closest = s.closest(other)
            if same == out and closest >= 1:
                break
        else:
            raise SystemExit("no prompt whose choices are clear")
        out = out[:tokens]
        if eos in out:
            out = out[:out.index(eos) + 1]
        print(length, options, f"{len(out)} tokens, steps {s.steps}, closest {closest:.1e}, prompt {attempt}", flush=True)
        config = {k: v.entropy_bound if k == "sampler_config" else v for k, v in options.items()}
        lines.append(json.dumps(dict(prompt=prompt, seed=seed + 5, max_tokens=tokens, eos=eos, options=config, tokens=out,
                                     steps=[[c, n] for c, n, *_ in s.steps])))
    args.out.write_text("[" + ",\n ".join(lines) + "]\n")


if __name__ == "__main__":
    main()
