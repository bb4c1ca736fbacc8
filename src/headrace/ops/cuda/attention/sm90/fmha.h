// What the Hopper attention kernels are launched with.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "headrace/ops/cuda/attention/attention_params.h"
#include "headrace/ops/cuda/attention/sm90/fmha_plan.h"

namespace headrace::cuda {

struct KVMaps {
  CUtensorMap k, v;  // of [pages, heads, slots, dim]: boxes of 64 elements by the slots of a page that a tile takes
};

// Rows whose keys several blocks of threads took: what to join.
struct JoinEntry {
  int request = 0, kv_head = 0, row0 = 0, rows = 0;  // rows: of the request, packed as (token, head of the group)
  int parts = 0;                                     // 0 or 1: nothing to join
  int slot = 0, step = 1;                            // parts lie in slots slot, slot + 1, slot + 1 + step, ...

  __device__ int slot_of(int part) const { return part == 0 ? slot : slot + 1 + (part - 1) * step; }
};

struct Work;                     // attention_work.cuh
constexpr int kWorkBytes = 140;  // of one

// How the work is shared out, and where partial results go. All of it is counted on the device from the key spans, by
// plan_attention_sm90.
struct WorkPlan {
  enum class Sharing : uint8_t {
    kQueue,   // pieces are whole rows, or groups of their keys; blocks take one after the other, long ones first
    kShares,  // every block of threads gets the same number of tiles of keys, wherever rows begin and end
  };
  Sharing sharing = Sharing::kQueue;
  int teams = 1;           // warpgroups that take the tiles of one group of 64 rows in turns
  bool crowded = false;    // two blocks to a multiprocessor, with tiles of kCrowdedKeys
  bool both_ends = false;  // the queue is taken from both ends: long contexts and long prompts then run side by side
  // kv heads that the queue takes side by side, a divisor of all: the others' pieces come behind all of theirs.
  int heads_together = 1;
  // Sums are cut at every multiple of this many tiles of keys and the groups added up in order, so that it does not
  // matter which block of threads took them. 0: never.
  int group_tiles = 0;
  int piece_tiles = 0;  // pieces are cut at multiples of so many
  int long_tiles = 0;   // or of so many, where pieces then take most of the blocks at once; 0: never
  int max_parts = 1;    // groups of one piece of rows in slots of their own; 1: not split
  // kLongFewRows: only requests of up to kCutRows rows that see more than kUncutKeys keys are split.
  enum class Cuts : uint8_t { kAllRows, kLongFewRows };
  Cuts cuts = Cuts::kAllRows;
  // Fast mode: of the first requests, which are taken last, groups are a kFiner-th, so that all blocks end together.
  bool finer_end = false;
  static constexpr int kFiner = 4;
  int value_parts = 1;       // of the values' columns, which as many blocks of threads share that all find the weights
  int slot_rows = 0;         // rows of a slot
  float* values = nullptr;   // [slots, slot_rows, v_head_dim], not yet divided by the sum
  float2* states = nullptr;  // [slots, slot_rows]: largest score (base 2), sum
  JoinEntry* entries = nullptr;
  int entry_count = 0;
  Work* works = nullptr;
  uint2* shares = nullptr;    // kShares: the first and last of a block's works
  uint32_t* units = nullptr;  // kQueue: works, each of all kv heads
  float* stash = nullptr;     // of each thread, the sum of the groups before
  bool stands = false;        // works, units and shares were there before the kernel ahead of this one began
  uint32_t* queue = nullptr;  // pieces taken, blocks that are done; zero between calls
};

constexpr int kStashFloats = 256 / 2 + 4;  // of a thread, for heads of up to 256

// What the kernels of a call are launched with.
struct AttentionCall {
  KVMaps maps;
  AttentionParams p;
  WorkPlan plan;
  int rows = 0, keys = 0;    // of the attention kernel's tiles
  int blocks = 0;            // of it
  bool many_groups = false;  // a piece may well hold several of strict mode's groups: for speed alone
  // fp8_decode: so many of its blocks share a multiprocessor; 0: another kernel
  int fp8_decode_resident = 0;
  Determinism determinism = Determinism::kFast;
};

// T: of the queries; kDim: 64, 128 or 256. They are slow to compile and lie in several files. Tall: for requests with
// more than 64 rows, packed as (token, query head of the group).
template <class T, int kDim, PoolElements kPool>
void fmha_prefill(const AttentionCall& call, const Stream& stream);
template <class T, int kDim, PoolElements kPool>
void fmha_decode(const AttentionCall& call, const Stream& stream);

// Up to kFp8DecodeRows rows of a request over a pool of FP8; kDim: 128 or 256.
template <class T, int kDim>
void fp8_decode(const AttentionCall& call, const Stream& stream);

// Writes the plan's works, shares, units and entries.
void plan_attention_sm90(const AttentionCall& call, const Stream& stream);

// Adds up the parts of the plan's entries, in order, and writes the rows.
void join_parts_sm90(const AttentionCall& call, const Stream& stream);

}  // namespace headrace::cuda
