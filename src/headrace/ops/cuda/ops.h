// Host entry points of the CUDA kernels, one per op: check the arguments, return early on empty work, launch on
// context.stream. All tensors are in device memory, and args.on_device holds the batch's arrays.
#pragma once
#include "headrace/ops/op_set.h"

namespace headrace::cuda {

#define HR_OP(op, Args) void op(Args args, const OpContext& context);
#define HR_FUSED_OP(op, Args) bool op(Args args, const OpContext& context);
HR_OPS(HR_OP, HR_FUSED_OP, HR_OP)
#undef HR_OP
#undef HR_FUSED_OP
std::vector<int32_t> kv_len_buckets(const PagedAttentionArgs& args, const OpContext& context);

// Attention oracle: one CTA per query row and head, every sum in one fixed order. AttnImpl::kReference runs it.
namespace reference {
void paged_attention(const PagedAttentionArgs& args, const OpContext& context);
}  // namespace reference

}  // namespace headrace::cuda
