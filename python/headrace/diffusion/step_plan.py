"""Key spans of a step's metadata, made on its device: what every layer of the step reads."""

from __future__ import annotations

import dataclasses

import torch

from headrace import ops
from headrace.diffusion.metadata import AttnMetaDataBase
from headrace.errors import InvalidArgumentError, UnsupportedError

# Values of the column "kind", those of KeySpan::Kind.
_CAUSAL, _BLOCK, _FULL, _PREFIX_FULL, _NONE = range(5)


@dataclasses.dataclass
class StepPlan:
    """One step as the kernels read it."""

    spans: torch.Tensor  # int32 [spans, 15]: ops.SPAN_FIELDS; every packed row is in one of them
    page_table: torch.Tensor | None  # int32 [R, pages]; None: nothing is cached
    page_size: int
    slots: torch.Tensor | None  # int64 [T]: slots of the new keys; None: they are not stored
    max_q_len: int
    max_kv_len: int
    is_capturing: bool  # made by kernels of a CUDA graph's capture
    seen: set[int] = dataclasses.field(default_factory=set)  # layers of the running forward pass


def plan_of(metadata: AttnMetaDataBase, layer: int, q: torch.Tensor) -> StepPlan:
    """Returns the plan of the running forward pass. `layer` identifies the layer.

    The plan is made once per pass, by its first layer, and kept in the metadata: a layer that comes again begins a
    pass, as does a capture. So a graph's capture contains the making of its plan, and replays read what the tensors of
    the metadata hold then.
    """
    is_capturing = q.is_cuda and torch.cuda.is_current_stream_capturing()
    plan: StepPlan | None = metadata.step_plan
    if plan is None or layer in plan.seen or plan.is_capturing != is_capturing:
        plan = make_plan(metadata, q.shape[0], q.device, is_capturing)
        metadata.step_plan = plan
    plan.seen.add(layer)
    return plan


def make_plan(
    metadata: AttnMetaDataBase, num_tokens: int, device: torch.device, is_capturing: bool = False
) -> StepPlan:
    """Makes the plan of a step of `num_tokens` packed rows. On a GPU nothing waits for the device."""
    if metadata.kv_cache_layout != "unified":
        raise UnsupportedError(
            f"attention: kv_cache_layout is '{metadata.kv_cache_layout}'; built is 'unified', "
            "[pages, page_size, heads, dim]"
        )
    if metadata.cu_seqlens_q is None:
        raise InvalidArgumentError("attention metadata: cu_seqlens_q is None, expected int32 [requests + 1]")
    starts = metadata.cu_seqlens_q.to(torch.int32)
    ends = _valid_ends(metadata, starts)
    most = metadata.max_seqlen_q or num_tokens
    spans = _with_padding(starts, ends, _request_spans(metadata, starts, ends, device), num_tokens, most)
    table = _page_table(metadata)
    longest = most if table is None else table.shape[1] * metadata.page_size + most
    slots = _slots(metadata, num_tokens)
    return StepPlan(spans, table, metadata.page_size, slots, most, longest, is_capturing)


def _request_spans(
    metadata: AttnMetaDataBase, starts: torch.Tensor, ends: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """Returns one span per request, of its valid rows."""
    first = starts[:-1]
    q_lens = (starts[1:] if ends is None else ends) - first
    context = metadata.context_lens
    context = torch.zeros_like(q_lens) if context is None else context.to(torch.int32)
    prompt, padded = getattr(metadata, "prefix_lens", None), getattr(metadata, "padded_prefix_lens", None)
    hole, log_shift = None, 0
    if metadata.mask_prefix_hole or getattr(metadata, "is_prefix_full", False):
        if prompt is None or padded is None:
            raise InvalidArgumentError(
                "attention metadata: prefix_lens or padded_prefix_lens is None, expected both under mask_prefix_hole "
                "and is_prefix_full"
            )
        if metadata.mask_prefix_hole:
            hole, log_shift = (prompt, padded), padded - prompt
    spans: torch.Tensor = ops.key_spans(
        q_lens,
        context,
        block_size=metadata.block_size,
        hole=hole,
        log_shift=log_shift,
        prompt_lens=prompt,
        padded_prompt_lens=padded,
    )
    spans[:, ops.SPAN_FIELDS.index("kind")] = _kinds(metadata, len(q_lens), device)
    spans[:, ops.SPAN_FIELDS.index("q_off")] = first
    return spans


def _kinds(metadata: AttnMetaDataBase, num_reqs: int, device: torch.device) -> torch.Tensor | int:
    """Returns the mask of each request: the first rule that fits, in Diffulex's order."""
    if getattr(metadata, "fdv2_cache_only", False):
        return _NONE
    is_block_causal = getattr(metadata, "is_block_causal", False)
    usual = _BLOCK if is_block_causal else _FULL
    if metadata.prefix_causal:
        prefill = _CAUSAL
    else:
        prefill = _PREFIX_FULL if is_block_causal and getattr(metadata, "is_prefix_full", False) else usual
    if prefill == usual:
        return usual
    if metadata.status_table is not None:
        return torch.where(metadata.status_table[:num_reqs] == 0, prefill, usual).to(torch.int32)
    flags = metadata.is_prefill
    if isinstance(flags, bool) or not metadata.has_prefill or metadata.all_prefill:
        return prefill if metadata.has_prefill else usual
    kinds = [prefill if flag else usual for flag in flags]
    return torch.tensor(kinds, dtype=torch.int32, device=device)


def _valid_ends(metadata: AttnMetaDataBase, starts: torch.Tensor) -> torch.Tensor | None:
    """Returns the packed row behind the last valid one of each request, int32 [R]; None: all rows are valid. Requests
    that pad a captured batch may end before they begin: they have no rows."""
    valid: torch.Tensor | None = getattr(metadata, "valid_slices", None)
    return None if valid is None else torch.maximum(valid.to(torch.int32), starts[:-1])


def _with_padding(
    starts: torch.Tensor, ends: torch.Tensor | None, spans: torch.Tensor, num_tokens: int, most: int
) -> torch.Tensor:
    """Adds spans of no keys for the rows that no request needs, so that these rows are zeros: behind the valid rows of
    each request, and behind the last request. No span has more than `most` rows."""
    if ends is not None:
        spans = torch.stack((spans, _padding_spans(ends, starts[1:] - ends)), dim=1).flatten(0, 1)
    count = -(-num_tokens // max(most, 1))
    begins = starts[-1] + most * torch.arange(count, dtype=torch.int32, device=starts.device)
    begins = begins.clamp(max=num_tokens)
    return torch.cat((spans, _padding_spans(begins, (num_tokens - begins).clamp(max=most))))


def _padding_spans(q_off: torch.Tensor, q_len: torch.Tensor) -> torch.Tensor:
    spans: torch.Tensor = ops.key_spans(q_len, torch.zeros_like(q_len), kind="none", page_rows=torch.zeros_like(q_len))
    spans[:, ops.SPAN_FIELDS.index("q_off")] = q_off
    return spans


def _page_table(metadata: AttnMetaDataBase) -> torch.Tensor | None:
    if metadata.page_tables is None:
        return None
    table = metadata.page_tables.to(torch.int32)
    # A GPU may load pages that no row sees. On a CPU the op refuses a page that is none where it is read.
    return table.clamp(min=0) if table.is_cuda else table


def _slots(metadata: AttnMetaDataBase, num_tokens: int) -> torch.Tensor | None:
    if not metadata.need_kv_cache_store:
        return None
    slots = metadata.slot_mapping
    if slots is None or len(slots) < num_tokens:
        found = "None" if slots is None else f"{len(slots)} slots"
        raise InvalidArgumentError(f"attention metadata: slot_mapping is {found}, expected one for {num_tokens} rows")
    return slots[len(slots) - num_tokens :].to(torch.int64)
