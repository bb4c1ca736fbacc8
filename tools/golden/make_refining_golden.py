#!/usr/bin/env python3
"""What decoding loops that work on several blocks, or change tokens again, do on the tiny checkpoints, pass by pass.

  python3 tools/golden/make_refining_golden.py --out tests/golden/refining.json

Loops written from the published recipes of D2F, LLaDA2.1 and DMax over native transformers classes: fp32, greedy, the
mask token never chosen, ties to the lowest id and position. A block is final when it is complete and, for loops that
edit, a pass leaves it as it is; a final block that holds an end token ends the text. Every decision lies at least MARGIN
from its alternative, so that another float32 implementation must agree.
"""
import argparse
import json
import math
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

import formula
from llada_files import LLADA_TENSORS
from make_diffusion_golden import FAMILIES, MASK, additive

MARGIN = 1e-4
LLADA2_NAMES = [("model.word_embeddings", "model.embed_tokens"), (".attention.dense", ".self_attn.o_proj"),
                (".attention.query_layernorm", ".self_attn.q_norm"), (".attention.key_layernorm", ".self_attn.k_norm"),
                ("expert_bias", "e_score_correction_bias")]


def renamed(family, tensors, fields):
    """The tensors under the names of the native class."""
    for name, tensor in tensors.items():
        if family == "llada":
            if ".blocks." in name:
                for part in ("q_proj", "k_proj", "v_proj"):
                    name = name.replace(f".{part}", f".self_attn.{part}")
                name = name.replace(".attn_out", ".self_attn.o_proj").replace(".ff_out", ".mlp.down_proj")
            for native, stored in LLADA_TENSORS:
                name = name.replace(stored, native) if stored else name
        elif family == "llada2" and "query_key_value" in name:
            size = [fields[key] * fields["head_dim"] for key in ("num_attention_heads",) + ("num_key_value_heads",) * 2]
            for part, rows in zip(("q_proj", "k_proj", "v_proj"), tensor.split(size)):
                yield name.replace("attention.query_key_value", f"self_attn.{part}"), rows
            continue
        elif family == "llada2":
            for stored, native in LLADA2_NAMES:
                name = name.replace(stored, native)
        yield name, tensor


def native(folder, family):
    cls, fields, *_ = FAMILIES[family]
    config = getattr(transformers, cls + "Config")(**fields)
    config._attn_implementation = "eager"
    model = getattr(transformers, cls + "ForCausalLM")(config).eval().float()
    tensors = dict(renamed(family, formula.read(folder), fields))
    if any("experts.0." in name for name in tensors):  # the class holds them stacked
        tensors = stacked(tensors, model.state_dict())
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    check(model, folder, family)
    return model


def stacked(tensors, wanted):
    for name in wanted:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")) or name in tensors:
            continue
        base, kind = name.rsplit(".", 1)
        rows = []
        for e in range(wanted[name].shape[0]):
            parts = [tensors.pop(f"{base}.{e}.{p}.weight") for p in (("gate_proj", "up_proj") if "gate" in kind else ("down_proj",))]
            rows.append(torch.cat(parts))
        tensors[name] = torch.stack(rows)
    return tensors


def check(model, folder, family):
    """The checkpoint was read as it was written."""
    golden, block = load_file(folder / "golden.safetensors"), FAMILIES[family][2] or 10**6
    at = torch.arange(len(golden["input_ids"]))
    with torch.no_grad():
        logits = model(input_ids=golden["input_ids"][None], attention_mask=additive(at[:, None] // block >= at[None] // block))
    worst = (logits.logits[0] - golden["logits"]).abs().max()
    assert worst < 1e-4, f"{family}: logits differ by {worst}"


class Text:
    """Prompt and blocks; what may be decided, and how close the decisions were."""

    def __init__(self, prompt, block, blocks, gen, mask_id, eos, stability=0.0):
        self.stability, self.unchanged = stability, {}  # of each block, the share of known tokens that its last pass left
        self.ids, self.prompt_len, self.block, self.blocks = list(prompt), len(prompt), block, blocks
        self.mask_id, self.eos, self.limit = mask_id, eos, len(prompt) + gen
        self.masked, self.active, self.passes, self.closest = set(), [], [], math.inf
        self.passed_end = False  # a pass ran behind one that had left no mask before an end token
        if self.prompt_len % block:
            self.open()
        self.maybe_open()

    def open(self):
        begin = len(self.ids) // self.block * self.block
        self.masked.update(range(len(self.ids), begin + self.block))
        self.ids += [self.mask_id] * (begin + self.block - len(self.ids))
        self.active.append(begin)

    def maybe_open(self):  # at most one block in a pass, once a tenth of the last one is decided and it is stable
        last = max(self.active, default=None)
        if len(self.active) < self.blocks and len(self.ids) < self.limit and (
                last is None or self.progress(last) >= 0.1 and self.unchanged.get(last, 0.0) >= self.stability):
            self.open()

    def look(self, begin, best):
        """A pass finds best[p] at the known places of a block."""
        known = [p for p in self.editable(begin) if p not in self.masked]
        self.unchanged[begin] = sum(best[p][0] == self.ids[p] for p in known) / len(known) if known else 1.0

    def editable(self, begin):
        return range(max(begin, self.prompt_len), min(begin + self.block, self.limit))

    def masks(self, begin):
        return [p for p in self.editable(begin) if p in self.masked]

    def progress(self, begin):
        return 1 - len(self.masks(begin)) / (min(begin + self.block, self.limit) - begin)

    def near(self, *differences):
        self.closest = min([self.closest, *(abs(d) for d in differences)])

    def write(self, writes):
        changed = sorted(p for p in writes if p in self.masked or self.ids[p] != writes[p])
        self.masked -= set(writes)
        for p in changed:
            self.ids[p] = writes[p]
        self.passes.append([[p, self.ids[p]] for p in changed])

    def remask(self, positions):
        self.masked.update(positions)
        for p in positions:
            self.ids[p] = self.mask_id
        self.passes[-1] = sorted(self.passes[-1] + [[p, self.mask_id] for p in positions])

    def end_at(self, positions):
        """The first of `positions` that holds an end token is the last of the text."""
        ends = [p for p in positions if p not in self.masked and self.ids[p] in self.eos]
        if ends:
            self.limit = min(self.limit, min(ends) + 1)
            self.active = [b for b in self.active if b < self.limit]
            del self.ids[math.ceil(self.limit / self.block) * self.block:]

    def ends_before_masks(self):
        decided = self.ids[self.prompt_len:min(self.masked, default=len(self.ids))]
        return any(token in self.eos for token in decided)

    def done(self):
        return not self.active and len(self.ids) >= self.limit


def chances(logits, mask_id):
    """Per row: likeliest id, its probability, how far the second is."""
    logits = logits.double()
    logits[:, mask_id] = -math.inf
    probabilities = logits.softmax(-1)
    top = probabilities.topk(2).values
    return [(int(row.argmax()), float(t[0]), float(t[0] - t[1])) for row, t in zip(logits, top)]


def likeliest(logits, mask_id, count):
    """Per row: its `count` likeliest tokens with their probabilities, and how far the next one is."""
    logits = logits.double()
    logits[:, mask_id] = -math.inf
    top = logits.softmax(-1).topk(count + 1)
    return [(list(zip(ids[:-1].tolist(), values[:-1].tolist())), float(values[-2] - values[-1]))
            for ids, values in zip(top.indices, top.values)]


def cut(cache, length):
    if length == 0:
        return transformers.DynamicCache()
    if cache.get_seq_length() > length:
        cache.crop(length - cache.get_seq_length())
    return cache


def d2f(model, prompt, *, block, blocks, gen, mask_id, threshold, shift, eos):
    """The prompt sees itself in both directions and is computed once; generated blocks see what is before them."""
    text, cache, cached, padded = Text(prompt, block, blocks, gen, mask_id, eos), transformers.DynamicCache(), 0, \
        math.ceil(len(prompt) / block) * block
    while not text.done():
        first = cached - 1 if shift and cached in text.masked and cached else cached  # the row that decides `cached`
        cache = cut(cache, first)
        end = max(b + block for b in text.active if text.masks(b))
        row, key = torch.arange(first, end)[:, None], torch.arange(end)[None]
        visible = key // block <= row // block
        if not text.passes:
            visible = torch.where(row < len(prompt), key < len(prompt), torch.where(row < padded, key < padded, visible))
        with torch.no_grad():
            out = model(input_ids=torch.tensor([text.ids[first:end]]), attention_mask=additive(visible), use_cache=True,
                        position_ids=torch.arange(first, end)[None], past_key_values=cache)
        best = dict(enumerate(chances(out.logits[0], mask_id), first + shift))
        writes, before = {}, 1.0
        for b in text.active:
            masks, at = text.masks(b), text.progress(b)
            kept = [p for p in masks if best[p][1] > threshold]
            text.near(*(best[p][1] - threshold for p in masks))
            if not kept and masks and before >= 0.9:
                ranked = sorted(masks, key=lambda p: (-best[p][1], p))
                kept = ranked[:1]
                text.near(*(best[ranked[0]][1] - best[p][1] for p in ranked[1:2]))
            text.near(*(best[p][2] for p in kept))
            writes.update({p: best[p][0] for p in kept})
            before = at
        cached = text.active[0]
        cache = cut(cache, cached)
        text.write(writes)
        text.end_at(range(len(prompt), min(len(text.ids), text.limit)))
        while text.active and not text.masks(text.active[0]):
            text.active.pop(0)
        text.maybe_open()
    return text


def block_causal(model, text, end, soft, copy_penalty=0.0, smooth=None, as_summed=False):
    """All tokens before `end` in one pass; soft: {position: [(token, probability), ...]} of tokens that are mixed, and the
    mask makes up what they lack to 1, at the length of their parts unless as_summed; with smooth, that share of them is
    added to the position's token instead. The token that stands to the left in the same block loses copy_penalty of its
    logit."""
    table, at = model.get_input_embeddings().weight, torch.arange(end)
    with torch.no_grad():
        x = table[torch.tensor(text.ids[:end])].clone()
        for p, candidates in soft.items():
            if smooth is not None:
                x[p] = x[p] + smooth * sum(share * table[token] for token, share in candidates)
                continue
            rest = max(0.0, 1 - sum(share for _, share in candidates))
            parts = [share * table[token] for token, share in candidates] + [rest * table[text.mask_id]]
            mixed = torch.stack(parts).sum(0)
            x[p] = mixed if as_summed else mixed * sum(part.norm() for part in parts) / mixed.norm().clamp(min=1e-12)
        visible = at[None] // text.block <= at[:, None] // text.block
        logits = model(inputs_embeds=x[None], attention_mask=additive(visible)).logits[0]
        for p in range(end):
            if p % text.block:
                logits[p, text.ids[p - 1]] -= copy_penalty
        return logits


def settle(text, quiet):
    """Blocks from the first on that are complete, and that the pass left as they were, are final."""
    while text.active and not text.masks(text.active[0]) and text.active[0] in quiet:
        begin = text.active.pop(0)
        text.end_at(text.editable(begin))
    text.maybe_open()


def edit(model, prompt, *, block, blocks, gen, mask_id, threshold, edit_threshold, max_edits, eos,
         copy_penalty=0.0, remask=None, stability=0.0):
    """LLaDA2.1: each pass fills masks and replaces tokens of the blocks that are not final. With remask, which is
    headrace's own, a place all of whose tokens are less likely than that becomes a mask again."""
    text, looks, edits = Text(prompt, block, blocks, gen, mask_id, eos, stability), {}, {}
    while not text.done():
        best = chances(block_causal(model, text, max(text.active) + block, {}, copy_penalty), mask_id)
        writes, doubted, quiet = {}, [], set()
        for b in text.active:
            looks[b], masks = looks.get(b, 0) + 1, text.masks(b)
            text.look(b, best)
            filled = [p for p in masks if best[p][1] > threshold]
            text.near(*(best[p][1] - threshold for p in masks))
            if masks and not filled:
                ranked = sorted(masks, key=lambda p: (-best[p][1], p))
                filled = ranked[:1]
                text.near(*(best[ranked[0]][1] - best[p][1] for p in ranked[1:2]))
            known = [p for p in text.editable(b) if p not in text.masked]
            changed = [p for p in known if best[p][0] != text.ids[p] and best[p][1] > edit_threshold]
            text.near(*(best[p][1] - edit_threshold for p in known if best[p][0] != text.ids[p] and edit_threshold > 0))
            unsure = []
            if remask is not None:
                unsure = [p for p in known if p not in changed and best[p][1] < remask]
                text.near(*(best[p][1] - remask for p in known if p not in changed))
            if not masks:
                edits[b] = edits.get(b, 0) + 1
            if looks[b] >= block + max_edits:  # out of time: whatever is left is taken as it is
                taken = masks + changed
                quiet.add(b)
            elif not filled + changed + unsure or edits.get(b, 0) > max_edits:
                taken = []
                quiet.add(b)
            else:
                taken = filled + changed
                doubted += unsure
            text.near(*(best[p][2] for p in known + taken))
            writes.update({p: best[p][0] for p in taken})
        text.write(writes)
        text.remask(doubted)
        settle(text, quiet)
    return text


def published_edit(model, prompt, *, block, blocks, gen, mask_id, threshold, edit_threshold, max_edits, eos, steps=None):
    """LLaDA2.1 as it was published: block after block, whole ones whatever is wanted of the last. A pass fills the masks
    above the threshold, or its share of them where those are fewer, and replaces tokens of the block; behind the last
    mask, passes go on until one replaces nothing, max_edits at most. Its eos_early_stop, which its makers set, looks for
    an end token when a block is over and not before, unlike LLaDA2.0's: until then the token itself may be replaced."""
    wanted, whole = len(prompt) + gen, math.ceil((len(prompt) + gen) / block) * block
    text = Text(prompt, block, blocks, whole - len(prompt), mask_id, eos)
    while not text.done():
        b = text.active[0]
        masks = text.masks(b)
        shares = [len(masks) // (steps or block) + (i < len(masks) % (steps or block)) for i in range(steps or block)]
        for share in [n for n in shares if n > 0] + [0] * max_edits:
            masks = text.masks(b)
            if share > 0 and not masks:
                continue
            text.passed_end = text.passed_end or text.ends_before_masks()
            best, writes = chances(block_causal(model, text, b + block, {}), mask_id), {}
            filled = [p for p in masks if best[p][1] > threshold]
            text.near(*(best[p][1] - threshold for p in masks))
            if len(filled) < share:
                ranked = sorted(masks, key=lambda p: (-best[p][1], p))
                filled = ranked[:share]
                text.near(*(best[filled[-1]][1] - best[p][1] for p in ranked[share:share + 1]))
            known = [p for p in text.editable(b) if p not in text.masked]
            changed = [p for p in known if best[p][0] != text.ids[p] and best[p][1] > edit_threshold]
            text.near(*(best[p][1] - edit_threshold for p in known if best[p][0] != text.ids[p] and edit_threshold > 0))
            text.near(*(best[p][2] for p in known + filled))
            text.write({p: best[p][0] for p in filled + changed})
            if not masks and not changed:
                break
        settle(text, {b})
    text.limit = min(text.limit, wanted)
    return text


def dmax(model, prompt, *, block, blocks, gen, mask_id, threshold, max_edits, eos, merge=1, smooth=None, stability=0.0,
         as_summed=False):
    """DMax: every known token of a block is decided anew in each pass, and is seen mixed with the mask by its probability,
    or the `merge` likeliest tokens of its place by theirs (dmax_topk); or as it is, and `smooth` of the likeliest tokens
    besides (iter_smooth_topk). Masks are filled from the left as far as they are likely."""
    text, edits, mixture = Text(prompt, block, blocks, gen, mask_id, eos, stability), {}, {}
    while not text.done():
        unsettled = {p for b in text.active for p in text.editable(b) if p not in text.masked}
        logits = block_causal(model, text, max(text.active) + block, {p: mixture[p] for p in unsettled},
                              smooth=smooth, as_summed=as_summed)
        best, several = chances(logits, mask_id), likeliest(logits, mask_id, merge)
        writes, quiet = {}, set()
        for b in text.active:
            masks = text.masks(b)
            text.look(b, best)
            known = [p for p in text.editable(b) if p not in text.masked]
            count = 1
            while count < len(masks) and best[masks[count]][1] >= threshold:
                count += 1
            text.near(*(best[p][1] - threshold for p in masks[1:count + 1]))
            taken = known + masks[:count]
            text.near(*(best[p][2] for p in taken), *(best[p][1] - 0.9 for p in known))
            same = not masks and all(best[p][0] == text.ids[p] for p in known)
            if not masks:
                edits[b] = edits.get(b, 0) + 1
            if not masks and edits[b] > max_edits:
                taken = []
                quiet.add(b)
            elif same or all(best[p][1] >= 0.9 for p in text.editable(b)):
                quiet.add(b)
            writes.update({p: best[p][0] for p in taken})
            for p in taken:
                mixture[p] = [best[p][:2]] if merge == 1 and smooth is None else several[p][0]
                text.near(several[p][1] if merge > 1 else math.inf)
        text.write(writes)
        settle(text, quiet)
    return text


def first_replaced(text):
    """A token that the loop decided and replaced again; None where it replaced none."""
    before = {}
    for changes in text.passes:
        for p, token in changes:
            if p in before:
                return before[p]
            before[p] = token
    return None


LOOPS = dict(d2f=d2f, multi_bd_edit=edit, dmax=dmax)
PUBLISHED = dict(multi_bd_edit=published_edit)  # of --schedule reference
# strategy, checkpoint, what the loop takes besides
CASES = [("d2f", "dream", dict(block=8, blocks=1, shift=1)), ("d2f", "dream", dict(block=8, blocks=3, shift=1)),
         ("d2f", "llada", dict(block=4, blocks=2, shift=0)), ("d2f", "llada", dict(block=16, blocks=2, shift=0)),
         ("multi_bd_edit", "llada2", dict(block=8, blocks=1, edit_threshold=0.0, max_edits=16)),
         ("multi_bd_edit", "llada2", dict(block=8, blocks=2, edit_threshold=0.08, max_edits=16)),
         ("multi_bd_edit", "llada2", dict(block=8, blocks=1, edit_threshold=0.02, max_edits=2)),
         ("multi_bd_edit", "llada2", dict(block=8, blocks=2, edit_threshold=0.02, max_edits=2, copy_penalty=3.0)),
         ("multi_bd_edit", "llada2", dict(block=8, blocks=2, edit_threshold=0.08, max_edits=4, remask=0.04)),
         ("multi_bd_edit", "llada2", dict(block=8, blocks=1, edit_threshold=0.08, max_edits=16, schedule="reference")),
         ("multi_bd_edit", "llada2",
          dict(block=8, blocks=1, edit_threshold=0.0, max_edits=2, steps=3, schedule="reference")),
         ("dmax", "llada2", dict(block=8, blocks=1, max_edits=16)), ("dmax", "llada2", dict(block=8, blocks=2, max_edits=3)),
         ("dmax", "llada2", dict(block=8, blocks=1, max_edits=16, merge=3)),
         ("dmax", "llada2", dict(block=8, blocks=2, max_edits=3, merge=2)),
         ("dmax", "llada2", dict(block=8, blocks=1, max_edits=16, smooth=1.0)),
         ("dmax", "llada2", dict(block=8, blocks=1, max_edits=3, merge=2, smooth=0.5)),
         ("multi_bd_edit", "llada2",
          dict(block=8, blocks=1, edit_threshold=0.02, max_edits=4, steps=3, schedule="reference", end="replaced")),
         ("d2f", "diffucoder", dict(block=8, blocks=2, shift=1)), ("d2f", "llada_moe", dict(block=8, blocks=2, shift=0)),
         ("multi_bd_edit", "llada2", dict(block=8, blocks=3, edit_threshold=0.02, max_edits=4, stability=0.75)),
         ("dmax", "llada2", dict(block=8, blocks=3, max_edits=3, stability=1.0)),
         ("dmax", "llada2", dict(block=8, blocks=1, max_edits=16, merge=2, as_summed=True)),
         ("d2f", "sdar", dict(block=8, blocks=2, shift=0)),
         ("multi_bd_edit", "sdar", dict(block=8, blocks=2, edit_threshold=0.02, max_edits=4)),
         ("dmax", "sdar_moe", dict(block=8, blocks=2, max_edits=3))]
# prompt's length, threshold, tokens, whether an end token is among them
PROMPTS = [(6, 0.05, 24, False), (21, 0.12, 17, False), (16, 0.08, 24, True), (3, 0.99, 9, False)]


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--golden", type=Path, default=Path("tests/golden"))
    ap.add_argument("--out", type=Path, default=Path("tests/golden/refining.json"))
    args = ap.parse_args()
    torch.set_num_threads(1)
    lines, models = [], {}
    for strategy, family, options in CASES:
        if family not in models:
            models[family] = native(args.golden / family, family)
        for seed, (length, threshold, gen, ends) in enumerate(PROMPTS):
            for attempt in range(300):  # another prompt where two choices are too close to call
                prompt = torch.randint(6, MASK, (length,), generator=torch.Generator().manual_seed(1000 * seed + attempt))
                loop = (PUBLISHED if "schedule" in options else LOOPS)[strategy]
                taken = {name: value for name, value in options.items() if name not in ("schedule", "end")}
                run = lambda eos: loop(models[family], prompt.tolist(), gen=gen, mask_id=MASK, threshold=threshold,
                                       eos=eos, **taken)
                text, eos = run([]), []
                replaced = first_replaced(text) if options.get("end") == "replaced" else None
                if ends and text.closest >= MARGIN:  # a token that the text holds in its later half ends it
                    eos = [text.ids[length + gen * 2 // 3]]
                    text = run(eos)
                if replaced is not None:  # one that stands for some passes with no mask before it, and is replaced
                    eos = [replaced]
                    text = run(eos)
                if text.closest >= MARGIN and ("end" not in options or text.passed_end):
                    break
            else:
                raise SystemExit(f"{strategy} on {family} {options}: no prompt whose choices are clear")
            tokens = text.ids[length:text.limit]
            print(strategy, family, options, f"{length}: {len(tokens)} tokens in {len(text.passes)} passes,",
                  f"{sum(map(len, text.passes)) - len(tokens)} edits, closest {text.closest:.1e}, prompt {attempt}", flush=True)
            case = dict(strategy=strategy, checkpoint=family, **options, prompt=prompt.tolist(), eos=eos,
                        threshold=threshold, max_tokens=gen, tokens=tokens, passes=text.passes)
            lines.append(json.dumps(case, separators=(",", ":")))
    args.out.write_text("[" + ",\n ".join(lines) + "]\n")


if __name__ == "__main__":
    main()
