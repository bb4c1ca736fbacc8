// Sizes of attention of few rows over codes, and what lies where in a block's shared memory.
#pragma once
#include "headrace/kernels/cuda/attention/sm90/attention_sm90_shape.cuh"

namespace headrace::cuda {

// kDim: 128 or 256, of a head's codes in shared memory; what a head lacks of it is zeros. kOctets: of rows.
template <class T_, int kDim_, int kOctets_>
struct FewCodesShape {
  using T = T_;
  static constexpr int kDim = kDim_, kSteps = kDim / 16, kColumns = kDim / 128, kOctets = kOctets_, kRows = 8 * kOctets;
  // Of warps, each with a quarter of a tile: half find scores, and half add values up.
  static constexpr int kParts = kFewCodesParts, kThreads = 2 * 32 * kParts, kResident = 2;
  static constexpr int kKeys = few_codes_keys(kDim), kKeySteps = kKeys / 16,  // of a tile
      kPartKeys = kKeys / kParts, kKeyTiles = kPartKeys / 16;                 // that a warp brings and finds scores of
  static constexpr int kValueTiles = kDim / 16 / kParts;  // sixteens of elements that a warp adds up
  static constexpr bool kLastFirst = false;               // of plain_run()
  // A warp's part of a tile's keys or values, in columns of 128 codes.
  static constexpr int kColumnBytes = kPartKeys * 128, kPartBytes = kColumns * kColumnBytes,
                       kSideBytes = kParts * kPartBytes;
  // Scores of a tile, for two tiles in turns.
  static constexpr int kScoresBytes = kKeys * kRows * 4;
  using Scratch = RowScratchOf<kDim>;
  static constexpr int kControlBytes = 1536;
  static constexpr int kOtherBytes = 2 * kScoresBytes + static_cast<int>(sizeof(Scratch)) + kControlBytes;
  static constexpr int kValueStages = 3,
                       kKeyStages = smaller(3, (113 * 1024 - kOtherBytes) / kSideBytes - kValueStages);
  static constexpr int kValuesAt = kKeyStages * kSideBytes, kScoresAt = kValuesAt + kValueStages * kSideBytes,
                       kScratchAt = kScoresAt + 2 * kScoresBytes, kControlAt = kScratchAt + sizeof(Scratch),
                       kSharedBytes = kControlAt + kControlBytes;
  static_assert(kPartBytes == 4096 && kKeyStages >= 2 && sizeof(Scratch) % 16 == 0);
};

template <class S>
struct FewCodesControl {
  static constexpr int kPieces = 4;
  uint64_t keys_full[S::kParts][S::kKeyStages], values_full[S::kValueStages];
  uint64_t work_full[kPieces], work_empty[kPieces];
  Work work[kPieces];
  float to_log2[kPieces][S::kRows];  // of these: from scores as they are multiplied to powers of two
  float4 largest[2][S::kRows];       // scores of each part, of two tiles in turns
};

// All warps of a block: the scores of a tile are there, and what the tile before lay in is free.
template <class S>
__device__ inline void meet() {
  named_barrier<2, S::kThreads>();
}

}  // namespace headrace::cuda
