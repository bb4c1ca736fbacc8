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
// Longest 16-bit row, a multiple of 8 elements, for which rms_norm adds in the order of the GEMM sequence kernel.
inline constexpr int64_t kLongestOrderedNorm = 16384;

// Attention oracle: one CTA per query row and head, every sum in one fixed order. AttnImpl::kReference runs it.
namespace reference {
void paged_attention(const PagedAttentionArgs& args, const OpContext& context);
}  // namespace reference

// linear and fused_linear that always defer small M to the GEMM sequence (gemm_sequence.h), even where that is slower.
// Tests need it because they use small sizes.
namespace chained {
void linear(const LinearArgs& args, const OpContext& context);
bool fused_linear(const FusedLinearArgs& args, const OpContext& context);
}  // namespace chained

}  // namespace headrace::cuda
