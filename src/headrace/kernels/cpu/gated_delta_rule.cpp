// A task is one request and one value head; heads are independent, tokens of a head sequential.
#include "headrace/kernels/cpu/gated_delta_rule.h"

#include "headrace/kernels/cpu/gdn_recurrence.h"
#include "headrace/kernels/cpu/parallel_scratch.h"

namespace headrace::cpu::HR_ISA {
namespace {

void run_head(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const GatedDeltaRuleParams*>(context);
  const long request = task / p.num_v_heads;
  if (p.spans[request].q_len != 0) run_recurrence(p, request, task % p.num_v_heads, scratch);
}

bool keeps_every_state(const GatedDeltaRuleParams& p) {
  for (long r = 0; r < p.num_requests; ++r) {
    if (p.slots[r].write == kNoState) return false;
  }
  return true;
}

}  // namespace

void gated_delta_rule(const GatedDeltaRuleParams& params) {
  const long vectors = 2 * round_up_to_lanes(params.dk) + 2 * round_up_to_lanes(params.dv);
  const long floats = vectors + (keeps_every_state(params) ? 0 : params.dk * params.dv);
  headrace::cpu::parallel_for_with_scratch(params.threads, params.num_requests * params.num_v_heads, floats, run_head,
                                           const_cast<GatedDeltaRuleParams*>(&params));
}

}  // namespace headrace::cpu::HR_ISA
