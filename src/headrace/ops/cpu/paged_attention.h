// CPU kernel of paged_attention.
#pragma once
#include "headrace/batch/key_span.h"
#include "headrace/ops/cpu/float_type.h"
#include "headrace/ops/cpu/isa.h"
#include "headrace/ops/cpu/token_scales.h"

namespace headrace::cpu {

// Keys are processed in tiles of this many positions. Tile edges are absolute positions, independent of what was cached
// when.
inline constexpr long kKeyTile = 64;
// Padding of matrices in scratch: two AMX tiles, two AVX-512 vectors, one step of bf16 pairs.
inline constexpr long kAttentionPad = 32;

// Rows processed at a time: their scores and probabilities stay in L1, and 96 is 16 times 6 and 3 times 32.
inline constexpr long kScoreRows = 96;

// Rows of the batch: [token, head, dim], the last dimension contiguous. Strides in elements.
struct AttentionRows {
  void* data = nullptr;
  long token_stride = 0, head_stride = 0;
  FloatType type = FloatType::kF32;
};

// One array of the pool: [page, kv head, slot, dim], the last dimension contiguous. Strides in elements.
struct AttentionPages {
  const void* data = nullptr;
  long page_stride = 0, head_stride = 0, slot_stride = 0;
  FloatType type = FloatType::kF32;
  TokenScales scales = {};
};

// A unit is the set of query heads served by one read of a K and V tile: all heads of a KV head, or one query head. A
// task attends from tokens [t0, t1) of a request and units [u0, u1) to key positions [k0, k1).
struct AttentionTask {
  long request, t0, t1, u0, u1, k0, k1;
  long partial;  // offset in `partials` of its KV split (all units), or kNoPartial: writes `out`
};
inline constexpr long kNoPartial = -1;

// Merge of tokens [0, num_tokens) of a request whose keys are divided into `num_splits` KV splits.
struct AttentionMerge {
  long request, num_tokens, partial, num_splits;
};

struct PagedAttentionParams {
  AttentionRows q, k_new, v_new, out;
  AttentionPages k, v;
  float* lse = nullptr;  // or null
  long lse_token_stride = 0, lse_head_stride = 0;
  const int* page_table = nullptr;
  long table_row_stride = 0, table_page_stride = 0, page_size = 1;
  const KeySpan* spans = nullptr;  // folded; cross-attention is a kNone span over the encoder's pages
  long head_dim = 0, v_head_dim = 0;
  long num_units = 0, units_per_kv_head = 1, heads_per_unit = 1;
  float scale = 1, logit_cap = 0;  // scale includes k_scale, because tiles are in units of the pool
  float k_scale = 1, v_scale = 1;  // FP8 pools: new rows are divided by the scales and rounded, as stored ones were
  int window = kNoWindow;
  FloatType key_type = FloatType::kF32;
  bool any_order = false;  // default mode: a row's sums may have another order if its request has few rows
  const AttentionTask* tasks = nullptr;
  long num_tasks = 0;
  long* next_task = nullptr;  // shared counter
  const AttentionMerge* merges = nullptr;
  long num_merges = 0;
  float* partials = nullptr;
  long max_rows = 0, max_units = 0;  // maxima over the tasks: rows of a unit, units
  long scratch_floats = 0;           // per worker
  int threads = 1;
};

// Returns n rounded up to the padding of scratch matrices.
[[gnu::always_inline]] constexpr long padded(long n) { return (n + kAttentionPad - 1) / kAttentionPad * kAttentionPad; }

HR_DECLARE_PER_ISA(void paged_attention(const PagedAttentionParams& params))

}  // namespace headrace::cpu
