// Sizes of the Hopper attention kernels' tiles, and what lies where in a block's shared memory.
#pragma once
#include <type_traits>

#include "headrace/ops/cuda/arch/mma_sm80.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/attention/simt/attention_row.cuh"
#include "headrace/ops/cuda/attention/sm90/tile_scheduler.cuh"

namespace headrace::cuda {

// Over codes weights are multiplied by so many powers of two: as half floats the least of them would be zeros, and the
// largest, below 2^kSlack, have room for it.
constexpr int kCodesLift = 7;

constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }

// Which of a piece's tiles of keys comes first. Causal rows see only a part of their last ones: as the first, such a
// tile is masked where nothing runs beside it anyway, and all others follow in the loop without a branch. Strict mode's
// sums begin with the first.
enum class KeyOrder : uint8_t { kFirstFirst, kLastFirst };

// kRowGroups groups of 64 rows, each the work of kTeams warpgroups that take its tiles of keys in turns. A block adds
// up one of kValueParts parts of the values' columns. kResident blocks share a multiprocessor.
template <class T_, int kDim_, int kRowGroups_, int kTeams_, int kValueParts_ = 1,
          PoolElements kPool_ = PoolElements::kFloats, int kResident_ = 1, KeyOrder kOrder_ = KeyOrder::kFirstFirst,
          bool kManyGroups_ = false>
struct Sm90Shape {
  using T = T_;
  static constexpr bool kCodes = kPool_ == PoolElements::kCodes;
  // What products are of. Codes are half floats by one instruction for two, and by four of bfloat16; queries become
  // half floats, too, a row times a power of two (queries_as_halves.cuh).
  using M = std::conditional_t<kCodes, __half, T>;
  static constexpr bool kLastFirst = kOrder_ == KeyOrder::kLastFirst;
  // Exponents follow a row's largest score only after a tile's weights are found.
  static constexpr bool kLags = kLastFirst && std::is_same_v<T, __nv_bfloat16>;
  // Weights that lag may be larger.
  static constexpr int kLift = kCodes && !kLags ? kCodesLift : 0;
  // Weights are found before it is known whether exponents have to follow, and again where they had to.
  static constexpr bool kGuesses = !kLastFirst && kRowGroups_ > 1;
  // A piece may well hold many of strict mode's groups. Both are right for any number.
  static constexpr bool kManyGroups = kManyGroups_;
  static constexpr int kResident = kResident_, kMemory = (kResident == 1 ? 227 : 113) * 1024;
  static constexpr int kDim = kDim_, kRowGroups = kRowGroups_, kTeams = kTeams_, kWarpgroups = kRowGroups * kTeams;
  static constexpr int kValueParts = kValueParts_, kValueDim = kDim / kValueParts;
  static constexpr int kKeys = kResident == 1 ? tile_keys(kDim, kTeams) : kCrowdedKeys, kColumns = kDim / 64,
                       kChunks = kDim / 8;
  static constexpr int kRows = 64 * kRowGroups, kThreads = 128 * (kWarpgroups + 1 + kCodes);
  static constexpr int kColumnBytes = kKeys * 128, kTileBytes = kColumns * kColumnBytes;
  static constexpr int kValueColumns = kValueDim / 64, kStageBytes = kTileBytes + kValueColumns * kColumnBytes;
  static constexpr int kQBytes = 64 * kDim * 2;
  // Rows are done again, where they are, in memory of their own, or where the sums of the groups before were.
  static constexpr int kScratchBytes = kManyGroups ? 0 : (static_cast<int>(sizeof(RowScratch)) + 1023) / 1024 * 1024;
  static constexpr int kControlBytes = (3072 + 16 * kRows + 1023) / 1024 * 1024;
  static constexpr int kOtherBytes = 1024 + kControlBytes + kScratchBytes + kWarpgroups * kQBytes;  // 1024: to align
  // Small heads leave room for more stages than strict mode's prompts need, whose sums of the groups before take it.
  static constexpr int kMostStages = kGuesses ? 4 : 6;
  static constexpr int kStages = kCodes ? 2 : smaller(kMostStages, (kMemory - kOtherBytes) / kStageBytes);
  // Keys are free before the weights are found, and can be unpacked meanwhile: where memory is short, one stage serves.
  // So it does where there are many groups, whose sums are near in what that leaves: it is worth more to them than a
  // second stage of keys, or of codes, is to the products.
  static constexpr int kKeyStages = kCodes && (kManyGroups || kRowGroups * kDim > 256) ? 1 : kStages;
  static constexpr int kValueStep = kKeyStages == kStages ? kStageBytes : kStageBytes - kTileBytes;
  static constexpr int kTilesBytes = kStages * kStageBytes - (kStages - kKeyStages) * kTileBytes;
  // Codes of one side of a tile, as they lie in the pool, and how many tiles of them there is room for.
  static constexpr int kCodeBytes = kKeys * kDim;
  static constexpr int kMostCodeStages = kManyGroups ? 1 : 4;
  static constexpr int kCodeStages =
      kCodes ? smaller(kMostCodeStages, (227 * 1024 - kOtherBytes - kTilesBytes) / (2 * kCodeBytes)) : 0;
  static constexpr int kFeedStages = kCodes ? kCodeStages : kStages;  // of what the copy engine brings
  // Strict mode's sums of the groups before: in the shared memory that is left, of as many columns as it holds.
  static constexpr int kStashUnit = 4 * 4 * 128 * kWarpgroups;  // bytes of eight columns, or of largest scores and sums
  static constexpr int kStashUnits =
      kRowGroups == 1 ? 0
                      : smaller(kValueDim / 8 + 1,
                                (227 * 1024 - kOtherBytes - kTilesBytes - kCodeStages * 2 * kCodeBytes) / kStashUnit);
  // Most of them do not fit there.
  static constexpr bool kStashesFar = kStashUnits * 2 < kValueDim / 8 + 1;
  static constexpr int kSharedBytes =
      kOtherBytes + kTilesBytes + kCodeStages * 2 * kCodeBytes + kStashUnits * kStashUnit;
  static constexpr int kReleases = kCodes ? 128 : 4;  // of a warpgroup, at a barrier that says that it is done
  // Registers of a thread: of 64 Ki in all.
  static constexpr bool kSharesRegisters = kWarpgroups > 1 || kCodes || kResident > 1;
  static constexpr int kGroups = kWarpgroups + kCodes;
  static constexpr int kProducerRegisters = kGroups == 3 ? 32 : 56,
                       kConsumerRegisters = kGroups == 3    ? (kCodes ? 208 : 160)
                                            : kResident > 1 ? 200
                                                            : 224,
                       kDequantizerRegisters = kGroups == 3 ? 64 : 104;
  // The compiler wants no instruction to use more registers than each thread of a block would have without the above.
  static constexpr int kValueProducts = kValueDim / 2 < 64 * 1024 / kThreads ? 1 : 2;
  static_assert(kStages >= 2 && kWarpgroups <= 3 && kValueDim % 64 == 0);
  static_assert(kValueParts == 1 || kWarpgroups == 1);
  static_assert(!kManyGroups ||
                (kGuesses && kStashUnits * kStashUnit / kWarpgroups >= static_cast<int>(sizeof(RowScratch))));
  static_assert(kResident == 1 || (kWarpgroups == 1 && !kCodes));
  static_assert(!kCodes || (kTeams == 1 && kRowGroups <= 2 && kValueParts == 1 && kStages == 2 && kCodeStages >= 1));

  // Where the keys of a tile are whose values are at `place`.
  __device__ static PipelineState<kStages> key_place(const PipelineState<kStages>& place) {
    if constexpr (kKeyStages == kStages) return place;
    return {0, static_cast<uint32_t>(place.stage)};  // two stages: every other tile completes a phase of one
  }
};

// What the rows of a piece see, where one range of positions says it: neither a hole, nor new keys that a window hides,
// nor new keys apart from the cached ones.
template <class S>
struct Ranges {
  int2 row[S::kRows];  // [first, end)
  // A tile within these positions is in the pool and every key of it belongs to the request: what some rows do not see
  // of it is brought all the same, and hidden by their weights alone. Empty where that is not so.
  int stored_from, stored_to;
  bool say_all;
};

template <class S>
struct Control {
  // A team has full barriers of its own: it may be two rounds ahead of what the other has seen, and a barrier tells two
  // rounds apart, no more.
  uint64_t k_full[S::kTeams][S::kStages], v_full[S::kTeams][S::kStages], k_empty[S::kStages], v_empty[S::kStages];
  uint64_t q_full[S::kWarpgroups], q_empty[S::kWarpgroups];
  uint64_t work_full[2], work_empty[2];
  Work work[2];
  Ranges<S> ranges[2];                     // of these
  float exchange[4][128];                  // of the second team: largest scores and sums
  uint64_t exchange_full, exchange_empty;  // of these and half of its values; each is passed twice a piece
  int scratch_taken;
  uint64_t k_codes_full[S::kCodeStages + 1], v_codes_full[S::kCodeStages + 1];  // one more: none would be an error
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
  __device__ char* k_codes(int stage) const {
    return reinterpret_cast<char*>(&control()) + S::kControlBytes + S::kScratchBytes + stage * 2 * S::kCodeBytes;
  }
  __device__ char* v_codes(int stage) const { return k_codes(stage) + S::kCodeBytes; }
  __device__ char* stash() const { return k_codes(S::kCodeStages); }
};

// The place in the list of tiles of keys of the one that a piece takes in place of tile `i`, counted from work.begin.
template <class S>
__device__ int list_entry(const Work& work, int i) {
  return S::kLastFirst ? work.begin + work.end - 1 - i : i;
}

// The first of the values' columns that a piece adds up.
template <class S>
__device__ int first_column(const Work& work) {
  return S::kValueParts == 1 ? 0 : work.value_column;
}

// A number that all lanes of a warp have: the compiler then knows it, and keeps it where products take descriptors
// from.
__device__ inline uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

// 16-byte chunk `chunk` of a row of a tile of `rows` rows, stored as columns of 64 elements.
__device__ inline uint32_t column_swizzled(int rows, int row, int chunk) {
  return static_cast<uint32_t>((chunk / 8 * rows + row) * 128 + ((chunk ^ row) & 7) * 16);
}

// Rows are packed as (token, head of the group). A multiplication finds the token: a division costs as much as loading
// it.
struct PackedRows {
  int group;
  uint32_t inverse;  // of the group, times 2^32: exact while a row times the group is less than that

  __device__ explicit PackedRows(int of)
      : group(of), inverse(of == 1 ? 0 : UINT32_MAX / static_cast<uint32_t>(of) + 1) {}
  __device__ int token(int row) const { return inverse == 0 ? row : static_cast<int>(__umulhi(row, inverse)); }
  __device__ int head(int row) const { return row - token(row) * group; }
};

}  // namespace headrace::cuda
