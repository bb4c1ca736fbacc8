// Plan of the Hopper attention kernel: tile sizes, and how rows and keys of a call are distributed. Pure functions.
#pragma once
#include <cstdint>

#include "headrace/ops/cuda/attention/attention_params.h"

namespace headrace::cuda {

// Returns the keys of a KV tile. Where two consumer warpgroups alternate over the tiles of few rows, small tiles keep
// more copies in flight.
constexpr int tile_keys(int dim, int kv_warpgroups) {
  if (kv_warpgroups == 2) return dim > 128 ? 32 : dim > 64 ? 64 : 128;
  return dim > 128 ? 64 : 128;
}

// Keys of a KV tile where two CTAs share an SM. It suits short work tiles: one's prologue and epilogue run beside the
// other's MMAs.
constexpr int kCrowdedKeys = 64;
constexpr int kCrowdedPieces = 4;  // least work tiles per SM

// Keys of a fixed KV split in batch-invariant mode: sums are cut at every multiple of it.
constexpr int kSm90SplitKeys = 4096;
// FP8 pool: splits of half as many keys let one request fill the device, and a batch's CTAs end closer together.
constexpr int kFp8SplitKeys = 2048;

// The stream's counters that the tile scheduler uses; those of cluster decode follow.
constexpr int kQueueCounters = 2;

// Beside prompts, requests of up to kCutRows rows are split if they see more than kUncutKeys keys.
constexpr int kCutRows = 16, kUncutKeys = 16384;

// FP8 decode (fp8_decode.cuh). kFp8DecodeRows: the most rows of a request. kFp8DecodeParts: parts of a KV tile, one per
// warp. kFp8DecodeWhole: in default mode rows over up to this many KV tiles are not split, because several CTAs and a
// merge kernel take longer. kFp8DecodeShallow: rows over up to this many KV tiles do not gain from more tiles in flight
// than two CTAs have.
constexpr int kFp8DecodeRows = 16, kFp8DecodeParts = 4, kFp8DecodeWhole = 4, kFp8DecodeShallow = 6;
constexpr int fp8_decode_rows(int max_rows) { return max_rows <= 8 ? 8 : kFp8DecodeRows; }  // of a tile
constexpr int fp8_decode_keys(int dim) { return dim > 128 ? 64 : 128; }

// Returns the rows of a prefill CTA. Small heads leave registers for a third consumer warpgroup, whose MMAs overlap
// with the exponentials of the others. For an FP8 pool the dequant warpgroup takes these registers, and a warp that
// gathers keys needs them.
constexpr int prefill_rows(int dim, PoolElements pool, bool gathers = false) {
  return dim <= 64 && pool == PoolElements::kFloats && !gathers ? 192 : 128;
}

// Default mode, few rows of several requests that do not fill the device: KV splits of this many keys, at most
// kMostFewRowsSplits per row. Short splits balance requests of any length, at the cost of a merge per row. In a model,
// splits of kSm90SplitKeys are faster if the device finds that they occupy most CTAs, one each.
constexpr int kFewRowsSplitKeys = 1024, kMostFewRowsSplits = 32;

// Returns the keys of such a split: they double until `max_keys` make at most kMostFewRowsSplits splits.
constexpr int few_rows_split_keys(int max_keys) {
  int keys = kFewRowsSplitKeys;
  while (max_keys > int64_t{keys} * kMostFewRowsSplits) keys *= 2;
  return keys;
}

// Input of plan_sm90().
struct Sm90Task {
  AttentionShape shape;
  PoolElements pool = PoolElements::kFloats;
  int kernel_dim = 128;  // kernel's head size: 64, 128 or 256
  int kv_heads = 1;
  bool gathers = false;         // rows of K and V are gathered, because TMA cannot load them or new keys lie elsewhere
  bool fp8_decode = true;       // FP8 decode may run: scores have no soft cap
  bool room_for_splits = true;  // false: no memory for partial results of few rows' splits
};

// Output of plan_sm90().
struct Sm90Plan {
  // kRows: work tiles are whole row tiles. kFixedSplits: or fixed KV splits of them. kEvenSplits: each CTA has equally
  // many KV tiles, wherever rows begin and end.
  enum class Sharing : uint8_t { kRows, kFixedSplits, kEvenSplits };
  Sharing sharing = Sharing::kRows;
  int rows = 64, keys = 128;    // of a tile
  int64_t pieces = 0;           // row tiles times KV heads
  int kv_warpgroups = 1;        // consumer warpgroups that alternate over KV tiles
  bool both_ends = false;       // long contexts run beside long prompts
  bool crowded = false;         // two CTAs per SM
  int fp8_decode_resident = 0;  // CTAs per SM of FP8 decode; 0: another kernel
  int value_parts = 1;          // parts of V's columns, one per CTA
  int split_keys = 0;           // kFixedSplits: keys of a fixed KV split
  int64_t groups = 1;           // splits that become work tiles if there is memory for their results; 1: rows are whole
  bool needs_room = false;      // without that memory another plan is better
  int long_split_keys = 0;      // keys of a split if each gets a CTA; 0: always split_keys
  bool finer_end = false;       // splits of the work that runs last are shorter, if memory allows
  // Batch-invariant mode: whole rows may hold several fixed splits. A specialised kernel is faster there; either is
  // correct.
  bool many_splits = false;
  bool cuts_long_rows = false;  // splits few rows with many keys beside prompts, whose rows are whole
};

// Returns the row tiles of a call, for tiles of 64, 128 or 192 rows.
constexpr int64_t sm90_tiles(const AttentionShape& shape, int rows) {
  return rows == 64 ? shape.tiles64 : rows == 128 ? shape.tiles128 : shape.tiles192;
}

// Chooses fixed KV splits. They become work tiles of their own where rows alone would not fill the device to the end.
constexpr void plan_fixed_splits(const Sm90Task& task, int num_sms, Sm90Plan& plan) {
  const bool fast = task.shape.determinism == Determinism::kFast, tall = plan.rows > 64;
  const bool codes = task.pool == PoolElements::kFp8;
  // Batch-invariant mode keeps one tile size.
  plan.crowded =
      fast && task.kernel_dim == 128 && !codes && !task.gathers && plan.pieces >= int64_t{kCrowdedPieces} * num_sms;
  const bool few = fast && plan.pieces < num_sms;
  const bool fp8_decode = plan.fp8_decode_resident > 0, short_groups = codes && (!fast || fp8_decode);
  plan.split_keys = few ? few_rows_split_keys(task.shape.max_keys) : short_groups ? kFp8SplitKeys : kSm90SplitKeys;
  // Splits of few rows leave SMs idle. Two CTAs with half of V's columns each read the keys twice, the second time from
  // the cache, and change no bit. It pays if a work tile waits for memory and not for its own MMAs: for long heads.
  if (!fast && !tall && !codes && !task.gathers && task.kernel_dim > 128 && plan.pieces * 4 <= num_sms)
    plan.value_parts = 2;
  // Long prompts fill the device unsplit. Few rows do not, if one context is longer than the others.
  const int64_t groups = (int64_t{task.shape.max_keys} + plan.split_keys - 1) / plan.split_keys;
  const bool one_group = fp8_decode && task.shape.seen_keys <= plan.split_keys;  // as far as the host knows
  if (groups < 2 || one_group || (tall && plan.pieces >= int64_t{2} * num_sms)) {
    plan.many_splits = !fast && tall && task.shape.seen_keys > plan.split_keys;
    return;
  }
  plan.groups = groups;
  plan.finer_end = fast && !codes && !few;
  plan.needs_room = few;
  const bool half_idle = plan.pieces * 2 <= num_sms;
  if (few && half_idle && plan.split_keys < kSm90SplitKeys) plan.long_split_keys = kSm90SplitKeys;
}

// Returns the CTAs per SM of FP8 decode. One CTA has all shared memory, and so more keys in flight; it is chosen if
// there is at most one work tile for each. In a graph the number of fixed splits is unknown in batch-invariant mode, so
// few requests get one CTA there too. Two would hardly be faster, except for heads of 64.
constexpr int fp8_decode_resident(const Sm90Task& task, const Sm90Plan& plan, int num_sms) {
  const int keys = task.shape.seen_keys;
  if (plan.sharing != Sm90Plan::Sharing::kFixedSplits || keys <= kFp8DecodeShallow * fp8_decode_keys(task.kernel_dim))
    return 2;
  const int64_t groups = (int64_t{keys} + plan.split_keys - 1) / plan.split_keys;
  const bool few_strict = task.shape.determinism == Determinism::kStrict && task.kernel_dim > 64;
  const int64_t pieces = task.shape.tiles16 * task.kv_heads;  // of one split; tiles64 may count a graph's padding
  return pieces * groups <= num_sms || (few_strict && pieces * 4 <= num_sms) ? 1 : 2;
}

// Returns the plan of a call on a device with `num_sms` SMs.
constexpr Sm90Plan plan_sm90(const Sm90Task& task, int num_sms) {
  const AttentionShape& shape = task.shape;
  const bool tall = shape.max_rows > 64, codes = task.pool == PoolElements::kFp8;
  Sm90Plan plan{.rows = tall ? prefill_rows(task.kernel_dim, task.pool, task.gathers) : 64,
                .both_ends = tall && shape.min_rows <= 64};
  plan.pieces = sm90_tiles(shape, plan.rows) * task.kv_heads;
  // With enough rows for the device, or several requests, fixed splits balance better than even ones. No split of a row
  // is small, and CTAs need not begin or end within a head.
  const bool fast = shape.determinism == Determinism::kFast;
  if (codes && shape.max_rows <= kFp8DecodeRows && task.fp8_decode) plan.fp8_decode_resident = 2;
  const bool several = shape.requests > 1 && shape.max_keys > kFewRowsSplitKeys &&
                       (!codes || plan.fp8_decode_resident > 0) && task.room_for_splits;
  const bool whole =
      fast && plan.fp8_decode_resident > 0 && shape.seen_keys <= kFp8DecodeWhole * fp8_decode_keys(task.kernel_dim);
  if (!fast || (!tall && !whole && (plan.pieces >= num_sms || several))) {
    plan.sharing = Sm90Plan::Sharing::kFixedSplits;
    plan_fixed_splits(task, num_sms, plan);
  } else if (!whole && (!tall || plan.pieces < num_sms)) {
    plan.sharing = Sm90Plan::Sharing::kEvenSplits;
    plan.kv_warpgroups = tall || codes || task.gathers ? 1 : 2;
  }
  plan.keys = plan.crowded                   ? kCrowdedKeys
              : plan.fp8_decode_resident > 0 ? fp8_decode_keys(task.kernel_dim)
                                             : tile_keys(task.kernel_dim, plan.kv_warpgroups);
  if (plan.fp8_decode_resident > 0) {
    plan.rows = fp8_decode_rows(shape.max_rows);  // a graph's padding may have more: in several tiles
    plan.fp8_decode_resident = fp8_decode_resident(task, plan, num_sms);
  }
  const bool long_rows = shape.min_rows <= kCutRows && shape.max_keys > kUncutKeys && !codes;
  plan.cuts_long_rows = tall && long_rows && plan.sharing != Sm90Plan::Sharing::kEvenSplits;
  return plan;
}

}  // namespace headrace::cuda
