// CTA of cluster decode, for up to 16 rows, warp-specialised. In a round of KV tiles each CTA computes the scores of
// one tile. The CTAs exchange their largest scores, then their weights, and each accumulates the values of all tiles
// for its own V columns. Score warps work a round ahead of the weights that they make. One follower warp for each eight
// rows follows the largest scores and adds up weights. Two warps load K and V; value warps accumulate V.
// With fixed KV splits every result has the steps and order of fmha.cuh in batch-invariant mode (fmha_softmax.cuh).
// MMAs over the same 16 keys run one after the other, with the same bits for any MMA instruction, and the same four
// lanes add up weights.
#pragma once
#include "headrace/ops/cuda/attention/common/conditional_rescaling.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode_load.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S>
struct ClusterDecodeBlock : ClusterDecodeLoads<S> {
  using T = typename S::T;
  using Rounds = typename ClusterDecodeShared<S>::Rounds;
  using Ways = typename ClusterDecodeShared<S>::Ways;

  // --- Score warps: sixteen keys of a tile each.

  // Queries of row lane / 4 and, if there are 16 rows, of the one eight further on.
  using Queries = uint32_t[S::kDim / 16][2][S::kRowGroups];
  using Scores = float[2][2 * S::kRowGroups];  // of keys lane % 4 * 2 and the next, and those eight further on
  __device__ void read_queries(Queries& q) const {
    const AttentionParams& p = this->p;
#pragma unroll
    for (int g = 0; g < S::kRowGroups; ++g) {
      const int r = min(g * 8 + this->lane / 4, this->valid_rows() - 1);
      const T* from = static_cast<const T*>(p.q) + (this->axis.span.q_off + this->token_of(r)) * p.q_token_stride +
                      this->head_of(r) * p.q_head_stride + this->lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < S::kDim / 8; ++i)
        q[i / 2][i % 2][g] = i * 8 < p.head_dim ? *reinterpret_cast<const uint32_t*>(from + i * 8) : 0;
    }
  }
  __device__ void find_scores(const ClusterRound& round, const Queries& q, int stage, Scores& s) const {
    constexpr int kLow = S::kRowGroups - 1;  // index of the lower eight rows; if there are only eight, they are zeros
    const int r = this->warp_n * 16 + (this->lane & 7) + (this->lane >> 4) * 8;
    const uint32_t from = this->keys_at(stage) + this->template place<S::kKeys, S::kDim>(r, this->lane >> 3 & 1);
    float sums[2][4] = {};
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      uint32_t k[4];
      load_tiles(k, (from + d / 4 * S::kKeys * 128) ^ (d % 4 * 32));
      const uint32_t a[4] = {q[d][0][0], kLow == 0 ? 0 : q[d][0][kLow], q[d][1][0], kLow == 0 ? 0 : q[d][1][kLow]};
      mma_m16n8k16<T>(sums[0], a, k[0], k[1]);
      mma_m16n8k16<T>(sums[1], a, k[2], k[3]);
    }
#pragma unroll
    for (int j = 0; j < 4 * S::kRowGroups; ++j)
      s[j / (2 * S::kRowGroups)][j % (2 * S::kRowGroups)] = sums[j / (2 * S::kRowGroups)][j % (2 * S::kRowGroups)];
    if (this->p.cap > 0) cap_scores(this->p, reinterpret_cast<float(&)[S::kRowGroups][4]>(s));
    this->hide(round.begin + this->rank, this->warp_n * 16, s);
  }
  // Sends the largest scores of this warp's keys to all CTAs, four rows per message. CTAs without a tile send too: a
  // CTA that has received from all warps knows what they have completed.
  __device__ void send_largest(const ClusterRound& round, int number, const Ways& ways, const Scores& s) const {
    float top[S::kRowGroups], four[4];
#pragma unroll
    for (int g = 0; g < S::kRowGroups; ++g) {
      top[g] = -INFINITY;
      if (this->has_tile(round)) {
        top[g] = fmaxf(fmaxf(s[0][g * 2], s[0][g * 2 + 1]), fmaxf(s[1][g * 2], s[1][g * 2 + 1]));
        top[g] = fmaxf(top[g], __shfl_xor_sync(0xffffffffu, top[g], 1));
        top[g] = fmaxf(top[g], __shfl_xor_sync(0xffffffffu, top[g], 2));
      }
    }
    constexpr int kSends = ClusterDecodeShared<S>::kLargestSends;  // messages per CTA
    const int first = this->lane % kSends * 4;                     // the first of four rows
    const float mine = this->lane % 2 == 0 ? top[0] : top[S::kRowGroups - 1];
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = __shfl_sync(0xffffffffu, mine, (first + i) % 8 * 4 + (first + i) / 8);
    if (this->lane >= kSends * S::kBlocks) return;
    send(shared_address(this->largest_of(number, this->rank, this->warp_n) + first) + ways.largest,
         this->largest_full(number) + ways.largest, make_float4(four[0], four[1], four[2], four[3]));
  }
  // Turns scores into weights and sends them, packed for the MMAs, to all CTAs, for valid rows only.
  using Packed = typename ClusterDecodeShared<S>::Packed;
  __device__ void send_weights(const ClusterRound& round, int number, const Ways& ways, const Scores& s) const {
    barrier_wait(this->followed(number), number / S::kRing & 1);
    if (this->has_tile(round)) {
      uint32_t packed[2 * S::kRowGroups];
#pragma unroll
      for (int g = 0; g < S::kRowGroups; ++g) {
        const float base = this->base_of(number, g * 8 + this->lane / 4);
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = exp2_fast(fmaf(s[i / 2][g * 2 + i % 2], this->to_log2, -base));
        packed[g * 2] = pack2<T>(w[0], w[1]), packed[g * 2 + 1] = pack2<T>(w[2], w[3]);
        *this->exact_weights(number, this->warp_n * 2, g) = make_float2(w[0], w[1]);
        *this->exact_weights(number, this->warp_n * 2 + 1, g) = make_float2(w[2], w[3]);
      }
      Packed* here = this->weights_of(number, this->rank * S::kSteps + this->warp_n);
      if constexpr (S::kCopiesWeights) {
        *here = make_uint4(packed[0], packed[1], packed[2], packed[3]);
        copy_weights(here, number);
      } else {
        send_pairs(here, number, ways, make_uint2(packed[0], packed[1]));
      }
    }
    barrier_arrive(this->exact_full(number));
    if constexpr (S::kCopiesWeights) barrier_arrive(this->weights_full(number));
  }
  // Sends to all CTAs, two lanes' weights in one message.
  __device__ void send_pairs(uint2* here, int number, const Ways& ways, const uint2& mine) const {
    const uint2 next = make_uint2(__shfl_xor_sync(0xffffffffu, mine.x, 1), __shfl_xor_sync(0xffffffffu, mine.y, 1));
    const bool odd = this->lane % 2 != 0;
    const uint4 both = odd ? make_uint4(next.x, next.y, mine.x, mine.y) : make_uint4(mine.x, mine.y, next.x, next.y);
    const uint32_t to = shared_address(here - this->lane % 2), full = this->weights_full(number);
    if (this->lane / 4 >= this->valid_rows()) return;
#pragma unroll
    for (int i = 0; i < S::kBlocks / 2; ++i) send(to + ways.weights[i], full + ways.weights[i], both);
  }
  // Copies to the other CTAs from where this CTA has them: the cluster would wait for messages of each lane.
  __device__ void copy_weights(const Packed* here, int number) const {
    fence_for_wgmma();  // before the bulk copy reads them
    __syncwarp();
    if (this->lane >= S::kBlocks || this->lane == this->rank) return;
    const uint32_t from = shared_address(here - this->lane);
    copy_to_block(address_in(from, this->lane), from, step_bytes(), address_in(this->weights_full(number), this->lane));
  }
  // Bytes that are sent for 16 keys, and for a round.
  __device__ unsigned step_bytes() const {
    return static_cast<unsigned>(min(this->valid_rows(), 8) * 4 * S::kRowGroups * 8);
  }
  __device__ unsigned weight_bytes(const ClusterRound& round) const {
    const int tiles = round.count() - (S::kCopiesWeights && this->has_tile(round) ? 1 : 0);
    return static_cast<unsigned>(tiles * S::kSteps) * step_bytes();
  }

  // Computes scores kAhead rounds ahead of the weights, so that largest scores have time to travel. It sends them
  // before it makes these weights, if there are enough weight buffers (kTellsFirst). All messages of a round wait until
  // the values of kDepth rounds before have been accumulated, because the round's weights take their place.
  __device__ void run_scores(const Rounds& rounds, const ClusterRound& first, const Queries& q) const {
    constexpr int kAhead = 1;
    constexpr bool kTellsFirst = S::kDepth > kAhead + 1;
    Scores s[kAhead + 1] = {};
    ClusterRound round[kAhead + 1] = {};  // `number` and those ahead of it
    round[kAhead] = first;
    PipelineState<S::kKeyStages> keys;
    const Ways ways = this->ways();
    for (int number = -kAhead;; ++number) {
      const ClusterRound& next = round[kAhead];
      const auto tell = [&] {
        const int before = number + kAhead - S::kDepth;
        if (before >= 0) barrier_wait(this->values_added(before), before / S::kDepth & 1);
        send_largest(next, number + kAhead, ways, s[kAhead]);
      };
      if (next.count() > 0) {
        barrier_wait(this->barrier(S::kKeysFull + keys.stage), keys.phase);
        if (this->has_tile(next)) find_scores(next, q, keys.stage, s[kAhead]);
        barrier_arrive(this->barrier(S::kKeysEmpty + keys.stage));
        keys.next();
        if constexpr (kTellsFirst) tell();
      }
      if (number >= 0) {
        if (round[0].count() == 0) return;
        send_weights(round[0], number, ways, s[0]);
      }
      if constexpr (!kTellsFirst) {
        if (next.count() > 0) tell();
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        round[i] = round[i + 1];
#pragma unroll
        for (int j = 0; j < 4 * S::kRowGroups; ++j)
          s[i][j / (2 * S::kRowGroups)][j % (2 * S::kRowGroups)] =
              s[i + 1][j / (2 * S::kRowGroups)][j % (2 * S::kRowGroups)];
      }
      round[kAhead] = rounds.after(round[kAhead]);
    }
  }

  // --- Follower warps: follow the largest scores and add up weights, of eight rows each; a lane does so for one row.

  __device__ int row_group() const { return this->warp_n - S::kFollower; }
  __device__ int followed_row() const { return row_group() * 8 + this->lane / 4; }

  __device__ void follow(const ClusterRound& round, int number, float& largest) const {
    if (row_group() == 0 && this->lane == 0) barrier_expect(this->largest_full(number), S::kLargestBytes);
    barrier_wait_sent(this->largest_full(number), number / S::kRing & 1);
    const int r = followed_row();
    float top[S::kBlocks], all = -INFINITY;
#pragma unroll
    for (int t = 0; t < S::kBlocks; ++t) {
      constexpr int kEach = S::kScoreWarps / 4;
      const float* from = this->largest_of(number, t, this->lane % 4 * kEach) + r;
      top[t] = kEach == 1 ? from[0] : fmaxf(from[0], from[(kEach - 1) * S::kRows]);
    }
#pragma unroll
    for (int t = 0; t < S::kBlocks; ++t) top[t] = fmaxf(top[t], __shfl_xor_sync(0xffffffffu, top[t], 1));
#pragma unroll
    for (int t = 0; t < S::kBlocks; ++t) {
      top[t] = fmaxf(top[t], __shfl_xor_sync(0xffffffffu, top[t], 2));
      all = fmaxf(all, top[t]);
    }
    // If the largest of all leaves the maximum, each does: a smaller score rounds to no larger a value.
    float base = __fmul_rn(largest, this->to_log2);
    const bool stays =
        largest != -INFINITY && !(__fmul_rn(__fadd_rn(fmaxf(largest, all), -largest), this->to_log2) > kSlack);
    unsigned scaled = 0;
    if (!__all_sync(0xffffffffu, stays)) {
#pragma unroll
      for (int t = 0; t < S::kBlocks; ++t) {
        float less;
        const float keep = conditional_rescaling(fmaxf(largest, top[t]), largest, less, this->to_log2);
        if (t == this->rank) base = less;
        if (this->lane % 4 == 0) this->keep_of(number, t, r) = keep;
        scaled |= (keep != 1 ? 1u : 0u) << t;
      }
      scaled = __reduce_or_sync(0xffffffffu, scaled) & ((1u << round.count()) - 1);
    }
    if (this->lane % 4 == 0) this->base_of(number, r) = base, this->ended_with(number, r) = largest;
    if (this->lane == 0) this->scaled_of(number, row_group()) = scaled;
    if (round.ends_split()) largest = -INFINITY;
    barrier_arrive(this->followed(number));
  }
  // Adds up the weights of this CTA's tile and sends the sums to all CTAs. A lane adds those that one lane of fmha.cuh
  // adds.
  __device__ void send_sums(const ClusterRound& round, int number, const Ways& ways) const {
    barrier_wait(this->exact_full(number), number >> 1 & 1);
    if (!this->has_tile(round)) return;
    float2 added{};
#pragma unroll
    for (int octet = 0; octet < S::kOctets; ++octet) {
      const float2 w = *this->exact_weights(number, octet, row_group());
      added = {__fadd_rn(added.x, w.x), __fadd_rn(added.y, w.y)};
    }
    const float sum = __fadd_rn(added.x, added.y);
    float four[4];  // of the row's four lanes
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = __shfl_sync(0xffffffffu, sum, (this->lane & ~3) + i);
    const uint32_t to = shared_address(this->added_to(number, this->rank, row_group()) - this->lane % 4),
                   full = this->added_full(number);
#pragma unroll
    for (int i = 0; i < S::kBlocks; i += 4) {
      if (i + this->lane % 4 < S::kBlocks)
        send(to + ways.sums[i / 4], full + ways.sums[i / 4], make_float4(four[0], four[1], four[2], four[3]));
    }
  }
  __device__ void add_sums(const ClusterRound& round, int number, float& sum) const {
    if (row_group() == 0 && this->lane == 0)
      barrier_expect(this->added_full(number), round.count() * S::kRowGroups * 128);
    barrier_wait_sent(this->added_full(number), number / S::kSumsRing & 1);
    const unsigned scaled = this->scaled_of(number, row_group());
#pragma unroll
    for (int t = 0; t < S::kBlocks; ++t) {
      if (t >= round.count()) break;
      const float keep = (scaled >> t & 1) != 0 ? this->keep_of(number, t, followed_row()) : 1.0f;
      sum = fmaf(sum, keep, *this->added_to(number, t, row_group()));
    }
  }
  // Calls put(round, state) for its row at the end of each split.
  template <class Put>
  __device__ void run_follower(const Rounds& rounds, ClusterRound now, const Put& put) const {
    float largest = -INFINITY, sum = 0;
    ClusterRound before{}, first{};
    const Ways ways = this->ways();
    for (int number = 0;; ++number) {
      if (now.count() > 0) follow(now, number, largest);
      if (before.count() > 0) send_sums(before, number - 1, ways);
      if (first.count() > 0) {
        add_sums(first, number - 2, sum);
        if (first.ends_split()) {
          put(first,
              PartialState{__fmul_rn(this->ended_with(number - 2, followed_row()), this->to_log2), quad_sum(sum)});
          sum = 0;
        }
      }
      first = before, before = now;
      if (first.count() == 0 && before.count() == 0) return;
      if (now.count() > 0) now = rounds.after(now);
    }
  }

  // --- Value warps: 16 columns and eight rows per chain of MMAs, transposed. A lane has columns lane / 4 and the one
  // eight further on, of rows lane % 4 * 2 and the next.

  using Values = float[S::kWarpChains][S::kRowGroups][4];
  __device__ int value_warp() const { return this->warp_n - S::kFirstValueWarp; }
  __device__ int chain_of(int m) const { return value_warp() + S::kValueWarps * m; }
  // Operands of this warp's chains of MMAs for 32 keys of a round.
  struct Operands {
    typename ClusterDecodeShared<S>::Packed w[2];
    uint32_t v[S::kWarpChains][2][4];
    __device__ uint2 weights(int half, int group) const {
      if constexpr (S::kRowGroups == 1) {
        return w[half];
      } else {
        return group == 0 ? make_uint2(w[half].x, w[half].y) : make_uint2(w[half].z, w[half].w);
      }
    }
  };
  // Loads pair `pair`, counted from where `weights` and `values` point.
  __device__ static void load_operands(Operands& x, const typename ClusterDecodeShared<S>::Packed* weights,
                                       const uint32_t (&values)[S::kWarpChains], int pair) {
    constexpr int kKeyBytes = S::kColumns < 64 ? S::kColumns * 2 : 128;
#pragma unroll
    for (int half = 0; half < 2; ++half) x.w[half] = weights[(pair * 2 + half) * 32];
#pragma unroll
    for (int m = 0; m < S::kWarpChains; ++m) {
      load_tiles_transposed(x.v[m][0], values[m] + pair * 32 * kKeyBytes);
      load_tiles_transposed(x.v[m][1], values[m] + (pair * 32 + 16) * kKeyBytes);
    }
  }
  __device__ void scale_values(const unsigned (&scaled)[S::kRowGroups], int number, int t, Values& value) const {
#pragma unroll
    for (int g = 0; g < S::kRowGroups; ++g) {
      if ((scaled[g] >> t & 1) == 0) continue;
      const int row = g * 8 + this->lane % 4 * 2;
      const float keep[2] = {this->keep_of(number, t, row), this->keep_of(number, t, row + 1)};
#pragma unroll
      for (int j = 0; j < S::kWarpChains * 4; ++j) value[j / 4][g][j % 4] *= keep[j % 2];
    }
  }
  // Operands are loaded ahead, even behind the end of a round, where they are not used. Where weights of the next round
  // may be written just there, the round's first are loaded again instead.
  __device__ void add_values(const ClusterRound& round, int number, int stage, Values& value) const {
    constexpr int kPairs = S::kSteps / 2, kAhead = S::kPairsAhead;  // pairs per tile
    constexpr int kKeyBytes = S::kColumns < 64 ? S::kColumns * 2 : 128;
    static_assert(kPairs % kAhead == 0 && S::kWeightsAt + kAhead * 32 * kKeyBytes <= S::kSharedBytes);
    unsigned scaled[S::kRowGroups];
#pragma unroll
    for (int g = 0; g < S::kRowGroups; ++g) scaled[g] = this->scaled_of(number, g);
    const int key = (this->lane & 7) + (this->lane >> 4) * 8;
    uint32_t from[S::kWarpChains];
#pragma unroll
    for (int m = 0; m < S::kWarpChains; ++m)
      from[m] = this->values_at(stage) +
                this->template place<S::kBlocks * S::kKeys, S::kColumns>(key, 2 * chain_of(m) + (this->lane >> 3 & 1));
    const auto* const first = this->weights_of(number, 0);
    const auto* weights = first;
    Operands next[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) load_operands(next[n], weights, from, n);
#pragma unroll 1
    for (int t = 0; t < round.count(); ++t) {
      scale_values(scaled, number, t, value);
      const auto* behind = S::kRoomBehind || t + 1 < round.count() ? weights : first - S::kSteps * 32;
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        const Operands x = next[n % kAhead];
        load_operands(next[n % kAhead], n + kAhead < kPairs ? weights : behind, from, n + kAhead);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int m = 0; m < S::kWarpChains; ++m) {
#pragma unroll
            for (int g = 0; g < S::kRowGroups; ++g) {
              const uint2 w = x.weights(half, g);
              mma_m16n8k16<T>(value[m][g], x.v[m][half], w.x, w.y);
            }
          }
        }
      }
      weights += S::kSteps * 32;
#pragma unroll
      for (int m = 0; m < S::kWarpChains; ++m) from[m] += S::kKeys * kKeyBytes;
    }
  }
  // Calls put(round, values) at the end of each split, then clears the values.
  template <class Put>
  __device__ void run_values(const Rounds& rounds, ClusterRound now, const Put& put) const {
    Values value{};
    PipelineState<S::kValueStages> stage;
    for (int number = 0; now.count() > 0; ++number) {
      if (value_warp() == 0 && this->lane == 0) barrier_expect(this->weights_full(number), weight_bytes(now));
      barrier_wait(this->barrier(S::kValuesFull + stage.stage), stage.phase);
      barrier_wait(this->followed(number), number / S::kRing & 1);
      barrier_wait_sent(this->weights_full(number), number / S::kDepth & 1);
      add_values(now, number, stage.stage, value);
      barrier_arrive(this->barrier(S::kValuesEmpty + stage.stage));
      barrier_arrive(this->values_added(number));
      if (now.ends_split()) {
        put(now, value);
#pragma unroll
        for (int i = 0; i < S::kWarpChains * S::kRowGroups * 4; ++i)
          value[i / (4 * S::kRowGroups)][i / 4 % S::kRowGroups][i % 4] = 0;
      }
      now = rounds.after(now);
      stage.next();
    }
  }
};

#endif

}  // namespace headrace::cuda
