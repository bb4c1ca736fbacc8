// The set "cuda_baseline": ops that are told that their device is the oldest that is built.
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda::baseline {
namespace {

// Calls op with a copy of the stream that says sm_80. Not for ops that keep something in the stream.
template <class Args>
void run_as_oldest(void (*op)(const Args&, const OpContext&), const Args& args, const OpContext& context) {
  Stream oldest = stream_of(context);
  oldest.arch = kOldestArch;
  OpContext there = context;
  there.stream = &oldest;
  op(args, there);
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args, const OpContext& context) {
  run_as_oldest(cuda::paged_attention, args, context);
}

void gated_delta_rule(const GatedDeltaRuleArgs& args, const OpContext& context) {
  run_as_oldest(cuda::gated_delta_rule, args, context);
}

void expert_mlp(const ExpertMLPArgs& args, const OpContext& context) { run_as_oldest(cuda::expert_mlp, args, context); }

}  // namespace headrace::cuda::baseline
