// Launch parameters of the Hopper attention kernels.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "headrace/ops/cuda/attention/attention_params.h"
#include "headrace/ops/cuda/attention/sm90/fmha_plan.h"

namespace headrace::cuda {

struct KVMaps {
  CUtensorMap k, v;  // over [pages, heads, slots, dim]; TMA box: 64 elements by the slots of a page that a tile takes
};

// A tile of rows whose KV splits ran on several CTAs and must be merged.
struct MergeEntry {
  int request = 0, kv_head = 0, row0 = 0, rows = 0;  // rows: of the request, packed as (token, head of the GQA group)
  int parts = 0;                                     // KV splits; 0 or 1: nothing to merge
  int slot = 0, step = 1;                            // results lie in slots slot, slot + 1, slot + 1 + step, ...

  __device__ int slot_of(int part) const { return part == 0 ? slot : slot + 1 + (part - 1) * step; }
};

struct Work;                     // tile_scheduler.cuh
constexpr int kWorkBytes = 140;  // sizeof(Work)

// Schedule of the work tiles, and memory of partial results. plan_attention_sm90() counts and cuts the work tiles on
// the device from the key spans. The memory belongs to the stream (scratch memory, counters) or to the plan cache.
struct WorkPlan {
  enum class Sharing : uint8_t {
    kQueue,       // work tiles are whole rows, or fixed KV splits of them; CTAs take them from a queue, long ones first
    kEvenSplits,  // even KV splits: every CTA gets the same number of KV tiles, wherever rows begin and end
  };
  Sharing sharing = Sharing::kQueue;
  int kv_warpgroups = 1;   // consumer warpgroups that alternate over the KV tiles of 64 rows
  bool crowded = false;    // two CTAs per SM, with tiles of kCrowdedKeys
  bool both_ends = false;  // the queue is served from both ends, so that long contexts run beside long prompts
  // KV heads that the queue serves side by side, a divisor of all. Work tiles of the other heads come after all of
  // theirs.
  int heads_together = 1;
  // Sums are cut at every multiple of this many KV tiles (fixed KV splits) and merged in order. So the result does not
  // depend on which CTA computed a split. 0: never.
  int group_tiles = 0;
  int piece_tiles = 0;  // work tiles are cut at multiples of this
  int long_tiles = 0;   // or of this, if such work tiles occupy most CTAs at once; 0: never
  int max_splits = 1;   // splits of a row tile with slots of their own; 1: not split
  // kLongFewRows: only requests of up to kCutRows rows that see more than kUncutKeys keys are split.
  enum class Cuts : uint8_t { kAllRows, kLongFewRows };
  Cuts cuts = Cuts::kAllRows;
  // Default mode: splits of the first requests, which run last, are a kFiner-th as long, so that all CTAs end together.
  bool finer_end = false;
  static constexpr int kFiner = 4;
  int value_parts = 1;      // parts of V's columns, each computed by a CTA of its own; all of these compute the weights
  int slot_rows = 0;        // rows of a slot
  float* values = nullptr;  // [slots, slot_rows, v_head_dim], not yet divided by the sum
  float2* states = nullptr;  // [slots, slot_rows]: largest score (base 2), sum
  MergeEntry* entries = nullptr;
  int entry_count = 0;
  Work* works = nullptr;
  uint2* shares = nullptr;    // kEvenSplits: the first and last work tile of a CTA
  uint32_t* units = nullptr;  // kQueue: number of work tiles, each of all KV heads
  float* stash = nullptr;     // per thread: the merged state of the previous fixed splits
  bool stands = false;        // works, units and shares existed before the preceding kernel began
  uint32_t* queue = nullptr;  // work tiles taken, CTAs that are done; zero between calls
};

constexpr int kStashFloats = 256 / 2 + 4;  // per thread, for heads of up to 256

// Arguments of a call's kernels: scheduler, attention, merge.
struct AttentionCall {
  KVMaps maps;
  AttentionParams p;
  WorkPlan plan;
  int rows = 0, keys = 0;    // of the attention kernel's tiles
  int blocks = 0;            // CTAs of the attention kernel
  bool many_splits = false;  // a work tile may hold several fixed KV splits; affects only speed
  bool gathers = false;      // rows of K and V are gathered (Sm90Task)
  // CTAs per SM of FP8 decode; 0: another kernel runs
  int fp8_decode_resident = 0;
  Determinism determinism = Determinism::kFast;
};

// Launch the attention kernel. T: query type; kDim: 64, 128 or 256. fmha_prefill: for requests with more than 64 rows,
// packed as (token, query head of the GQA group); fmha_decode: for the others. Several files instantiate them, because
// they compile slowly.
template <class T, int kDim, PoolElements kPool>
void fmha_prefill(const AttentionCall& call, const Stream& stream);
template <class T, int kDim, PoolElements kPool>
void fmha_decode(const AttentionCall& call, const Stream& stream);

// Launches the attention kernel of 16-bit floats that gathers the rows of K and V.
template <class T, int kDim>
void fmha_gather(const AttentionCall& call, int max_rows, const Stream& stream);

// Launches FP8 decode: up to kFp8DecodeRows rows of a request over an FP8 pool; kDim: 128 or 256.
template <class T, int kDim>
void fp8_decode(const AttentionCall& call, const Stream& stream);

// Launches the tile scheduler, which writes the plan's works, shares, units and entries.
void plan_attention_sm90(const AttentionCall& call, const Stream& stream);

// Launches the merge of the plan's entries: merges their splits in order and writes the rows.
void merge_splits_sm90(const AttentionCall& call, const Stream& stream);

}  // namespace headrace::cuda
