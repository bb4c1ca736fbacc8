// Sizes of attention of few rows over codes, and what lies where in a block's shared memory.
#pragma once
#include "headrace/ops/cuda/attention/sm90/fmha_kernel_traits.cuh"

namespace headrace::cuda {

// kDim: 128 or 256, of a head's codes in shared memory; what a head lacks of it is zeros. kOctets: of rows. kResident
// blocks share a multiprocessor.
template <class T_, int kDim_, int kOctets_, int kResident_>
struct Fp8DecodeShape {
  using T = T_;
  static constexpr int kDim = kDim_, kSteps = kDim / 16, kColumns = kDim / 128, kOctets = kOctets_, kRows = 8 * kOctets;
  // Of warps, each with a quarter of a tile: half find scores, and half add values up.
  static constexpr int kParts = kFp8DecodeParts, kWorkers = 2 * 32 * kParts, kThreads = kWorkers + 128,
                       kResident = kResident_;
  static constexpr int kKeys = fp8_decode_keys(kDim), kKeySteps = kKeys / 16,  // of a tile
      kPartKeys = kKeys / kParts, kKeyTiles = kPartKeys / 16;                  // that a warp finds scores of
  static constexpr int kValueTiles = kDim / 16 / kParts;  // sixteens of elements that a warp adds up
  static constexpr bool kLastFirst = false;               // of plain_run()
  // Keys or values of a tile lie in columns of 128 codes, each with a warp's part of the keys after another's.
  static constexpr int kPartBytes = kPartKeys * 128, kColumnBytes = kKeys * 128, kSideBytes = kColumns * kColumnBytes;
  // Weights of a tile, for two tiles in turns.
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
  // Registers of a thread: shared out anew among warpgroups, of what all have as a block begins. That is what there is
  // for two blocks to a multiprocessor, for either kResident.
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
  uint64_t weights_told[2], weights_taken[2];  // of two tiles in turns
  uint64_t work_full[kPieces], work_empty[kPieces];
  Work work[kPieces];
  float to_log2[kPieces][S::kRows];  // of these: from scores as they are multiplied to powers of two
  float4 largest[2][S::kRows];       // scores of each part, of two tiles in turns
  // What is to become of a row's sums before a tile's weights are added, of two tiles in turns: what they are
  // multiplied by, and the score that exponents are less.
  float2 follows[2][S::kRows];
};

// Where warps of a block meet, 0 being where all do: who adds values up, and who finds scores.
enum Fp8DecodeMeeting : int { kAdders = 1, kScorers = 2 };

// Waits until a barrier of two, which a tile's number takes by turns, is passed for tile `tile`.
__device__ inline void await_tile(uint64_t (&barriers)[2], int tile) {
  barrier_wait(shared_address(&barriers[tile % 2]), static_cast<uint32_t>(tile / 2 % 2));
}

// What lanes have of row g, a lane's number by four, for rows 2 t and 2 t + 1, of which t is what is left.
__device__ inline float2 of_lane_rows(float x) {
  const int lane = threadIdx.x % 32;
  return {__shfl_sync(0xffffffffu, x, lane % 4 * 8), __shfl_sync(0xffffffffu, x, lane % 4 * 8 + 4)};
}

}  // namespace headrace::cuda
