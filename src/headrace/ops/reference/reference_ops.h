// Reference ops: every op in double, naive and complete. All other kernels are tested against these.
#pragma once
#include "headrace/ops/op_set.h"

namespace headrace::reference {

#define HR_OP(op, Args) void op(Args args, const OpContext& context);
#define HR_NONE(op, Args)
HR_OPS(HR_OP, HR_NONE, HR_NONE)
#undef HR_OP
#undef HR_NONE
// Computes row `row` of one request and head; leaves the rest of out and lse unchanged. `args` must have passed
// check().
void paged_attention_row(const PagedAttentionArgs& args, size_t request, int32_t row, int64_t head);

// Returns the table of the reference ops. Immutable; callable from any thread.
const OpSet& ops();

}  // namespace headrace::reference
