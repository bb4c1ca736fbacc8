// Short requests run as a recurrence, longer ones in chunks; heads are independent, tokens of a head sequential.
// The split over tasks depends on the problem only.
#include "headrace/kernels/cpu/gated_delta_rule.h"

#include "headrace/kernels/cpu/gdn_chunk.h"
#include "headrace/kernels/cpu/parallel_scratch.h"

namespace headrace::cpu::HR_ISA {
namespace {

// The recurrence takes a value head per task; chunks take a key head, at the task of its first value head.
void run_head(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const GatedDeltaRuleParams*>(context);
  const long request = task / p.num_v_heads, head = task % p.num_v_heads, group = p.num_v_heads / p.num_k_heads;
  const long tokens = p.spans[request].q_len;
  if (tokens == 0) return;
  if (tokens < p.chunked_from) {
    run_recurrence(p, request, head, scratch);
  } else if (head % group == 0) {
    run_chunks(p, request, head / group, scratch);
  }
}

long scratch_floats(const GatedDeltaRuleParams& p) {
  long floats = 2 * round_up_to_lanes(p.dk) + 2 * round_up_to_lanes(p.dv);
  bool chunked = false, unkept = false;
  for (long r = 0; r < p.num_requests; ++r) {
    chunked = chunked || p.spans[r].q_len >= p.chunked_from;
    unkept = unkept || p.slots[r].write == kNoState;
  }
  if (unkept) floats += p.dk * p.dv;
  ChunkScratch places;
  const long chunk_floats = chunked ? place(p, nullptr, places) : 0;
  return floats > chunk_floats ? floats : chunk_floats;
}

}  // namespace

void gated_delta_rule(const GatedDeltaRuleParams& params) {
  headrace::cpu::parallel_for_with_scratch(params.threads, params.num_requests * params.num_v_heads,
                                           scratch_floats(params), run_head,
                                           const_cast<GatedDeltaRuleParams*>(&params));
}

}  // namespace headrace::cpu::HR_ISA
