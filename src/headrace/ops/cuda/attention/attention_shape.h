// How an attention call's launch is sized.
#pragma once
#include "headrace/ops/cuda/attention/paged_attention.h"

namespace headrace::cuda {

AttentionShape shape_of(const PagedAttentionArgs& args, const OpContext& context);

}  // namespace headrace::cuda
