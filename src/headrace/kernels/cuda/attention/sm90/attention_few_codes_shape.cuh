// Sizes of attention of few rows over codes, and what lies where in a block's shared memory.
#pragma once
#include "headrace/kernels/cuda/attention/sm90/attention_sm90_shape.cuh"

namespace headrace::cuda {

// kDim: 128 or 256, of a head's codes in shared memory; what a head lacks of it is zeros. kOctets: of rows.
template <class T_, int kDim_, int kOctets_>
struct FewCodesShape {
  using T = T_;
  static constexpr int kDim = kDim_, kSteps = kDim / 16, kColumns = kDim / 128, kOctets = kOctets_, kRows = 8 * kOctets;
  static constexpr int kWarps = kFewCodesWarps, kThreads = 32 * kWarps, kResident = 2;
  static constexpr int kKeys = few_codes_keys(kDim), kWarpKeys = kKeys / kWarps,
                       kKeyTiles = kWarpKeys / 16;  // of a tile
  static constexpr bool kLastFirst = false;         // of plain_run()
  // A warp's part of a tile: keys and values, each in columns of 128 codes; and the places for it.
  static constexpr int kColumnBytes = kWarpKeys * 128, kSideBytes = kColumns * kColumnBytes, kStages = 3,
                       kRingBytes = kStages * 2 * kSideBytes;
  // Weights are multiplied by so many powers of two: as half floats the least of them would be zeros, and the largest,
  // below 2^kSlack, have room for it.
  static constexpr float kLift = 7;
  // Where a piece ends, the warps' values of eight rows at a time lie behind the rings, where there is room for that,
  // so that keys of the next piece can come; else where the rings were.
  static constexpr int kRowBytes = kDim * 4, kSumsBytes = kWarps * 8 * kRowBytes;
  static constexpr bool kKeepsOn = kDim == 128;
  static constexpr int kSumsAt = kKeepsOn ? kWarps * kRingBytes : 0,
                       kControlAt = larger(kWarps * kRingBytes, kSumsAt + kSumsBytes);
  static_assert(kSideBytes == 4096 && static_cast<int>(sizeof(RowScratch)) <= kSumsBytes);
};

template <class S>
struct FewCodesControl {
  uint64_t full[S::kWarps][S::kStages];
  Work work[2];                 // the piece, and the one behind it
  float2 states[S::kWarps][8];  // of eight rows of the piece that ends: largest score (base 2), sum
};

template <class S>
constexpr int few_codes_shared() {
  constexpr int kBytes = S::kControlAt + static_cast<int>(sizeof(FewCodesControl<S>));
  static_assert(kBytes <= 113 * 1024);
  return kBytes;
}

// Where byte `at` of what a warp leaves of one of eight rows lies: lanes of four rows meet in no bank.
template <class S>
__device__ inline int few_codes_sum_at(int warp, int row, int at) {
  return (warp * 8 + row) * S::kRowBytes + (at ^ (row / 2 & 3) * 32);
}

}  // namespace headrace::cuda
