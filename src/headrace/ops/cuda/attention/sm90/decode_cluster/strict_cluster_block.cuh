// CTA of a batch-invariant cluster. In a round of KV tiles each CTA computes the scores of one tile. The CTAs exchange
// their largest scores, then their weights, and each accumulates the values of all tiles for its own V columns. Every
// result has the steps and order of fmha.cuh in batch-invariant mode (fmha_softmax.cuh). MMAs over the same 16 keys run
// one after the other, with the same bits for any MMA instruction. The same four lanes add up weights.
#pragma once
#include "headrace/ops/cuda/arch/cluster.cuh"
#include "headrace/ops/cuda/attention/common/conditional_rescaling.cuh"
#include "headrace/ops/cuda/attention/sm80/fmha_rows.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/strict_cluster_keys.cuh"

namespace headrace::cuda {

// One warp per 16 keys of a tile. One stage: a tile of keys, and the CTA's V columns of a round, which are as many
// bytes.
template <class T, int kDim, int kBlocks_>
struct StrictClusterShape
    : MmaShape<T, PoolElements::kFloats, kDim, 1, tile_keys(kDim, 1) / 16, 1, tile_keys(kDim, 1), 1> {
  using Base = MmaShape<T, PoolElements::kFloats, kDim, 1, tile_keys(kDim, 1) / 16, 1, tile_keys(kDim, 1), 1>;
  static constexpr int kBlocks = kBlocks_, kGroupTiles = kSm90GroupKeys / Base::kKeys, kWarps = Base::kWarpsN;
  static constexpr int kColumns = kDim / kBlocks, kChains = kColumns / 8;  // of a CTA; eight columns are one MMA
  static constexpr int kWarpChains = (kChains + kWarps - 1) / kWarps;
  static constexpr int kRoundKeys = kBlocks * Base::kKeys, kSteps = Base::kKeys / 16;
  static constexpr int kOctets = Base::kKeys / 8;                                                     // of a tile
  static constexpr int kPages = (kBlocks * kOctets * kChains + Base::kThreads - 1) / Base::kThreads;  // of a thread
  // Shared memory behind the stage. Messages between CTAs are double-buffered by round.
  static constexpr int kWeightsAt = Base::kPipeBytes, kWeightsBytes = kBlocks * kSteps * 512;
  static constexpr int kAddedAt = kWeightsAt + 2 * kWeightsBytes, kAddedBytes = kBlocks * 256;
  static constexpr int kLargestAt = kAddedAt + 2 * kAddedBytes, kLargestBytes = kBlocks * 64;
  static constexpr int kExactAt = kLargestAt + 2 * kLargestBytes, kWarpLargestAt = kExactAt + kOctets * 512,
                       kKeepAt = kWarpLargestAt + kWarps * 64;
  static constexpr int kBarriersAt = kKeepAt + kBlocks * 64, kSharedBytes = kBarriersAt + 6 * 8;
  static constexpr int kResident = kSharedBytes <= 113 * 1024 ? 2 : 1;  // CTAs per SM
  static_assert(Base::kRows == kStrictClusterRows && Base::kWarpKeys == 16 && kGroupTiles % kBlocks == 0);
  static_assert(kSharedBytes >= int(sizeof(RowScratch)) && kSharedBytes <= 227 * 1024);
};

// State of a thread within a split: the running maximum of row lane % 16, and the sums and values of the two rows of
// its MMA results. Values are eight columns for each of its chains of MMAs.
template <class S>
struct StrictState {
  float value[S::kWarpChains][4] = {}, largest = -INFINITY, sum[2] = {};
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S>
struct StrictBlock : StrictKeys<S> {
  using T = typename S::T;
  using Octet = typename StrictKeys<S>::Octet;
  using Scores = float[1][2][4];

  __device__ float* floats_at(int at) const { return reinterpret_cast<float*>(this->shared + at); }
  __device__ float& largest_of(int number, int tile, int row) const {
    return floats_at(S::kLargestAt + (number & 1) * S::kLargestBytes)[tile * S::kRows + row];
  }
  __device__ float& warp_largest(int warp, int row) const {
    return floats_at(S::kWarpLargestAt)[warp * S::kRows + row];
  }
  // All warps compute the same factors, and write them before they read them.
  __device__ float& keep_of(int tile, int row) const { return floats_at(S::kKeepAt)[tile * S::kRows + row]; }
  __device__ float4* exact_weights(int octet) const {
    return reinterpret_cast<float4*>(this->shared + S::kExactAt) + octet * 32 + this->lane;
  }
  __device__ float2* added_to(int number, int tile) const {
    return reinterpret_cast<float2*>(this->shared + S::kAddedAt + (number & 1) * S::kAddedBytes) + tile * 32 +
           this->lane;
  }
  // Weights of 16 keys of a round as an MMA operand: of the upper eight rows, then of the lower.
  __device__ uint4* weights_of(int number, int step) const {
    return reinterpret_cast<uint4*>(this->shared + S::kWeightsAt + (number & 1) * S::kWeightsBytes) + step * 32 +
           this->lane;
  }
  // Barriers at which the other CTAs' largest scores, sums of weights and weights of round `number` arrive.
  __device__ uint32_t largest_full(int number) const {
    return shared_address(this->shared + S::kBarriersAt) + (number & 1) * 8;
  }
  __device__ uint32_t added_full(int number) const { return largest_full(number) + 16; }
  __device__ uint32_t weights_full(int number) const { return largest_full(number) + 32; }
  // Sets the bytes that a round's barriers wait for. One thread calls it.
  __device__ void expect(const StrictRound& round, int number) const {
    barrier_expect(largest_full(number), S::kLargestBytes);
    const int lanes = min(this->valid_rows(), 8) * 4, each = this->valid_rows() > 8 ? 16 : 8;
    barrier_expect(weights_full(number), round.count() * S::kSteps * lanes * each);
    barrier_expect(added_full(number), round.count() * 256);
  }

  // Returns the keys of this CTA's tile that belong to this warp.
  __device__ Octet key_octet(const StrictRound& round, int o) const {
    return this->octet(round.begin + this->rank, this->warp_n * 16 + o * 8);
  }
  __device__ int2 key_pages(const StrictRound& round) const {
    if (!this->has_tile(round)) return {};
    return {this->page_of(key_octet(round, 0)), this->page_of(key_octet(round, 1))};
  }
  __device__ void load_keys(const StrictRound& round, int2 pages) const {
    if (!this->has_tile(round)) return;
    const AttentionParams& p = this->p;
    const int j = this->lane / 4;
    const auto place = [&](int o, int c) {
      return shared_address(this->k_tile(0)) + swizzled<S::kChunks>(this->warp_n * 16 + o * 8 + j, c);
    };
    if (key_octet(round, 0).whole && key_octet(round, 1).whole && p.head_dim == S::kDim) {
#pragma unroll
      for (int o = 0; o < 2; ++o) {
        const T* key = this->stored_key(key_octet(round, o), o == 0 ? pages.x : pages.y, j, p.k) + this->lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < S::kChunks / 4; ++i) copy16(place(o, this->lane % 4 + 4 * i), key + 32 * i, true);
      }
      return;
    }
#pragma unroll 1
    for (int o = 0; o < 2; ++o) {
      const T* key = this->find_key(key_octet(round, o), o == 0 ? pages.x : pages.y, j, p.k, p.k_new);
#pragma unroll 1
      for (int c = this->lane % 4; c < S::kChunks; c += 4)
        this->copy_or_clear(place(o, c), key, c * 8, p.head_dim, p.k.data);
    }
  }
  // Returns the offset of chunk `c` of key `j` of octet `o`. Eight keys of a chunk are 128 bytes, in an order without
  // bank conflicts for writers and readers.
  __device__ static uint32_t value_place(int c, int o, int j) {
    return static_cast<uint32_t>((c * S::kRoundKeys + o * 8 + (j ^ ((o * S::kChains + c) & 7))) * 16);
  }
  // This CTA's V columns of all tiles: a thread copies one chunk of some octets.
  __device__ int value_octet(int i) const { return (static_cast<int>(threadIdx.x) + i * S::kThreads) / S::kChains; }
  __device__ Octet value_octet(const StrictRound& round, int o) const {
    return this->octet(round.begin + o / S::kOctets, o % S::kOctets * 8);
  }
  using ValuePages = int[S::kPages];
  __device__ void find_value_pages(const StrictRound& round, ValuePages& pages) const {
#pragma unroll
    for (int i = 0; i < S::kPages; ++i) {
      const int o = value_octet(i);
      if (o < round.count() * S::kOctets) pages[i] = this->page_of(value_octet(round, o));
    }
  }
  __device__ void load_values(const StrictRound& round, const ValuePages& pages) const {
    const AttentionParams& p = this->p;
    const uint32_t to = shared_address(this->v_tile(0));
    const int c = static_cast<int>(threadIdx.x) % S::kChains, d = this->rank * S::kColumns + c * 8;
#pragma unroll
    for (int i = 0; i < S::kPages; ++i) {
      const int o = value_octet(i);
      if (o >= round.count() * S::kOctets) return;
      const Octet x = value_octet(round, o);
      if (x.whole && d < p.v_head_dim) {
        const T* key = this->stored_key(x, pages[i], 0, p.v) + d;
#pragma unroll
        for (int j = 0; j < 8; ++j, key += p.v.slot_stride) copy16(to + value_place(c, o, j), key, true);
        continue;
      }
#pragma unroll 1
      for (int j = 0; j < 8; ++j)
        this->copy_or_clear(to + value_place(c, o, j), this->find_key(x, pages[i], j, p.v, p.v_new), d, p.v_head_dim,
                            p.v.data);
    }
  }

  // Computes the scores of this warp's keys of the CTA's tile, and each row's largest.
  __device__ void find_scores(const StrictRound& round, Scores& s) const {
    if (!this->has_tile(round)) return;
    scores_of<S>(*this, 0, s);
    if (this->p.cap > 0) cap_scores(this->p, s[0]);
    this->hide(round.begin + this->rank, this->warp_n * 16, s[0]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top =
          fmaxf(fmaxf(s[0][0][half * 2], s[0][0][half * 2 + 1]), fmaxf(s[0][1][half * 2], s[0][1][half * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      if (this->lane % 4 == 0) warp_largest(this->warp_n, this->my_row(0, half)) = top;
    }
  }
  // Sends the largest scores of this CTA's tile to all CTAs, one thread per row and CTA. CTAs without a tile send too.
  // A CTA that has received from all knows that all have accumulated the values of two rounds before.
  __device__ void send_largest(const StrictRound& round, int number) const {
    static_assert(S::kThreads >= S::kRows * S::kBlocks);
    const int row = static_cast<int>(threadIdx.x) % S::kRows, to = static_cast<int>(threadIdx.x) / S::kRows;
    if (to >= S::kBlocks) return;
    float top = -INFINITY;
    if (this->has_tile(round)) {
#pragma unroll
      for (int warp = 0; warp < S::kWarps; ++warp) top = fmaxf(top, warp_largest(warp, row));
    }
    send(address_in(shared_address(&largest_of(number, this->rank, row)), to), address_in(largest_full(number), to),
         top);
  }

  // Follows the largest scores from tile to tile; a lane does so for row lane % 16. `base`: what exponents of this
  // CTA's tile subtract. Returns a bit for each tile before whose values the sums are rescaled.
  __device__ unsigned follow(const StrictRound& round, int number, StrictState<S>& state, float (&base)[2]) const {
    const int row = this->lane % S::kRows;
    float top[S::kBlocks], mine = 0;
#pragma unroll
    for (int t = 0; t < S::kBlocks; ++t) top[t] = largest_of(number, t, row);
    unsigned scaled = 0;
#pragma unroll
    for (int t = 0; t < S::kBlocks; ++t) {
      float less;
      const float keep = conditional_rescaling(fmaxf(state.largest, top[t]), state.largest, less, this->to_log2);
      if (t == this->rank) mine = less;
      keep_of(t, row) = keep;
      scaled |= (keep != 1 ? 1u : 0u) << t;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) base[half] = __shfl_sync(0xffffffffu, mine, this->my_row(0, half));
    return __reduce_or_sync(0xffffffffu, scaled) & ((1u << round.count()) - 1);
  }
  // Turns scores into weights and sends them, packed for the MMAs, to all CTAs, for valid rows only.
  __device__ void send_weights(const StrictRound& round, int number, Scores& s, const float (&base)[2]) const {
    if (!this->has_tile(round)) return;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[0][n][j] = exp2_fast(fmaf(s[0][n][j], this->to_log2, -base[j / 2]));
      *exact_weights(this->warp_n * 2 + n) = make_float4(s[0][n][0], s[0][n][1], s[0][n][2], s[0][n][3]);
    }
    const int rows = this->valid_rows();
    if (this->lane / 4 >= rows) return;
    const float(&low)[4] = s[0][0], (&high)[4] = s[0][1];
    const uint2 upper = make_uint2(pack2<T>(low[0], low[1]), pack2<T>(high[0], high[1])),
                lower = make_uint2(pack2<T>(low[2], low[3]), pack2<T>(high[2], high[3]));
    const uint32_t at = shared_address(weights_of(number, this->rank * S::kSteps + this->warp_n));
    const uint32_t full = weights_full(number);
#pragma unroll
    for (unsigned to = 0; to < S::kBlocks; ++to) {
      if (rows > 8) {
        send(address_in(at, to), address_in(full, to), make_uint4(upper.x, upper.y, lower.x, lower.y));
      } else {
        send(address_in(at, to), address_in(full, to), upper);
      }
    }
  }
  // Adds up the weights of this CTA's tile and sends the sums to all CTAs. A lane adds those that one lane of fmha.cuh
  // adds. One warp calls it.
  __device__ void send_sums(const StrictRound& round, int number) const {
    if (!this->has_tile(round)) return;
    float4 added{};
#pragma unroll
    for (int octet = 0; octet < S::kOctets; ++octet) {
      const float4 w = *exact_weights(octet);
      added = {__fadd_rn(added.x, w.x), __fadd_rn(added.y, w.y), __fadd_rn(added.z, w.z), __fadd_rn(added.w, w.w)};
    }
    const float2 sum = make_float2(__fadd_rn(added.x, added.y), __fadd_rn(added.z, added.w));
    const uint32_t at = shared_address(added_to(number, this->rank));
#pragma unroll
    for (unsigned to = 0; to < S::kBlocks; ++to) send(address_in(at, to), address_in(added_full(number), to), sum);
  }
  __device__ void add_sums(const StrictRound& round, int number, StrictState<S>& state) const {
#pragma unroll
    for (int t = 0; t < S::kBlocks; ++t) {
      if (t >= round.count()) break;
      const float2 added = *added_to(number, t);
      state.sum[0] = fmaf(state.sum[0], keep_of(t, this->my_row(0, 0)), added.x);
      state.sum[1] = fmaf(state.sum[1], keep_of(t, this->my_row(0, 1)), added.y);
    }
  }

  __device__ int chain_of(int m) const { return this->warp_n + S::kWarps * m; }
  __device__ bool has_gemm_sequence() const { return this->warp_n < S::kChains; }
  // Operands of this warp's chains of MMAs for 32 keys of a round.
  struct Operands {
    uint4 w[2];
    uint32_t v[S::kWarpChains][4];
  };
  __device__ void load_operands(Operands& x, int number, int pair) const {
    x.w[0] = *weights_of(number, 2 * pair), x.w[1] = *weights_of(number, 2 * pair + 1);
    const uint32_t from = shared_address(this->v_tile(0));
#pragma unroll
    for (int m = 0; m < S::kWarpChains; ++m)
      load_tiles_transposed(x.v[m], from + value_place(chain_of(m), pair * 4 + this->lane / 8, this->lane % 8));
  }
  // Accumulates the values of all tiles of a round, in order.
  __device__ void add_values(const StrictRound& round, int number, unsigned scaled, StrictState<S>& state) const {
    if (!has_gemm_sequence()) return;
    constexpr int kPairs = S::kSteps / 2;  // of a tile
    const int last = round.count() * kPairs - 1;
    Operands next;
    load_operands(next, number, 0);
#pragma unroll 1
    for (int t = 0; t < round.count(); ++t) {
      if ((scaled >> t & 1) != 0) {
        const float keep[2] = {keep_of(t, this->my_row(0, 0)), keep_of(t, this->my_row(0, 1))};
#pragma unroll
        for (int m = 0; m < S::kWarpChains; ++m) {
#pragma unroll
          for (int j = 0; j < 4; ++j) state.value[m][j] *= keep[j / 2];
        }
      }
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        const Operands x = next;
        load_operands(next, number, min(t * kPairs + n + 1, last));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t w[4] = {x.w[half].x, x.w[half].z, x.w[half].y, x.w[half].w};
#pragma unroll
          for (int m = 0; m < S::kWarpChains; ++m)
            mma_m16n8k16<T>(state.value[m], w, x.v[m][half * 2], x.v[m][half * 2 + 1]);
        }
      }
    }
  }
};

#endif

}  // namespace headrace::cuda
