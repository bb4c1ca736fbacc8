// Sizes of what a block of a streaming strict cluster works with, and what lies where in its shared memory.
#pragma once
#include <type_traits>

#include "headrace/ops/cuda/arch/cluster.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/strict_cluster_keys.cuh"

namespace headrace::cuda {

// A stage of keys is a tile; one of values the block's columns of a round, which are as many bytes. Weights of kDepth
// rounds find room. Rows lie in groups of eight, of which two are one product of scores.
template <class T_, int kRows_, int kDim_, int kBlocks_, int kKeyStages_, int kValueStages_, int kDepth_>
struct ClusterDecodeTraits {
  using T = T_;
  static constexpr bool kCodes = false;
  static constexpr int kDim = kDim_, kBlocks = kBlocks_, kKeys = tile_keys(kDim, 1), kChunks = kDim / 8;
  static constexpr int kKeyStages = kKeyStages_, kValueStages = kValueStages_, kDepth = kDepth_;
  static constexpr int kRows = kRows_, kRowGroups = kRows / 8;
  static constexpr int kGroupTiles = kSm90GroupKeys / kKeys;
  static constexpr int kSteps = kKeys / 16, kOctets = kKeys / 8;            // of a tile
  static constexpr int kColumns = kDim / kBlocks, kChains = kColumns / 16;  // sixteen columns are one product
  static constexpr int kScoreWarps = kSteps, kMostValueWarps = kScoreWarps == 8 ? 2 : 4;
  static constexpr int kValueWarps = kChains < kMostValueWarps ? kChains : kMostValueWarps,
                       kWarpChains = kChains / kValueWarps;
  static constexpr int kFirstValueWarp = kScoreWarps, kKeyLoader = kFirstValueWarp + kValueWarps,
                       kValueLoader = kKeyLoader + 1, kFollower = kKeyLoader + 2,  // one for each eight rows
      kThreads = (kFollower + kRowGroups) * 32;
  // Rounds of what is told about largest scores, and about sums, which are added up two rounds later.
  static constexpr int kRing = 4, kSumsRing = 8;
  static constexpr bool kCopiesWeights = kRowGroups > 1;  // to other blocks, by the copy engine
  static constexpr int kKeyBytes = kKeys * kDim * 2, kValueBytes = kBlocks * kKeys * kColumns * 2;
  static constexpr int kValuesAt = kKeyStages * kKeyBytes, kWeightsAt = kValuesAt + kValueStages * kValueBytes;
  // Products load their operands so many pairs of sixteen keys ahead. With room behind a round's last weights, where
  // nobody writes, they may do so there as well: faster by what was measured for this shape, and slower for others.
  static constexpr int kPairsAhead = 2;
  static constexpr bool kRoomBehind = kDim == 128 && kBlocks == 2;
  static constexpr int kWeightsBytes = (kBlocks * kSteps + (kRoomBehind ? 2 * kPairsAhead : 0)) * kRowGroups * 256;
  static constexpr int kLargestAt = kWeightsAt + kDepth * kWeightsBytes,
                       kLargestBytes = kBlocks * kRows * kScoreWarps * 4;
  static constexpr int kAddedAt = kLargestAt + kRing * kLargestBytes, kAddedBytes = kBlocks * kRowGroups * 128;
  static constexpr int kKeepAt = kAddedAt + kSumsRing * kAddedBytes, kKeepBytes = kBlocks * kRows * 4;
  static constexpr int kBaseAt = kKeepAt + kRing * kKeepBytes, kEndedAt = kBaseAt + kRing * kRows * 4,
                       kScaledAt = kEndedAt + kRing * kRows * 4, kStatesAt = kScaledAt + kRing * kRowGroups * 4;
  static constexpr int kExactAt = kStatesAt + kRows * 8, kExactBytes = kOctets * kRowGroups * 256;
  // Barriers: how many there are before those of each kind.
  static constexpr int kLargestFull = 0, kAddedFull = kRing, kFollowed = kAddedFull + kSumsRing,
                       kWeightsFull = kFollowed + kRing, kValuesAdded = kWeightsFull + kDepth,
                       kExactFull = kValuesAdded + kDepth, kKeysFull = kExactFull + 2,
                       kKeysEmpty = kKeysFull + kKeyStages, kValuesFull = kKeysEmpty + kKeyStages,
                       kValuesEmpty = kValuesFull + kValueStages, kBarriers = kValuesEmpty + kValueStages;
  static constexpr int kBarriersAt = kExactAt + 2 * kExactBytes, kSharedBytes = kBarriersAt + kBarriers * 8;
  static_assert(kDepth >= 2 && kDepth <= kRing && kGroupTiles % kBlocks == 0);
  static_assert(kChains % kValueWarps == 0 && kSharedBytes <= 227 * 1024 && kWeightsAt >= int(sizeof(RowScratch)));
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S>
struct ClusterDecodeMemory : StrictKeys<S> {
  using Rounds = StrictRounds<S::kBlocks, S::kGroupTiles>;

  // What lies in shared memory. Rounds are numbered; four of them, two or kDepth find room.
  template <class X>
  __device__ X* at(int place) const {
    return reinterpret_cast<X*>(this->shared + place);
  }
  __device__ uint32_t keys_at(int stage) const { return shared_address(this->shared) + stage * S::kKeyBytes; }
  __device__ uint32_t values_at(int stage) const {
    return shared_address(this->shared) + S::kValuesAt + stage * S::kValueBytes;
  }
  // The largest scores of 16 keys of a tile, which one warp has found: row by row.
  __device__ float* largest_of(int number, int tile, int warp) const {
    return at<float>(S::kLargestAt + number % S::kRing * S::kLargestBytes) + (tile * S::kScoreWarps + warp) * S::kRows;
  }
  __device__ float* added_to(int number, int tile, int group) const {
    return at<float>(S::kAddedAt + number % S::kSumsRing * S::kAddedBytes) + (tile * S::kRowGroups + group) * 32 +
           this->lane;
  }
  __device__ float& keep_of(int number, int tile, int of_row) const {
    return at<float>(S::kKeepAt + number % S::kRing * S::kKeepBytes)[tile * S::kRows + of_row];
  }
  // What exponents of this block's tile are less; the largest score at a round's end, and the tiles before whose values
  // the sums are multiplied.
  __device__ float& base_of(int number, int of_row) const {
    return at<float>(S::kBaseAt)[number % S::kRing * S::kRows + of_row];
  }
  __device__ float& ended_with(int number, int of_row) const {
    return at<float>(S::kEndedAt)[number % S::kRing * S::kRows + of_row];
  }
  __device__ unsigned& scaled_of(int number, int group) const {
    return at<unsigned>(S::kScaledAt)[number % S::kRing * S::kRowGroups + group];
  }
  __device__ float2* state_of(int of_row) const { return at<float2>(S::kStatesAt) + of_row; }
  __device__ float2* exact_weights(int number, int octet, int group) const {
    return at<float2>(S::kExactAt + (number & 1) * S::kExactBytes) + (octet * S::kRowGroups + group) * 32 + this->lane;
  }
  // What the product with 16 keys of a round takes: of each row group two words.
  using Packed = std::conditional_t<S::kRowGroups == 1, uint2, uint4>;
  __device__ Packed* weights_of(int number, int step) const {
    return at<Packed>(S::kWeightsAt + number % S::kDepth * S::kWeightsBytes) + step * 32 + this->lane;
  }
  __device__ uint32_t barrier(int i) const { return shared_address(this->shared + S::kBarriersAt) + i * 8; }
  __device__ uint32_t largest_full(int number) const { return barrier(S::kLargestFull + number % S::kRing); }
  __device__ uint32_t added_full(int number) const { return barrier(S::kAddedFull + number % S::kSumsRing); }
  __device__ uint32_t followed(int number) const { return barrier(S::kFollowed + number % S::kRing); }
  __device__ uint32_t weights_full(int number) const { return barrier(S::kWeightsFull + number % S::kDepth); }
  __device__ uint32_t values_added(int number) const { return barrier(S::kValuesAdded + number % S::kDepth); }
  __device__ uint32_t exact_full(int number) const { return barrier(S::kExactFull + (number & 1)); }

  // Every lane of a warp arrives: the race checker follows such barriers alone, and it costs nothing. Called by one
  // thread, unrolled: by the lanes of a warp this takes 1.5 us longer, and in a loop 0.8.
  __device__ void init_barriers() const {
    constexpr int kSent = 1, kCopies = 33;  // who expects bytes; lanes of a warp, and once for the copy engine
    const auto init = [&](int from, int to, int arrivals) {
      for (int i = from; i < to; ++i) barrier_init(barrier(i), arrivals);
    };
    init(0, S::kFollowed, kSent);
    init(S::kFollowed, S::kWeightsFull, S::kRowGroups * 32);
    init(S::kWeightsFull, S::kValuesAdded, kSent + (S::kCopiesWeights ? S::kScoreWarps * 32 : 0));
    init(S::kValuesAdded, S::kExactFull, S::kValueWarps * 32);
    init(S::kExactFull, S::kKeysFull, S::kScoreWarps * 32);
    init(S::kKeysFull, S::kKeysEmpty, kCopies);
    init(S::kKeysEmpty, S::kValuesFull, S::kScoreWarps * 32);
    init(S::kValuesFull, S::kValuesEmpty, kCopies);
    init(S::kValuesEmpty, S::kBarriers, S::kValueWarps * 32);
    fence_barrier_init();
  }
  // How far another block's shared memory lies from this one's, as addresses of a cluster go.
  __device__ uint32_t way_to(unsigned block) const {
    return address_in(shared_address(this->shared), block) - shared_address(this->shared);
  }
  // Of sixteen bytes each: four rows of what one warp has found, to the block of this lane; or a quad's sums, to every
  // fourth block from lane % 4 on.
  static constexpr int kLargestSends = S::kRows / 4;
  static_assert(kLargestSends * S::kBlocks <= 32);
  struct Ways {
    uint32_t largest, weights[S::kBlocks / 2], sums[(S::kBlocks + 3) / 4];
  };
  __device__ Ways ways() const {
    Ways x;
#pragma unroll
    for (int i = 0; i < S::kBlocks / 2; ++i) x.weights[i] = way_to(i * 2 + this->lane % 2);
    x.largest = way_to(min(this->lane / kLargestSends, S::kBlocks - 1));
#pragma unroll
    for (int i = 0; i < S::kBlocks; i += 4) x.sums[i / 4] = way_to(min(i + this->lane % 4, S::kBlocks - 1));
    return x;
  }
  // Where chunk `c` of row `r` lies, of kRows rows of kColumns columns: as the copy engine places boxes of up to 64
  // columns, so that readers of eight rows meet in no bank.
  template <int kRows, int kColumns>
  __device__ static uint32_t place(int r, int c) {
    if constexpr (kColumns >= 64) return static_cast<uint32_t>((c / 8 * kRows + r) * 128 + ((c ^ r) & 7) * 16);
    constexpr int kChunks = kColumns / 8, kShift = kChunks == 4 ? 1 : 2;
    return static_cast<uint32_t>((r * kChunks + (c ^ (r >> kShift & (kChunks - 1)))) * 16);
  }
};

#endif

}  // namespace headrace::cuda
