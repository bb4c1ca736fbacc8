// Sizes and shared-memory layout of FP8 decode.
#pragma once
#include "headrace/ops/cuda/attention/sm90/fmha_kernel_traits.cuh"

namespace headrace::cuda {

// kDim: 128 or 256, a head's FP8 values in shared memory; shorter heads are padded with zeros. kOctets: of rows.
// kResident CTAs share an SM.
template <class T_, int kDim_, int kOctets_, int kResident_>
struct Fp8DecodeShape {
  using T = T_;
  static constexpr int kDim = kDim_, kSteps = kDim / 16, kColumns = kDim / 128, kOctets = kOctets_, kRows = 8 * kOctets;
  // Each warp has a quarter of a tile: half of the warps compute scores, the others accumulate values.
  static constexpr int kParts = kFp8DecodeParts, kWorkers = 2 * 32 * kParts, kThreads = kWorkers + 128,
                       kResident = kResident_;
  static constexpr int kKeys = fp8_decode_keys(kDim), kKeySteps = kKeys / 16,  // of a tile
      kPartKeys = kKeys / kParts, kKeyTiles = kPartKeys / 16;                  // of a score warp
  static constexpr int kValueTiles = kDim / 16 / kParts;       // groups of 16 columns of V per value warp
  static constexpr bool kLastFirst = false, kGathers = false;  // for plain_run()
  // K or V of a tile lies in columns of 128 FP8 values; in each, the warps' parts of the keys follow one another.
  static constexpr int kPartBytes = kPartKeys * 128, kColumnBytes = kKeys * 128, kSideBytes = kColumns * kColumnBytes;
  // Weights of a tile, double-buffered.
  static constexpr int kWeightsBytes = kKeys * kRows * 4;
  using Scratch = RowScratchOf<kDim>;
  static constexpr int kControlBytes = kResident == 1 ? 2048 : 1792;
  static constexpr int kOtherBytes = 2 * kWeightsBytes + static_cast<int>(sizeof(Scratch)) + kControlBytes;
  static constexpr int kMemory = (kResident == 1 ? 227 : 113) * 1024, kMostStages = kResident == 1 ? 6 : 3;
  static constexpr int kValueStages = kMostStages,
                       kKeyStages = smaller(kMostStages, (kMemory - kOtherBytes) / kSideBytes - kValueStages);
  static constexpr int kValuesAt = kKeyStages * kSideBytes, kWeightsAt = kValuesAt + kValueStages * kSideBytes,
                       kScratchAt = kWeightsAt + 2 * kWeightsBytes, kControlAt = kScratchAt + sizeof(Scratch),
                       kSharedBytes = kControlAt + kControlBytes;
  // Registers of a thread. setmaxnreg redistributes among warpgroups what all have when a CTA starts: that of two CTAs
  // per SM, for either kResident.
  static constexpr int kRegisters = 80, kBlocksOfRegisters = 2;
  static constexpr int kScorerRegisters = 96, kAdderRegisters = 104, kProducerRegisters = 40;
  static_assert(kParts == 4 && kScorerRegisters + kAdderRegisters + kProducerRegisters == 3 * kRegisters);
  static_assert(kPartKeys % 16 == 0 && kKeyStages >= 2 && sizeof(Scratch) % 16 == 0);
};

template <class S>
struct Fp8DecodeControl {
  static constexpr int kPieces = 4;
  uint64_t keys_full[S::kKeyStages], keys_empty[S::kKeyStages];
  uint64_t values_full[S::kValueStages], values_empty[S::kValueStages];
  uint64_t weights_ready[2], weights_taken[2];  // double-buffered by tile
  uint64_t work_full[kPieces], work_empty[kPieces];
  Work work[kPieces];
  float to_log2[kPieces][S::kRows];  // of these work tiles: converts scores, as MMAs produce them, to base 2
  float4 largest[2][S::kRows];       // largest scores of each part, double-buffered by tile
  // Rescaling of a row's sums before a tile's weights are added, double-buffered by tile: the factor, and the score
  // that exponents subtract.
  float2 follows[2][S::kRows];
};

// Named barriers of the value warps and of the score warps. 0 is that of the whole CTA.
enum Fp8DecodeMeeting : int { kAdders = 1, kScorers = 2 };

// Waits for tile `tile` at a double-buffered barrier.
__device__ inline void await_tile(uint64_t (&barriers)[2], int tile) {
  barrier_wait(shared_address(&barriers[tile % 2]), static_cast<uint32_t>(tile / 2 % 2));
}

// Moves a value per row: from lanes that have row g = lane / 4 to those that have rows 2 t and 2 t + 1, t = lane % 4.
__device__ inline float2 of_lane_rows(float x) {
  const int lane = threadIdx.x % 32;
  return {__shfl_sync(0xffffffffu, x, lane % 4 * 8), __shfl_sync(0xffffffffu, x, lane % 4 * 8 + 4)};
}

}  // namespace headrace::cuda
