// How the Hopper attention kernel shares out the rows and keys of a call.
#pragma once
#include <cstdint>

#include "headrace/ops/cuda/attention/attention_params.h"

namespace headrace::cuda {

// Keys of a tile. Where rows are few and two teams of warps take tiles in turns, small ones keep more copies under way.
constexpr int tile_keys(int dim, int teams) {
  if (teams == 2) return dim > 128 ? 32 : dim > 64 ? 64 : 128;
  return dim > 128 ? 64 : 128;
}

// The same where two blocks share a multiprocessor: short pieces, whose beginnings and ends then run beside another's
// products.
constexpr int kCrowdedKeys = 64;
constexpr int kCrowdedPieces = 4;  // at least, for each multiprocessor

// Keys of the groups of strict mode: sums are cut at every multiple of it.
constexpr int kSm90GroupKeys = 4096;
// Of codes: groups of half as many keys let one request fill the device, and a batch's blocks end more together.
constexpr int kCodesGroupKeys = 2048;

// Beside prompts, requests of no more rows are cut at these groups where they see more keys than so many.
constexpr int kCutRows = 16, kUncutKeys = 16384;

// Few rows over a pool of FP8 (fp8_decode.cuh): the most of a request; the parts of a tile's keys, each a
// warp's. Rows over so many tiles of keys are whole in fast mode: several blocks and a kernel that joins their parts
// would take longer. Rows over up to so many do not gain by more tiles on their way than two blocks have.
constexpr int kFp8DecodeRows = 16, kFp8DecodeParts = 4, kFp8DecodeWhole = 4, kFp8DecodeShallow = 6;
constexpr int fp8_decode_rows(int max_rows) { return max_rows <= 8 ? 8 : kFp8DecodeRows; }  // of a tile
constexpr int fp8_decode_keys(int dim) { return dim > 128 ? 64 : 128; }

// Rows of a block where there are many. Small heads leave registers for a third warpgroup, whose products fill the time
// that the others spend on exponentials; one that unpacks codes takes them instead.
constexpr int tall_rows(int dim, PoolElements pool) { return dim <= 64 && pool == PoolElements::kFloats ? 192 : 128; }

// Groups of few rows of several requests that do not fill the device, in fast mode, where no row may have more than so
// many: short ones balance whatever the requests' lengths are, and each row's sums are added up once more. Groups of
// kSm90GroupKeys are faster in a model where the device finds that they take most of its blocks, one each.
constexpr int kFewRowsGroupKeys = 1024, kMostFewRowsGroups = 32;

constexpr int few_rows_group_keys(int max_keys) {
  int keys = kFewRowsGroupKeys;
  while (max_keys > int64_t{keys} * kMostFewRowsGroups) keys *= 2;
  return keys;
}

struct Sm90Task {
  AttentionShape shape;
  PoolElements pool = PoolElements::kFloats;
  int kernel_dim = 128;  // 64, 128 or 256
  int kv_heads = 1;
  bool capped = false;         // scores have a soft cap
  bool room_for_parts = true;  // false: there is no memory for what groups of few rows leave
};

struct Sm90Plan {
  // kRows: pieces are whole tiles of rows; kGroups: or groups of their keys; kShares: each block has equally many tiles
  // of keys, wherever rows begin and end.
  enum class Sharing : uint8_t { kRows, kGroups, kShares };
  Sharing sharing = Sharing::kRows;
  int rows = 64, keys = 128;    // of a tile
  int64_t pieces = 0;           // tiles of rows times kv heads
  int teams = 1;                // warpgroups that take the tiles of keys in turns
  bool both_ends = false;       // long contexts run beside long prompts
  bool crowded = false;         // two blocks to a multiprocessor
  int fp8_decode_resident = 0;  // the kernel for that, so many blocks to a multiprocessor; 0: another
  int value_parts = 1;          // of the values' columns, each a block's
  int group_keys = 0;           // kGroups: sums are cut at every multiple of it
  int64_t groups = 1;       // that are pieces of their own where there is memory for what they leave; 1: rows are whole
  bool needs_room = false;  // without that memory another plan is better
  int long_group_keys = 0;  // of groups where there is a block for each of them; 0: group_keys whatever there is
  bool finer_end = false;   // groups of what is taken last are shorter, likewise
  // Strict mode: whole rows may well hold several groups. A kernel for that is faster there, and either is right.
  bool many_groups = false;
  bool cuts_long_rows = false;  // of few rows beside prompts, where rows are whole
};

constexpr int64_t sm90_tiles(const AttentionShape& shape, int rows) {
  return rows == 64 ? shape.tiles64 : rows == 128 ? shape.tiles128 : shape.tiles192;
}

// Sums are cut at groups of keys, which are pieces of their own where rows alone would not fill the device to the end.
constexpr void plan_sm90_groups(const Sm90Task& task, int num_sms, Sm90Plan& plan) {
  const bool fast = task.shape.determinism == Determinism::kFast, tall = plan.rows > 64;
  const bool codes = task.pool == PoolElements::kCodes;
  // Strict mode keeps one size of tiles.
  plan.crowded = fast && task.kernel_dim == 128 && !codes && plan.pieces >= int64_t{kCrowdedPieces} * num_sms;
  const bool few = fast && plan.pieces < num_sms;
  const bool few_codes = plan.fp8_decode_resident > 0, short_groups = codes && (!fast || few_codes);
  plan.group_keys = few ? few_rows_group_keys(task.shape.max_keys) : short_groups ? kCodesGroupKeys : kSm90GroupKeys;
  // Groups of few rows leave multiprocessors idle. Two blocks with half of the values' columns each read the keys
  // twice, the second time from the cache, and change no bit. It pays where a piece waits for memory and not for its
  // own products: in long heads.
  if (!fast && !tall && !codes && task.kernel_dim > 128 && plan.pieces * 4 <= num_sms) plan.value_parts = 2;
  // Long prompts fill the device as they are. Few rows do not when one context is longer than the others.
  const int64_t groups = (int64_t{task.shape.max_keys} + plan.group_keys - 1) / plan.group_keys;
  const bool one_group = few_codes && task.shape.seen_keys <= plan.group_keys;  // as far as the host knows
  if (groups < 2 || one_group || (tall && plan.pieces >= int64_t{2} * num_sms)) {
    plan.many_groups = !fast && tall && task.shape.seen_keys > plan.group_keys;
    return;
  }
  plan.groups = groups;
  plan.finer_end = fast && !codes && !few;
  plan.needs_room = few;
  const bool half_idle = plan.pieces * 2 <= num_sms;
  if (few && half_idle && plan.group_keys < kSm90GroupKeys) plan.long_group_keys = kSm90GroupKeys;
}

// Blocks of the kernel for few rows over codes to a multiprocessor: one with all of its memory, and so more keys on
// their way, where there is a piece for each at most. A graph does not know how many groups of strict mode's there will
// be: of few requests, then, too, where two blocks would hardly be faster (for heads of 64 they would).
constexpr int fp8_decode_resident(const Sm90Task& task, const Sm90Plan& plan, int num_sms) {
  const int keys = task.shape.seen_keys;
  if (plan.sharing != Sm90Plan::Sharing::kGroups || keys <= kFp8DecodeShallow * fp8_decode_keys(task.kernel_dim))
    return 2;
  const int64_t groups = (int64_t{keys} + plan.group_keys - 1) / plan.group_keys;
  const bool few_strict = task.shape.determinism == Determinism::kStrict && task.kernel_dim > 64;
  const int64_t pieces = task.shape.tiles16 * task.kv_heads;  // of one group; tiles64 may count what a graph pads
  return pieces * groups <= num_sms || (few_strict && pieces * 4 <= num_sms) ? 1 : 2;
}

constexpr Sm90Plan plan_sm90(const Sm90Task& task, int num_sms) {
  const AttentionShape& shape = task.shape;
  const bool tall = shape.max_rows > 64, codes = task.pool == PoolElements::kCodes;
  Sm90Plan plan{.rows = tall ? tall_rows(task.kernel_dim, task.pool) : 64, .both_ends = tall && shape.min_rows <= 64};
  plan.pieces = sm90_tiles(shape, plan.rows) * task.kv_heads;
  // Where there are enough rows for the device, or several requests, groups of keys balance better than equal shares:
  // no row's parts are small, and blocks need not begin or end within a head.
  const bool fast = shape.determinism == Determinism::kFast;
  if (codes && shape.max_rows <= kFp8DecodeRows && !task.capped) plan.fp8_decode_resident = 2;
  const bool several = shape.requests > 1 && shape.max_keys > kFewRowsGroupKeys &&
                       (!codes || plan.fp8_decode_resident > 0) && task.room_for_parts;
  const bool whole =
      fast && plan.fp8_decode_resident > 0 && shape.seen_keys <= kFp8DecodeWhole * fp8_decode_keys(task.kernel_dim);
  if (!fast || (!tall && !whole && (plan.pieces >= num_sms || several))) {
    plan.sharing = Sm90Plan::Sharing::kGroups;
    plan_sm90_groups(task, num_sms, plan);
  } else if (!whole && (!tall || plan.pieces < num_sms)) {
    plan.sharing = Sm90Plan::Sharing::kShares;
    plan.teams = tall || codes ? 1 : 2;
  }
  plan.keys = plan.crowded                   ? kCrowdedKeys
              : plan.fp8_decode_resident > 0 ? fp8_decode_keys(task.kernel_dim)
                                             : tile_keys(task.kernel_dim, plan.teams);
  if (plan.fp8_decode_resident > 0) {
    plan.rows = fp8_decode_rows(shape.max_rows);  // a graph's padding may have more: in several tiles
    plan.fp8_decode_resident = fp8_decode_resident(task, plan, num_sms);
  }
  const bool long_rows = shape.min_rows <= kCutRows && shape.max_keys > kUncutKeys && !codes;
  plan.cuts_long_rows = tall && long_rows && plan.sharing != Sm90Plan::Sharing::kShares;
  return plan;
}

}  // namespace headrace::cuda
