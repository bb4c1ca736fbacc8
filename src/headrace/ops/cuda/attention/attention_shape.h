// Sizes of an attention call.
#pragma once
#include "headrace/ops/cuda/attention/paged_attention.h"

namespace headrace::cuda {

// Returns the row tiles, requests and key bounds of `args`. If `args.on_device` has bounds on rows (graphs), the result
// holds for any split of the rows.
AttentionShape shape_of(const PagedAttentionArgs& args, const OpContext& context);

}  // namespace headrace::cuda
