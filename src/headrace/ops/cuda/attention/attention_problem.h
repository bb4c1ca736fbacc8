// Launch parameters, sizes and heuristics' problem of an attention call. Plain C++.
#pragma once
#include "headrace/ops/cuda/attention/heuristics.h"
#include "headrace/ops/paged_attention.h"

namespace headrace::cuda {

// Returns the launch parameters of `args`. Pointers refer to the caller's memory.
AttentionParams params_of(const PagedAttentionArgs& args);

// Returns the sizes of a batch with `group` query heads per KV head, whose page table holds no more than its keys.
AttentionShape shape_of(std::span<const KeySpan> spans, int group, Determinism determinism);

// Returns the row tiles, requests and key bounds of `args`. If `args.on_device` has bounds on rows (graphs), the result
// holds for any split of the rows.
AttentionShape shape_of(const PagedAttentionArgs& args, Determinism determinism);

// Returns the problem that choose_attention() takes.
AttentionProblem problem_of(const AttentionParams& params, const AttentionShape& shape);

}  // namespace headrace::cuda
