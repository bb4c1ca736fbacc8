// Tile sizes and shared-memory layout of the Hopper attention kernels.
#pragma once
#include <type_traits>

#include "headrace/ops/cuda/arch/mma_sm80.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/attention/simt/attention_row.cuh"
#include "headrace/ops/cuda/attention/sm90/tile_scheduler.cuh"

namespace headrace::cuda {

// FP8 pool: weights are multiplied by 2^kFp8Lift. As half floats the smallest would otherwise be zeros; the largest,
// below 2^kSlack, have room for it.
constexpr int kFp8Lift = 7;

constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }

// Order of a work tile's KV tiles. Causal rows see only a part of their last ones. Processed first, such a tile is
// masked where nothing overlaps anyway, and all others follow in a loop without a branch. Batch-invariant sums begin
// with the first tile.
enum class KeyOrder : uint8_t { kFirstFirst, kLastFirst };

// kRowGroups groups of 64 rows, each processed by kKVWarpgroups consumer warpgroups that alternate over its KV tiles. A
// CTA computes one of kValueParts parts of V's columns. kResident CTAs share an SM.
template <class T_, int kDim_, int kRowGroups_, int kKVWarpgroups_, int kValueParts_ = 1,
          PoolElements kPool_ = PoolElements::kFloats, int kResident_ = 1, KeyOrder kOrder_ = KeyOrder::kFirstFirst,
          bool kManyGroups_ = false, bool kGathers_ = false>
struct Sm90Shape {
  using T = T_;
  static constexpr bool kFp8 = kPool_ == PoolElements::kFp8;
  // Element type of the MMAs. FP8 converts to half floats by one instruction per pair, to bfloat16 by four. Queries
  // become half floats too, each row times a power of two (queries_as_halves.cuh).
  using M = std::conditional_t<kFp8, __half, T>;
  // K and V are gathered row by row (fmha_gather.cuh), not loaded by TMA.
  static constexpr bool kGathers = kGathers_;
  static constexpr bool kLastFirst = kOrder_ == KeyOrder::kLastFirst;
  // Late rescaling: the running maximum follows only after a tile's weights are computed.
  static constexpr bool kLags = kLastFirst && std::is_same_v<T, __nv_bfloat16>;
  // Late rescaling allows larger weights.
  static constexpr int kLift = kFp8 && !kLags ? kFp8Lift : 0;
  // Weights are computed before it is known whether the maximum changes, and again if it did.
  static constexpr bool kGuesses = !kLastFirst && kRowGroups_ > 1;
  // A work tile may hold many fixed KV splits. Both settings are correct for any number.
  static constexpr bool kManyGroups = kManyGroups_;
  static constexpr int kResident = kResident_, kMemory = (kResident == 1 ? 227 : 113) * 1024;
  static constexpr int kDim = kDim_, kRowGroups = kRowGroups_, kKVWarpgroups = kKVWarpgroups_,
                       kWarpgroups = kRowGroups * kKVWarpgroups;
  static constexpr int kValueParts = kValueParts_, kValueDim = kDim / kValueParts;
  static constexpr int kKeys = kResident == 1 ? tile_keys(kDim, kKVWarpgroups) : kCrowdedKeys, kColumns = kDim / 64,
                       kChunks = kDim / 8;
  static constexpr int kRows = 64 * kRowGroups, kThreads = 128 * (kWarpgroups + 1 + kFp8);
  static constexpr int kColumnBytes = kKeys * 128, kTileBytes = kColumns * kColumnBytes;
  static constexpr int kValueColumns = kValueDim / 64, kStageBytes = kTileBytes + kValueColumns * kColumnBytes;
  static constexpr int kQBytes = 64 * kDim * 2;
  // NaN rows are recomputed in memory of their own or, with kManyGroups, in the stash's.
  static constexpr int kScratchBytes = kManyGroups ? 0 : (static_cast<int>(sizeof(RowScratch)) + 1023) / 1024 * 1024;
  static constexpr int kControlBytes = (3072 + 16 * kRows + 1023) / 1024 * 1024;
  static constexpr int kOtherBytes = 1024 + kControlBytes + kScratchBytes + kWarpgroups * kQBytes;  // 1024: alignment
  // Small heads leave room for more stages than prompts need in batch-invariant mode, whose stash takes that room.
  static constexpr int kMostStages = kGuesses ? 4 : 6;
  static constexpr int kStages = kFp8 ? 2 : smaller(kMostStages, (kMemory - kOtherBytes) / kStageBytes);
  // K is free before the weights are computed, and can be dequantised meanwhile: where memory is short, one stage
  // suffices. It also does with many splits, whose stash gets the memory: that gains more than a second stage of K or
  // of FP8 tiles.
  static constexpr int kKeyStages = kFp8 && (kManyGroups || kRowGroups * kDim > 256) ? 1 : kStages;
  static constexpr int kValueStep = kKeyStages == kStages ? kStageBytes : kStageBytes - kTileBytes;
  static constexpr int kTilesBytes = kStages * kStageBytes - (kStages - kKeyStages) * kTileBytes;
  // FP8 bytes of one side of a tile, as in the pool, and the number of stages for them.
  static constexpr int kFp8Bytes = kKeys * kDim;
  static constexpr int kMostCodeStages = kManyGroups ? 1 : 4;
  static constexpr int kCodeStages =
      kFp8 ? smaller(kMostCodeStages, (227 * 1024 - kOtherBytes - kTilesBytes) / (2 * kFp8Bytes)) : 0;
  static constexpr int kFeedStages = kFp8 ? kCodeStages : kStages;  // stages that TMA fills
  // Batch-invariant mode: the stash of the previous fixed splits takes the shared memory that is left, for as many
  // columns as fit.
  static constexpr int kStashUnit = 4 * 4 * 128 * kWarpgroups;  // bytes of eight columns, or of largest scores and sums
  static constexpr int kStashUnits =
      kRowGroups == 1 ? 0
                      : smaller(kValueDim / 8 + 1,
                                (227 * 1024 - kOtherBytes - kTilesBytes - kCodeStages * 2 * kFp8Bytes) / kStashUnit);
  // Most of the stash does not fit there.
  static constexpr bool kStashesFar = kStashUnits * 2 < kValueDim / 8 + 1;
  static constexpr int kSharedBytes =
      kOtherBytes + kTilesBytes + kCodeStages * 2 * kFp8Bytes + kStashUnits * kStashUnit;
  static constexpr int kReleases = kFp8 ? 128 : 4;  // a warpgroup's arrivals at an `empty` barrier
  // Registers of a thread, of 64 Ki in all.
  static constexpr bool kSharesRegisters = kWarpgroups > 1 || kFp8 || kResident > 1;
  static constexpr int kGroups = kWarpgroups + kFp8;
  static constexpr int kProducerRegisters = kGroups == 3 ? 32
                                            : kGathers   ? 72
                                                         : 56,
                       kConsumerRegisters = kGroups == 3    ? (kFp8 ? 208 : 160)
                                            : kResident > 1 ? 200
                                            : kGathers      ? 216
                                                            : 224,
                       kDequantizerRegisters = kGroups == 3 ? 64 : 104;
  // A CTA has the registers that it was launched with: a warpgroup that asks for more waits for ever.
  static_assert(!kSharesRegisters || kFp8 || kResident > 1 ||
                kProducerRegisters + kWarpgroups * kConsumerRegisters <= 64 * 1024 / kThreads / 8 * 8 * kThreads / 128);
  // The compiler allows no instruction more registers than each thread would have without setmaxnreg; larger PV MMAs
  // are split.
  static constexpr int kValueProducts = kValueDim / 2 < 64 * 1024 / kThreads ? 1 : 2;
  static_assert(kStages >= 2 && kWarpgroups <= 3 && kValueDim % 64 == 0);
  static_assert(kValueParts == 1 || kWarpgroups == 1);
  static_assert(!kManyGroups ||
                (kGuesses && kStashUnits * kStashUnit / kWarpgroups >= static_cast<int>(sizeof(RowScratch))));
  static_assert(kResident == 1 || (kWarpgroups == 1 && !kFp8));
  static_assert(!kGathers || (kWarpgroups <= 2 && kKVWarpgroups == 1 && kValueParts == 1 && !kFp8));
  static_assert(!kFp8 ||
                (kKVWarpgroups == 1 && kRowGroups <= 2 && kValueParts == 1 && kStages == 2 && kCodeStages >= 1));

  // Returns the stage of a tile's keys, given the stage `place` of its values.
  __device__ static PipelineState<kStages> key_place(const PipelineState<kStages>& place) {
    if constexpr (kKeyStages == kStages) return place;
    // two stages of values: every other tile completes a phase of the one stage of keys
    return {0, static_cast<uint32_t>(place.stage)};
  }
};

// Mask of a work tile, if one range of positions per row describes it: no hole, no new keys that a window hides, no new
// keys apart from the cached ones.
template <class S>
struct Ranges {
  int2 row[S::kRows];  // [first, end)
  // Values of a tile within these positions need no clearing: every key of it belongs to the request, or is loaded as
  // zeros (kGathers). Keys that some rows do not see are hidden by their weights alone. Empty if there are none.
  int stored_from, stored_to;
  // true: `row` describes completely what the rows see.
  bool say_all;
};

template <class S>
struct Control {
  // Each consumer warpgroup has full barriers of its own. It may be two rounds ahead of what the other has seen, and a
  // barrier distinguishes only two rounds.
  uint64_t k_full[S::kKVWarpgroups][S::kStages], v_full[S::kKVWarpgroups][S::kStages], k_empty[S::kStages],
      v_empty[S::kStages];
  uint64_t q_full[S::kWarpgroups], q_empty[S::kWarpgroups];
  uint64_t work_full[2], work_empty[2];
  Work work[2];
  Ranges<S> ranges[2];                     // of these work tiles
  float exchange[4][128];                  // the second warpgroup's largest scores and sums
  uint64_t exchange_full, exchange_empty;  // for these and half of its values; each passes twice per work tile
  int scratch_taken;
  // one more: a size of zero would be an error
  uint64_t k_codes_full[S::kCodeStages + 1], v_codes_full[S::kCodeStages + 1];
  uint64_t k_codes_empty[S::kCodeStages + 1], v_codes_empty[S::kCodeStages + 1];
};

template <class S>
struct SharedLayout {
  char* base;

  __device__ explicit SharedLayout(char* memory) {
    const uint32_t at = shared_address(memory);
    base = memory + ((1024 - (at & 1023)) & 1023);
  }
  __device__ char* q(int consumer) const { return base + consumer * S::kQBytes; }
  __device__ uint32_t k(int stage) const {
    return shared_address(base) + S::kWarpgroups * S::kQBytes + stage * S::kStageBytes;
  }
  __device__ uint32_t v(int stage) const { return k(0) + S::kTileBytes + stage * S::kValueStep; }
  __device__ Control<S>& control() const {
    static_assert(sizeof(Control<S>) <= S::kControlBytes);
    return *reinterpret_cast<Control<S>*>(base + S::kWarpgroups * S::kQBytes + S::kTilesBytes);
  }
  __device__ RowScratch& scratch(int warpgroup) const {
    return *reinterpret_cast<RowScratch*>(S::kManyGroups ? stash() + warpgroup * S::kStashUnits * 128 * 16
                                                         : reinterpret_cast<char*>(&control()) + S::kControlBytes);
  }
  __device__ char* k_fp8(int stage) const {
    return reinterpret_cast<char*>(&control()) + S::kControlBytes + S::kScratchBytes + stage * 2 * S::kFp8Bytes;
  }
  __device__ char* v_fp8(int stage) const { return k_fp8(stage) + S::kFp8Bytes; }
  __device__ char* stash() const { return k_fp8(S::kCodeStages); }
};

// Returns the entry in the list of KV tiles that a work tile processes in place of entry `i` (of [begin, end)).
template <class S>
__device__ int list_entry(const Work& work, int i) {
  return S::kLastFirst ? work.begin + work.end - 1 - i : i;
}

// Returns the first V column of a work tile.
template <class S>
__device__ int first_column(const Work& work) {
  return S::kValueParts == 1 ? 0 : work.value_column;
}

// Broadcasts lane 0's value. The compiler then knows that the value is uniform, and keeps it where WGMMA takes
// descriptors from.
__device__ inline uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

// Returns the byte offset of 16-byte chunk `chunk` of a row of a tile of `rows` rows, stored as swizzled columns of 64
// elements.
__device__ inline uint32_t column_swizzled(int rows, int row, int chunk) {
  return static_cast<uint32_t>((chunk / 8 * rows + row) * 128 + ((chunk ^ row) & 7) * 16);
}

// Rows are packed as (token, head of the GQA group). A multiplication finds the token, because a division costs as much
// as loading it.
struct PackedRows {
  int group;
  uint32_t inverse;  // 2^32 / group, rounded up: exact while row * group < 2^32

  __device__ explicit PackedRows(int of)
      : group(of), inverse(of == 1 ? 0 : UINT32_MAX / static_cast<uint32_t>(of) + 1) {}
  __device__ int token(int row) const { return inverse == 0 ? row : static_cast<int>(__umulhi(row, inverse)); }
  __device__ int head(int row) const { return row - token(row) * group; }
};

}  // namespace headrace::cuda
