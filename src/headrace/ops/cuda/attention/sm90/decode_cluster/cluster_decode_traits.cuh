// Sizes and shared-memory layout of a cluster decode CTA.
#pragma once
#include <type_traits>

#include "headrace/ops/cuda/arch/cluster.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode_work.cuh"

namespace headrace::cuda {

// A stage of K is a tile; one of V is the CTA's columns of a round, which are as many bytes. Weights of kDepth rounds
// are buffered. Rows lie in groups of eight; two groups share an MMA of scores.
template <class T_, int kRows_, int kDim_, int kBlocks_, int kKeyStages_, int kValueStages_, int kDepth_>
struct ClusterDecodeTraits {
  using T = T_;
  static constexpr bool kFp8 = false;
  static constexpr int kDim = kDim_, kBlocks = kBlocks_, kKeys = tile_keys(kDim, 1), kChunks = kDim / 8;
  static constexpr int kKeyStages = kKeyStages_, kValueStages = kValueStages_, kDepth = kDepth_;
  static constexpr int kRows = kRows_, kRowGroups = kRows / 8;
  static constexpr int kGroupTiles = kSm90SplitKeys / kKeys;
  static constexpr int kSteps = kKeys / 16, kOctets = kKeys / 8;            // of a tile
  static constexpr int kColumns = kDim / kBlocks, kChains = kColumns / 16;  // 16 columns are one MMA
  static constexpr int kScoreWarps = kSteps, kMostValueWarps = kScoreWarps == 8 ? 2 : 4;
  static constexpr int kValueWarps = kChains < kMostValueWarps ? kChains : kMostValueWarps,
                       kWarpChains = kChains / kValueWarps;
  static constexpr int kFirstValueWarp = kScoreWarps, kKeyLoader = kFirstValueWarp + kValueWarps,
                       kValueLoader = kKeyLoader + 1, kFollower = kKeyLoader + 2,  // one for each eight rows
      kThreads = (kFollower + kRowGroups) * 32;
  // Rounds that are buffered of largest scores, and of sums, which are added up two rounds later.
  static constexpr int kRing = 4, kSumsRing = 8;
  static constexpr bool kCopiesWeights = kRowGroups > 1;  // to other CTAs, by bulk copy
  static constexpr int kKeyBytes = kKeys * kDim * 2, kValueBytes = kBlocks * kKeys * kColumns * 2;
  static constexpr int kValuesAt = kKeyStages * kKeyBytes, kWeightsAt = kValuesAt + kValueStages * kValueBytes;
  // MMA operands are loaded this many pairs of 16 keys ahead. With room behind a round's last weights, where nothing is
  // written, they may be loaded past its end too. That measured faster for this shape and slower for others.
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
  // Barriers: the index of the first of each kind.
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
struct ClusterDecodeShared : ClusterKeys<S> {
  using Rounds = ClusterRounds<S::kBlocks, S::kGroupTiles>;

  // Accessors of shared memory. Rounds are numbered; the last kRing, kSumsRing, kDepth or two of them are buffered.
  template <class X>
  __device__ X* at(int place) const {
    return reinterpret_cast<X*>(this->shared + place);
  }
  __device__ uint32_t keys_at(int stage) const { return shared_address(this->shared) + stage * S::kKeyBytes; }
  __device__ uint32_t values_at(int stage) const {
    return shared_address(this->shared) + S::kValuesAt + stage * S::kValueBytes;
  }
  // Largest scores of 16 keys of a tile, from one warp, row by row.
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
  // Values per round: the base that exponents of this CTA's tile subtract; the largest score at the round's end; and
  // the tiles before whose values the sums are rescaled.
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
  // Weights of 16 keys of a round as an MMA operand: two words for each row group.
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

  // Every lane of a warp arrives: the race checker follows only such barriers, and it costs nothing. One thread calls
  // it, unrolled: by the lanes of a warp this takes 1.5 us longer, and in a loop 0.8.
  __device__ void init_barriers() const {
    constexpr int kSent = 1, kCopies = 33;  // the thread that expects bytes; the lanes of a warp, and once TMA
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
  // Returns how far another CTA's shared memory lies from this one's, in the cluster's address space.
  __device__ uint32_t way_to(unsigned block) const {
    return address_in(shared_address(this->shared), block) - shared_address(this->shared);
  }
  // Offsets to the receivers of messages of 16 bytes. Largest scores: four rows of one warp, to the CTA of this lane.
  // Sums: those of a quad, to every fourth CTA from lane % 4 on.
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
  // Returns the offset of chunk `c` of row `r`, of kRows rows of kColumns columns. It is that of swizzled TMA boxes of
  // up to 64 columns, so that reads of eight rows have no bank conflicts.
  template <int kRows, int kColumns>
  __device__ static uint32_t place(int r, int c) {
    if constexpr (kColumns >= 64) return static_cast<uint32_t>((c / 8 * kRows + r) * 128 + ((c ^ r) & 7) * 16);
    constexpr int kChunks = kColumns / 8, kShift = kChunks == 4 ? 1 : 2;
    return static_cast<uint32_t>((r * kChunks + (c ^ (r >> kShift & (kChunks - 1)))) * 16);
  }
};

#endif

}  // namespace headrace::cuda
