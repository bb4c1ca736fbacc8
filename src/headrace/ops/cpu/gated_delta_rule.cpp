// Short requests use the recurrence, longer ones the chunked form. Heads are independent; tokens of a head are
// sequential. The split into tasks depends on the problem only.
#include "headrace/ops/cpu/gated_delta_rule.h"

#ifdef __AMX_BF16__
#include "headrace/ops/cpu/gdn_chunk_amx.h"
#else
#include "headrace/ops/cpu/gdn_chunk.h"
#endif
#include "headrace/ops/cpu/parallel_scratch.h"

namespace headrace::cpu::HR_ISA {
namespace {

void run_key_head(const GatedDeltaRuleParams& p, long request, long key_head, float* scratch) {
  ChunkScratch places;
  const long used = place(p, scratch, places);
#ifdef __AMX_BF16__
  if (amx_fits(p)) {
    AmxScratch amx;
    place(p, scratch + used, amx);
    configure_tiles();
    run_chunks(p, request, key_head, AmxProducts{p, places, amx});
    release_tiles();
    return;
  }
#endif
  static_cast<void>(used);
  run_chunks(p, request, key_head, FloatProducts{p, places});
}

long chunk_floats(const GatedDeltaRuleParams& p) {
  ChunkScratch places;
  long floats = place(p, nullptr, places);
#ifdef __AMX_BF16__
  AmxScratch amx;
  if (amx_fits(p)) floats += place(p, nullptr, amx);
#endif
  return floats;
}

// The recurrence runs one value head per task. The chunked form runs a key head in the task of its first value head.
void run_head(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const GatedDeltaRuleParams*>(context);
  const long request = task / p.num_v_heads, head = task % p.num_v_heads, group = p.num_v_heads / p.num_k_heads;
  const long tokens = p.spans[request].q_len;
  if (tokens == 0) return;
  if (tokens < p.chunked_from) {
    run_recurrence(p, request, head, scratch);
  } else if (head % group == 0) {
    run_key_head(p, request, head / group, scratch);
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
  const long chunks = chunked ? chunk_floats(p) : 0;
  return floats > chunks ? floats : chunks;
}

}  // namespace

void gated_delta_rule(const GatedDeltaRuleParams& params) {
  headrace::cpu::parallel_for_with_scratch(params.threads, params.num_requests * params.num_v_heads,
                                           scratch_floats(params), run_head,
                                           const_cast<GatedDeltaRuleParams*>(&params));
}

}  // namespace headrace::cpu::HR_ISA
