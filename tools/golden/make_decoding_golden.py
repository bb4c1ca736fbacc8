#!/usr/bin/env python3
"""What the decoding loops of diffusion families do on the tiny checkpoints of make_diffusion_golden.py, pass by pass.

  python3 tools/golden/make_decoding_golden.py --out tests/golden/decoding.json

The loops are written from the families' published recipes, over native transformers classes: fp32, the mask token's logit
-inf before the softmax, ties to the lowest id and position; greedy but where a case has a temperature or filters, by which a
recipe's scores are those of what they leave. Where a recipe draws tokens or takes positions at random, the numbers are
headrace's: one for each seed, position and pass over its block. An exact loop runs the whole text in every
pass, so nothing can be stored wrongly; the dual caches keep keys and values that are out of date on purpose.

Two options are of every loop. `cfg_scale` is LLaDA's classifier-free guidance: a pass runs the text a second time, with
the mask in place of each token of the prompt, and what is read is that one's logits and cfg_scale + 1 times what the
prompt adds to them. `ban_end` is LLaDA's logits_eos_inf: an end token's logit is -inf, so that no pass decides one.

With `whole_blocks` a loop is as published: positions behind the end are decided like all others and cut off at last.
Without it, nothing behind a decided end token or behind the last wanted position is decided. Every decision that is
kept lies at least MARGIN from its alternative, so another float32 implementation must agree.
"""
import argparse
import json
import math
from pathlib import Path

import torch
import transformers

import formula
from llada_files import LLADA_TENSORS
from make_canvas_golden import uniform
from make_diffusion_golden import FAMILIES, LLADA2_TENSORS, MASK, additive

MARGIN = 2e-4
ORDER = 0x6F72646572


def order_number(seed, position, step):
    """By which positions are taken at random, of another stream than the numbers that tokens are drawn by; like those it is
    counted from the position before."""
    return uniform(seed ^ ORDER, position - 1, step)


def native_name(name, family):
    if family == "llada":
        if ".blocks." in name and ".self_attn" not in name:
            for part in ("q_proj", "k_proj", "v_proj"):
                name = name.replace(f".{part}", f".self_attn.{part}")
            name = name.replace(".attn_out", ".self_attn.o_proj").replace(".ff_out", ".mlp.down_proj")
        for native_part, stored in LLADA_TENSORS:
            if stored:
                name = name.replace(stored, native_part)
    if family == "llada2":
        for native_part, stored in LLADA2_TENSORS:
            name = name.replace(stored, native_part)
    return name


def native_tensors(stored, family, config):
    """Undoes the family's spelling: names, fused q, k and v, and one tensor per expert."""
    tensors = {native_name(name, family): tensor for name, tensor in stored.items()}
    for name in [n for n in tensors if "query_key_value" in n]:
        head = config.head_dim
        sizes = [config.num_attention_heads * head, config.num_key_value_heads * head, config.num_key_value_heads * head]
        for part, rows in zip(("q_proj", "k_proj", "v_proj"), tensors.pop(name).split(sizes)):
            tensors[name.replace("attention.query_key_value", "self_attn." + part)] = rows
    for name in [n for n in tensors if ".experts.0.gate_proj" in n]:
        layer = name.split(".experts.")[0] + ".experts."
        def experts(part):
            count = sum(1 for n in tensors if n.startswith(layer) and n.endswith(part + ".weight"))
            return torch.stack([tensors.pop(f"{layer}{e}.{part}.weight") for e in range(count)])
        tensors[layer + "gate_up_proj"] = torch.cat([experts("gate_proj"), experts("up_proj")], 1)
        tensors[layer + "down_proj"] = experts("down_proj")
    return tensors


def native(folder, family):
    cls, fields, *_ = FAMILIES[family]
    config = getattr(transformers, cls + "Config")(**fields)
    config._attn_implementation = "eager"
    model = getattr(transformers, cls + "ForCausalLM")(config).eval().float()
    tensors = native_tensors(formula.read(folder), family, config)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and all("rotary" in m or m == "lm_head.weight" for m in missing), (missing, unexpected)
    model.tie_weights()
    return model


def float32(x):
    return float(torch.tensor(x, dtype=torch.float32))


class Sampling:
    """How a loop draws tokens, by the filters of its family: top-p and top-k of Dream's, top-k and top-p of the others, with
    headrace's random numbers, one for each seed, position and pass over its block, that falls on the tokens side by side in
    descending order. Dream's filters stand without a temperature, too; elsewhere the likeliest token is taken as it is."""

    def __init__(self, family, seed=0, temperature=0, top_k=0, top_p=1):
        self.seed, self.temperature, self.top_k, self.top_p = seed, float32(temperature), top_k, float32(top_p)
        self.dream = family in ("dream", "diffucoder")

    def cut_top_k(self, logits):
        """The logits that are left, and how far the cut is from the next."""
        if not 0 < self.top_k < len(logits):
            return logits, math.inf
        top = logits.topk(self.top_k + 1)
        left = torch.full_like(logits, -math.inf)
        left[top.indices[:-1]] = top.values[:-1]
        return left, float(top.values[-2] - top.values[-1])

    def cut_top_p(self, logits):
        if self.top_p >= 1:
            return logits, math.inf
        p, order = logits.softmax(-1).sort(descending=True, stable=True)
        sums = p.cumsum(-1)
        cut = torch.cat([torch.tensor([False]), (sums > self.top_p)[:-1]])
        left = logits.clone()
        left[order[cut]] = -math.inf
        return left, float((sums - self.top_p).abs().min())

    def left(self, logits):
        """The logits that tokens are drawn from and ranked by, and how close another choice of them was."""
        if self.temperature == 0 and not self.dream:
            return logits, math.inf
        heated = logits / self.temperature if self.temperature > 0 else logits
        first, second = (self.cut_top_p, self.cut_top_k) if self.dream else (self.cut_top_k, self.cut_top_p)
        once, close = first(heated)
        twice, closer = second(once)
        return twice, min(close, closer)

    def drawn(self, p, position, step):
        """The token of these probabilities, and how close its neighbours were."""
        shares, order = p.sort(descending=True, stable=True)
        number, sums = uniform(self.seed, position - 1, step), shares.cumsum(-1)
        at = int((sums <= number).sum())
        neighbours = [float(shares[i] - shares[i + 1]) for i in (at - 1, at) if 0 <= i and shares[i + 1] > 0]
        borders = [abs(number - float(sums[i])) for i in (at - 1, at) if i >= 0 and shares[i + 1] > 0]
        return int(order[at]), min(neighbours + borders, default=math.inf)


class Read:
    """What a row of logits says of a position in a pass over its block."""

    def __init__(self, logits, sampling, position, step):
        logits, self.close = sampling.left(logits)
        p = logits.softmax(-1)
        top = p.topk(2).values
        self.margin, self.certain = float(top[0] - top[1]), float(top[1]) == 0  # one token alone is left
        self.token, self.clear = int(logits.argmax()), self.margin
        if sampling.temperature > 0:
            self.token, self.clear = sampling.drawn(p, position, step)
        self.confidence = float(p[self.token])
        self.entropy = float(-(p * (p + 1e-10).log()).sum())

    def score(self, alg):
        return {"confidence": self.confidence, "margin": self.margin, "entropy": -self.entropy}[alg]


class Text:
    """Prompt and output of one request: which positions are masked, what each pass decided, how close it was."""

    def __init__(self, net, prompt, gen, eos, whole_blocks=False, cfg_scale=0, ban_end=False, sampling=None):
        self.model, self.mask_id, self.shift = net
        self.sampling, self.step = sampling or Sampling(""), 0  # of the passes over a block
        self.cfg_scale, self.banned = cfg_scale, list(eos) if ban_end else []
        self.ids, self.prompt, self.gen, self.eos, self.whole = list(prompt), len(prompt), gen, eos, whole_blocks
        self.masked, self.limit, self.decided, self.closest, self.stale = set(), len(prompt) + gen, [], math.inf, None

    def grow(self, end):
        self.masked.update(range(len(self.ids), end))
        self.ids.extend([self.mask_id] * (end - len(self.ids)))

    def masks(self, begin, end):
        end = end if self.whole else min(end, self.limit)
        return [p for p in range(begin, end) if p in self.masked]

    def reads(self, logits, first):
        """Row `first` onwards: {position: Read} by the row that decides it. Without a row before it, position 0 of a
        shifted pass is read from its own row; it is never masked."""
        logits = logits.double()
        logits[:, [self.mask_id] + self.banned] = -math.inf
        return {p: Read(row, self.sampling, p, self.step) for p, row in enumerate(logits, first + self.shift)}

    def forward(self, ids, visible, cache):
        """The logits of one pass over these tokens."""
        row, key = torch.arange(len(ids))[:, None], torch.arange(len(ids))[None]
        with torch.no_grad():
            out = self.model(input_ids=torch.tensor([ids]), attention_mask=additive(visible(row, key)),
                             use_cache=True, past_key_values=cache)
        return out.logits[0]

    def run(self, end, visible, keep_stale=False):
        cache = transformers.DynamicCache()
        logits = self.forward(self.ids[:end], visible, cache)
        if self.cfg_scale > 0:
            masked = [self.mask_id] * self.prompt + self.ids[self.prompt:end]
            without = self.forward(masked, visible, transformers.DynamicCache())
            logits = without + (self.cfg_scale + 1) * (logits - without)
        if keep_stale:
            self.stale = [(layer.keys, layer.values) for layer in cache.layers]
        return self.reads(logits, 0)

    def run_part(self, begin, end):
        """Rows begin..end alone: they see each other and what the last whole pass left of all other positions."""
        cache, n = transformers.DynamicCache(), self.stale[0][0].shape[2]
        others = [p for p in range(n) if not begin <= p < end]
        for i, (keys, values) in enumerate(self.stale):
            cache.update(keys[:, :, others], values[:, :, others], i)
        with torch.no_grad():
            out = self.model(input_ids=torch.tensor([self.ids[begin:end]]), past_key_values=cache, use_cache=True,
                             attention_mask=additive(torch.ones(end - begin, n, dtype=torch.bool)),
                             position_ids=torch.arange(begin, end)[None])
        return self.reads(out.logits[0], begin)

    def look_at(self, reads, candidates):
        """A pass ranks these."""
        self.closest = min([self.closest, *(reads[p].close for p in candidates)])

    def best(self, reads, candidates, count, alg="confidence"):
        self.look_at(reads, candidates)
        ranked = sorted(candidates, key=lambda p: (-reads[p].score(alg), p))
        if 0 < count < len(ranked):
            last, next_one = reads[ranked[count - 1]], reads[ranked[count]]
            if not last.certain or not next_one.certain:  # whose scores are the same in any arithmetic
                self.closest = min(self.closest, last.score(alg) - next_one.score(alg))
        return sorted(ranked[:count])

    def at_random(self, candidates, count, seed, step, weights=None):
        """`count` of them, drawn one after the other without putting back, by their weights or all alike."""
        race = {p: -math.log(order_number(seed, p, step)) / (weights[p] if weights else 1) for p in candidates}
        ranked = sorted(candidates, key=race.get)
        if 0 < count < len(ranked):
            self.closest = min(self.closest, math.log(race[ranked[count]] / race[ranked[count - 1]]))
        return sorted(ranked[:count])

    def passing(self, reads, candidates, threshold, at_or_above, at_least=1):
        """The candidates whose probability passes; the `at_least` likeliest where fewer do."""
        self.look_at(reads, candidates)
        self.closest = min([self.closest, *(abs(reads[p].confidence - threshold) for p in candidates)])
        test = (lambda c: c >= threshold) if at_or_above else (lambda c: c > threshold)
        kept = [p for p in candidates if test(reads[p].confidence)]
        return kept if len(kept) >= at_least else self.best(reads, candidates, at_least)

    def decide(self, reads, positions):
        self.closest = min([self.closest, *(reads[p].clear for p in positions)])
        self.step += 1
        for p in positions:
            self.ids[p] = reads[p].token
            self.masked.discard(p)
        self.decided.append([[p, self.ids[p]] for p in positions])
        if not self.whole:
            self.limit = self.end()

    def end(self):
        """Behind the first decided end token, or behind the last wanted position."""
        ends = (p for p in range(self.prompt, min(len(self.ids), self.limit)) if p not in self.masked)
        return next((p + 1 for p in ends if self.ids[p] in self.eos), self.limit)

    def over(self):
        """An end token was decided and no mask stands before it, or all that is wanted is decided."""
        end = self.end()
        return len(self.ids) >= end and not any(p < end for p in self.masked)

    def ended(self):
        """An end token was decided and no mask stands before it."""
        return any(i in self.eos for i in self.output()) and not any(p < self.end() for p in self.masked)

    def output(self):
        return self.ids[self.prompt:self.end()]


def schedule(masks, steps):
    return [masks // steps + (1 if i < masks % steps else 0) for i in range(steps)]


def everything(row, key):
    return (row >= 0) & (key >= 0)


def block_causal(block):
    return lambda row, key: key // block <= row // block


def llada(text, *, block, steps=None, threshold=None, remasking="low_confidence", seed=0):
    """LLaDA, low-confidence or random remasking: blocks from the prompt's end, in each pass the whole canvas. `steps` per
    block; with a threshold, Fast-dLLM's parallel variant."""
    text.grow(text.prompt + text.gen)
    for begin in range(text.prompt, text.prompt + text.gen, block):
        quota = iter(schedule(len(text.masks(begin, begin + block)), steps or block))
        text.step = 0
        while masks := text.masks(begin, begin + block):
            if threshold is None and (n := next(quota)) == 0:
                continue
            reads = text.run(len(text.ids), everything)
            if remasking == "random":
                text.decide(reads, text.at_random(masks, n, seed, text.step))
            else:
                text.decide(reads, text.best(reads, masks, n) if threshold is None
                            else text.passing(reads, masks, threshold, True))


def dream(text, *, steps, alg="origin", alg_temp=0, seed=0):
    """Dream: the whole canvas, logits of the position before; by `alg` origin, the default, maskgit_plus, topk_margin or
    entropy."""
    text.grow(text.prompt + text.gen)
    times = torch.linspace(1, 1e-3, steps + 1, dtype=torch.float64).tolist()
    for i in range(steps):
        masks = text.masks(text.prompt, len(text.ids))
        share = 1 if i == steps - 1 else 1 - times[i + 1] / times[i]
        n = int(len(masks) * share)
        if not masks or (n == 0 and alg != "origin"):
            continue
        reads = text.run(len(text.ids), everything)
        if alg == "origin":  # each by itself
            numbers = {p: order_number(seed, p, text.step) for p in masks}
            assert all(abs(u - share) > 1e-9 for u in numbers.values())
            text.decide(reads, [p for p in masks if numbers[p] < share])
        elif alg_temp > 0:
            weights = {p: math.exp(reads[p].score(alg) / alg_temp) for p in masks}
            text.decide(reads, text.at_random(masks, n, seed, text.step, weights))
        else:
            text.decide(reads, text.best(reads, masks, n, alg))


def dual_cache(text, *, block, threshold):
    """Fast-dLLM v1: at a block's begin one pass over the whole canvas, whose keys and values the passes over the block
    alone see of all other positions. With shifted logits that first pass decides the block's first token alone."""
    text.grow(text.prompt + text.gen)
    for begin in range(text.prompt, text.prompt + text.gen, block):
        end, first = min(begin + block, len(text.ids)), True
        while masks := text.masks(begin, end):
            reads = text.run(len(text.ids), everything, keep_stale=True) if first else text.run_part(begin, end)
            text.decide(reads, [begin] if first and text.shift else text.passing(reads, masks, threshold, True))
            first = False
        if text.over():
            break


def sdar(text, *, block, steps=None, threshold=None, order="dynamic", eos_early_stop=False):
    """SDAR and LLaDA2 (`dynamic`), Stable-DiffCoder (`static`): block after block, the earlier ones clean. With a threshold
    Stable-DiffCoder's pass commits what reaches it, and always the best. With LLaDA2's `eos_early_stop` nothing runs behind
    the pass that leaves no mask before an end token."""
    while not text.over():
        begin = (len(text.ids) if not text.masked else text.prompt) // block * block
        text.grow(begin + block)
        text.step = 0
        quota = iter(schedule(len(text.masks(begin, begin + block)), steps or block))
        while masks := text.masks(begin, begin + block):
            n = next(quota)
            if n == 0 and order != "dynamic":
                continue
            reads = text.run(begin + block, block_causal(block))
            if order == "static" and threshold is not None:
                text.decide(reads, text.passing(reads, masks, threshold, True))
            elif order == "dynamic":
                text.decide(reads, text.passing(reads, masks, threshold, False, n))
            else:
                text.decide(reads, masks[:n] if order == "sequential" else text.best(reads, masks, n))
            if eos_early_stop and text.ended():
                return


def multi_bd(text, *, block, threshold, at_or_above, blocks=1, sure="in_turn"):
    """Diffulex's multi_bd without idle passes: `blocks` blocks at a time, the next one opened when a tenth of the last
    is decided. A block is sure of a token when nine tenths of the one before were decided (`in_turn`); by
    Stable-DiffCoder's sampler `always`."""
    opened = []

    def valid(begin):
        return min(begin + block, text.limit) - begin

    def progress(begin):
        return 1 - len(text.masks(begin, begin + block)) / valid(begin)

    def open_next(begin):
        text.grow(begin + block)
        opened.append(begin)

    def maybe_open():
        unfinished = [b for b in opened if any(text.masks(x, x + block) for x in opened if x <= b)]
        if len(text.ids) < text.limit and len(unfinished) < blocks and (not opened or progress(opened[-1]) >= 0.1):
            open_next(len(text.ids))

    if text.prompt % block:
        open_next(text.prompt // block * block)
    maybe_open()
    while not text.over():
        useful = max(b + block for b in opened if text.masks(b, b + block))
        reads, news, before = text.run(useful, block_causal(block)), [], 1.0
        for b in opened:
            at, masks = progress(b), text.masks(b, b + block)
            if masks:
                news += text.passing(reads, masks, threshold, at_or_above, 1 if sure == "always" or before >= 0.9 else 0)
            before = at
        text.decide(reads, news)
        opened = [b for b in opened if b < text.limit]
        end = max(b + block for b in opened)
        text.masked -= set(range(end, len(text.ids)))
        del text.ids[end:]
        maybe_open()


def fast_dllm_v2(text, *, block, sub_block, threshold, block_cache=False):
    """Fast-dLLM v2: a clean pass over whole blocks gives the next block's first token; in a block, sub-blocks from left
    to right, by passes over the block that see all of it. With the block cache, only a sub-block's first token needs
    such a pass; later ones run the sub-block alone."""
    causal = block_causal(block)
    while not text.over():
        begin, text.step = len(text.ids), 0
        if begin % block == 0:
            reads = text.run(begin, causal)
            text.grow(begin + 1)
            text.decide(reads, [begin])
        begin = begin // block * block
        text.grow(begin + block)
        initialised = False
        for small in range(begin, begin + block, sub_block):
            text.step = 0
            while masks := text.masks(small, small + sub_block):
                alone = block_cache and initialised and small not in text.masked
                reads = text.run_part(small, small + sub_block) if alone else text.run(begin + block, causal, True)
                initialised = True
                text.decide(reads, text.passing(reads, masks, threshold, False))
            if text.over():
                break


LOOPS = dict(llada=llada, dream=dream, dual_cache=dual_cache, sdar=sdar, multi_bd=multi_bd, fast_dllm_v2=fast_dllm_v2)
SHIFTED = ("dream", "diffucoder", "fast_dllm_v2")

# loop, checkpoint, the request's own way (whole_blocks), what the loop takes besides
CASES = [("llada", "llada", True, dict(block=8)),
         ("llada", "llada", True, dict(block=8, steps=3)),
         ("llada", "llada", True, dict(block=8, threshold=0.035)),
         ("llada", "llada", False, dict(block=8, threshold=0.035)),
         ("llada", "llada_moe", False, dict(block=8, threshold=0.035)),
         ("llada", "dream", False, dict(block=8, threshold=0.035)),
         ("dream", "dream", True, dict(steps=9, alg="entropy")),
         ("dream", "dream", True, dict(steps=24, alg="entropy")),
         ("dream", "dream", True, dict(steps=9, alg="confidence")),
         ("dream", "dream", True, dict(steps=9, alg="margin")),
         ("llada", "llada", True, dict(block=8, remasking="random", seed=5)),
         ("llada", "llada", True, dict(block=8, steps=3, remasking="random", seed=6)),
         ("dream", "dream", True, dict(steps=9, alg="origin", seed=7)),
         ("dream", "dream", True, dict(steps=40, alg="origin", seed=8)),
         ("dream", "dream", True, dict(steps=12, seed=12)),
         ("dream", "dream", True, dict(steps=9, alg="entropy", alg_temp=0.1, seed=9)),
         ("dream", "dream", True, dict(steps=24, alg="confidence", alg_temp=0.01, seed=10)),
         ("dream", "diffucoder", True, dict(steps=9, alg="entropy")),
         ("dream", "diffucoder", True, dict(steps=24, alg="entropy", alg_temp=0.1, seed=11)),
         ("llada", "diffucoder", False, dict(block=8, threshold=0.035)),
         ("dual_cache", "llada", False, dict(block=8, threshold=0.035)),
         ("dual_cache", "dream", False, dict(block=8, threshold=0.035)),
         ("sdar", "sdar", True, dict(block=4, threshold=0.035)),
         ("sdar", "sdar", True, dict(block=8, steps=3, threshold=0.045)),
         ("sdar", "sdar_moe", True, dict(block=8, threshold=0.035)),
         ("sdar", "llada2", True, dict(block=8, threshold=0.035)),
         ("sdar", "llada2", True, dict(block=8, threshold=0.05, eos_early_stop=True)),
         ("sdar", "sdar", True, dict(block=8, steps=3, order="sequential")),
         ("sdar", "stable_diffcoder", True, dict(block=4, steps=4, order="static")),
         ("sdar", "stable_diffcoder", True, dict(block=4, steps=3, order="static")),
         ("multi_bd", "sdar", False, dict(block=4, threshold=0.035, at_or_above=False)),
         ("multi_bd", "sdar", False, dict(block=8, threshold=0.035, at_or_above=False, blocks=2)),
         ("multi_bd", "llada2", False, dict(block=8, threshold=0.035, at_or_above=False, blocks=3)),
         ("multi_bd", "stable_diffcoder", False, dict(block=4, threshold=0.035, at_or_above=True)),
         ("multi_bd", "stable_diffcoder", False,
          dict(block=4, threshold=0.05, at_or_above=True, blocks=2, sure="always")),
         ("multi_bd", "fast_dllm_v2", False, dict(block=16, threshold=0.035, at_or_above=False)),
         ("fast_dllm_v2", "fast_dllm_v2", True, dict(block=16, sub_block=8, threshold=0.035)),
         ("fast_dllm_v2", "fast_dllm_v2", False, dict(block=16, sub_block=8, threshold=0.035)),
         ("fast_dllm_v2", "fast_dllm_v2", False, dict(block=16, sub_block=8, threshold=0.035, block_cache=True)),
         ("llada", "llada", True, dict(block=8, cfg_scale=1.5)),
         ("llada", "llada_moe", True, dict(block=8, steps=3, cfg_scale=0.5)),
         ("llada", "llada", True, dict(block=8, steps=3, remasking="random", seed=13, cfg_scale=2)),
         ("llada", "llada", False, dict(block=8, threshold=0.06, cfg_scale=1)),
         ("llada", "llada", True, dict(block=8, ban_end=True)),
         ("llada", "llada", True, dict(block=8, steps=3, cfg_scale=1.5, ban_end=True)),
         ("llada", "llada_moe", False, dict(block=8, threshold=0.035, ban_end=True)),
         ("dream", "dream", True, dict(steps=9, alg="entropy", ban_end=True)),
         ("sdar", "llada2", True, dict(block=8, threshold=0.05, eos_early_stop=True, ban_end=True)),
         ("multi_bd", "sdar", False, dict(block=8, threshold=0.035, at_or_above=False, blocks=2, ban_end=True)),
         ("dual_cache", "llada", False, dict(block=8, threshold=0.035, ban_end=True)),
         ("fast_dllm_v2", "fast_dllm_v2", False, dict(block=16, sub_block=8, threshold=0.035, ban_end=True)),
         ("dual_cache", "diffucoder", False, dict(block=8, threshold=0.035)),
         ("dual_cache", "llada_moe", False, dict(block=8, threshold=0.035)),
         ("multi_bd", "sdar_moe", False, dict(block=8, threshold=0.035, at_or_above=False, blocks=2)),
         ("llada", "llada_moe", True, dict(block=8)),
         ("llada", "llada_moe", True, dict(block=8, steps=3)),
         ("sdar", "stable_diffcoder", True, dict(block=4, order="static", threshold=0.04)),
         ("sdar", "sdar", True, dict(block=4, threshold=0.9, temperature=0.7, top_k=1, seed=14)),
         ("sdar", "sdar", True, dict(block=4, threshold=0.06, temperature=0.7, top_k=20, top_p=0.8, seed=15)),
         ("sdar", "llada2", True, dict(block=8, threshold=0.1, temperature=0.5, top_k=12, seed=16)),
         ("dream", "dream", True, dict(steps=9, alg="entropy", temperature=0.2, top_p=0.5, seed=17)),
         ("dream", "dream", True, dict(steps=9, alg="margin", temperature=0.5, top_k=5, seed=18)),
         ("dream", "dream", True, dict(steps=9, alg="confidence", top_k=4)),
         ("fast_dllm_v2", "fast_dllm_v2", True,
          dict(block=16, sub_block=8, threshold=0.1, temperature=0.4, top_p=0.5, seed=19)),
         # of 16 positions one is less than a tenth, and 15 are more than nine tenths
         ("multi_bd", "sdar", False, dict(block=16, threshold=0.05, at_or_above=False, blocks=2)),
         ("multi_bd", "llada2", False, dict(block=16, threshold=0.05, at_or_above=False, blocks=3))]
# length of the prompt, tokens wanted, whether one of them ends the output
REQUESTS = [(6, 24, False), (21, 16, False), (16, 24, True)]


def decode(net, loop, prompt, gen, eos, whole_blocks, options):
    model, family, *ids = net
    of_all = {name: options[name] for name in ("cfg_scale", "ban_end") if name in options}
    draws = {name: options[name] for name in ("temperature", "top_k", "top_p") if name in options}
    sampling = Sampling(family, options.get("seed", 0), **draws)
    text = Text((model, *ids), prompt, gen, eos, whole_blocks, sampling=sampling, **of_all)
    # a loop has a seed of its own where it takes positions at random
    taken = of_all | draws | ({"seed": 0} if draws and loop in ("sdar", "fast_dllm_v2") else {})
    LOOPS[loop](text, **{name: value for name, value in options.items() if name not in taken})
    return text


def changes_nothing(net, loop, prompt, gen, eos, whole_blocks, options, text):
    """The guidance of this case might as well be left out."""
    if not options.get("cfg_scale"):
        return False
    plain = {name: value for name, value in options.items() if name != "cfg_scale"}
    return decode(net, loop, prompt, gen, eos, whole_blocks, plain).output() == text.output()


def clear_case(net, loop, seed, request, whole_blocks, options):
    """The first prompt that leaves no choice too close to call."""
    length, gen, ends = request
    for attempt in range(200):
        generator = torch.Generator().manual_seed(1000 * seed + attempt)
        prompt, eos = torch.randint(6, MASK, (length,), generator=generator).tolist(), []
        text = decode(net, loop, prompt, gen, eos, whole_blocks, options)
        if options.get("ban_end"):  # tokens that would have been decided: the first, and one of the later half
            tokens = text.output()
            eos = sorted({tokens[0], tokens[2 * len(tokens) // 3]})
            text = decode(net, loop, prompt, gen, eos, whole_blocks, options)
            assert not set(eos) & set(text.output()) and len(text.output()) == gen
        elif ends:  # a token of the later half that does not stand before it
            tokens = text.output()
            late = [t for i, t in enumerate(tokens) if 2 * i >= len(tokens) and t not in tokens[:i]]
            if not late:
                continue
            eos = late[:1]
            text = decode(net, loop, prompt, gen, eos, whole_blocks, options)
            if options.get("eos_early_stop") and not text.masked:  # it left nothing out
                continue
        if text.closest >= MARGIN and not changes_nothing(net, loop, prompt, gen, eos, whole_blocks, options, text):
            return dict(prompt=prompt, max_tokens=gen, eos_ids=eos, tokens=text.output(), passes=text.decided), text
    raise SystemExit(f"{loop} {options}: no prompt whose choices are clear")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--golden", type=Path, default=Path("tests/golden"))
    ap.add_argument("--out", type=Path, default=Path("tests/golden/decoding.json"))
    args = ap.parse_args()
    torch.set_num_threads(1)
    cases, models = [], {}
    for loop, family, whole_blocks, options in CASES:
        if family not in models:
            models[family] = native(args.golden / family, family)
        net = models[family], family, 5 if family == "stable_diffcoder" else MASK, 1 if family in SHIFTED else 0
        for seed, request in enumerate(REQUESTS):
            case, text = clear_case(net, loop, seed, request, whole_blocks, options)
            print(loop, family, options, f"{len(case['tokens'])} tokens in {len(case['passes'])} passes,",
                  f"closest {text.closest:.1e}", flush=True)
            cases.append(dict(loop=loop, checkpoint=family, whole_blocks=whole_blocks, options=options, **case))
    args.out.write_text("[" + ",\n ".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]\n")


if __name__ == "__main__":
    main()
