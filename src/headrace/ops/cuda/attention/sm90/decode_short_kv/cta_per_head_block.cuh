// Contiguous-KV fast path where the warps of a CTA share a request and KV head. Each warp computes the scores of a part
// of a KV tile, follows the largest of all warps and makes its part's weights. It accumulates the values of all keys
// for V columns of its own. Every sum has batch-invariant mode's order (fmha_softmax.cuh). Default mode has the same
// bits, because no other order is faster.
#pragma once
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/contiguous_kv.cuh"

namespace headrace::cuda {

// S: shape of a warp that processes other requests alone (ShortShape). Sums are made in its tiles.
template <class S_, int kTiles_>
struct CtaPerHeadTraits {
  using S = S_;
  static constexpr int kTiles = kTiles_, kRows = 16 * kTiles, kGroups = 2 * kTiles;  // groups of eight rows
  static constexpr int kDim = S::kDim, kKeys = S::kKeys, kWarps = S::kWarps;
  // slices of a tile, and of a warp's part of it
  static constexpr int kPieces = kKeys / kContiguousSlice, kMine = kPieces / kWarps;
  static constexpr int kColumns = kDim / kWarps;  // a warp's columns of V
  static constexpr int kPieceBytes = kContiguousSlice * kDim * 2, kTileBytes = kPieces * kPieceBytes;
  // Behind the stages. Queries stay until all warps have loaded them; exact weights are those of one row tile.
  static constexpr int kQueriesBytes = kTiles * S::kQueryBytes, kWeightsAt = 0, kExactAt = kPieces * kTiles * 512,
                       kLargestAt = larger(kExactAt + kKeys / 8 * 512, kQueriesBytes),
                       kSumsAt = kLargestAt + kWarps * kRows * 4, kBarriersAt = kSumsAt + kRows * 8;
  // Stages of K tiles or V tiles, for a CTA that shares an SM and for one that has it alone.
  static constexpr int kFewPlaces = 3, kMostPlaces = 6, kBehindBytes = kBarriersAt + kMostPlaces * 8;
  static constexpr int shared_bytes(int places) { return places * kTileBytes + kBehindBytes; }
  static_assert(kPieces % kWarps == 0 && kColumns % 16 == 0 && kTileBytes == 32 * 1024);
  static_assert(shared_bytes(kFewPlaces) <= 113 * 1024 && shared_bytes(kMostPlaces) <= 227 * 1024);
  static_assert(S::kWarpBytes <= kFewPlaces * kTileBytes && int(sizeof(ShortControl<S>)) <= kBehindBytes);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Pipeline state: the K tile and the V tile of each KV tile take one stage after the other.
struct TilePlaceOf {
  int places, place = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++place == places) place = 0, phase ^= 1;
  }
};

template <class X>
struct CtaPerHead {
  using T = typename X::S::T;
  const ShortCall& call;
  const AttentionParams& p;
  const ShortPlace& place;
  RunKeys keys;
  char* behind;          // memory behind the stages
  uint32_t memory;       // the first stage
  int lane, warp, page;  // page: each lane has one page number of the request
  float to_log2;
  TilePlaceOf taken, asked;  // stage of the next K or V tile to read, and to load
  // next: the next K or V tile to load
  int total = keys.cached + keys.added, tiles = (total + X::kKeys - 1) / X::kKeys, next = 0;
  int seen[X::kTiles][2];  // keys that a row sees
  float value[X::kTiles][X::kColumns / 8][4] = {};
  uint32_t q[X::kTiles][X::kDim / 16][4];
  float largest[X::kTiles][2], sum = 0;  // sum: of row `lane / 4` of the eight whose weights this warp adds up

  __device__ uint32_t barrier(int at) const { return shared_address(behind + X::kBarriersAt) + at * 8; }
  template <class V>
  __device__ V* at(int offset) const {
    return reinterpret_cast<V*>(behind + offset);
  }
  __device__ uint32_t queries_at(int m) const { return shared_address(behind) + m * X::S::kQueryBytes; }
  __device__ float& largest_of(int of_warp, int row) const {
    return at<float>(X::kLargestAt)[of_warp * X::kRows + row];
  }
  __device__ uint4* weights_of(int piece, int m) const {
    return at<uint4>(X::kWeightsAt) + (piece * X::kTiles + m) * 32 + lane;
  }
  __device__ float2* exact_weights(int octet, int half) const {
    return at<float2>(X::kExactAt) + (octet * 2 + half) * 32 + lane;
  }
  __device__ float2& sums_of(int row) const { return at<float2>(X::kSumsAt)[row]; }

  // --- Loads of K and V. Every lane arrives for each tile: the race checker follows only such barriers.

  enum class Part : uint8_t { kCached, kRest, kAll };  // of a tile: slices cached before the step, the others, or all
  // Loads this warp's share of K or V tile `n` into stage `to`.
  __device__ void ask(int n, int to, Part part) const {
    const bool values = n % 2 != 0;
    bool by_lanes = false;
#pragma unroll
    for (int i = 0; i < X::kMine; ++i) {
      const int in_tile = warp * X::kMine + i, first = n / 2 * X::kKeys + in_tile * kContiguousSlice;
      const bool cached = first + kContiguousSlice <= keys.cached;
      if (first >= total || (part == Part::kCached && !cached) || (part == Part::kRest && cached)) continue;
      const uint32_t there = memory + to * X::kTileBytes + in_tile * X::kPieceBytes;
      if (cached || keys.fresh == 0) {
        const int number = __shfl_sync(0xffffffffu, page, first >> p.page_shift);
        if (lane != 0) continue;
        barrier_expect_more(barrier(to), X::kPieceBytes);
        copy_columns(there, values ? call.maps[1].v : call.maps[1].k,
                     {0, first & (p.page_size - 1), place.kv_head, number}, barrier(to));
      } else {
        bring(values, first, there);
        by_lanes = true;
      }
    }
    if (part == Part::kCached) return;
    if (by_lanes) {
      arrive_behind_copies(barrier(to));
    } else {
      barrier_arrive(barrier(to));
    }
  }
  // Loads a slice that holds new keys which the pool does not hold. Keys that no row sees become zeros.
  __device__ void bring(bool values, int first, uint32_t to) const {
    const PagedSide &stored = values ? p.v : p.k, &fresh = values ? p.v_new : p.k_new;
    const int number = __shfl_sync(0xffffffffu, page, first >> p.page_shift & 31), c = lane % X::S::kChunks;
#pragma unroll 1
    for (int row = lane / X::S::kChunks; row < kContiguousSlice; row += 32 / X::S::kChunks) {
      const int key = first + row;
      const T* from = key < keys.cached
                          ? static_cast<const T*>(stored.data) + number * stored.page_stride +
                                place.kv_head * stored.head_stride + (key & (p.page_size - 1)) * stored.slot_stride
                          : static_cast<const T*>(fresh.data) +
                                (place.q_off + min(key, total - 1) - keys.cached) * fresh.page_stride +
                                place.kv_head * fresh.head_stride;
      copy16(to + column_swizzled(kContiguousSlice, row, c), from + c * 8, key < total);
    }
  }
  __device__ int first_asked() const { return min(asked.places, 2 * tiles); }
  __device__ void begin() const {
    TilePlaceOf to = asked;
    for (int n = 0; n < first_asked(); ++n, to.next()) ask(n, to.place, Part::kCached);
  }
  __device__ void begin_rest(const KeySpan& span) {
    ask_for_queries();
    for (; next < first_asked(); ++next, asked.next()) ask(next, asked.place, Part::kRest);
    const int row = place.row0 + min(lane, place.rows - 1);
    const int sees = keys.cached + (keys.added == 0 ? 0 : span.new_keys(place.packed.token(row)));
#pragma unroll
    for (int i = 0; i < X::kGroups; ++i) {
      seen[i / 2][i % 2] = __shfl_sync(0xffffffffu, sees, i * 8 + lane / 4);
      largest[i / 2][i % 2] = -INFINITY;
    }
    wait_copies<0>();
    __syncthreads();  // the queries have arrived
#pragma unroll
    for (int i = 0; i < X::kTiles * X::kDim / 16; ++i) {
      const int m = i % X::kTiles, d = i / X::kTiles;
      load_tiles(q[m][d], chunk_at<16>(queries_at(m) + column_swizzled(16, lane % 16, lane / 16), d));
    }
  }
  __device__ void ask_again(int until) {
    for (; next < min(until, 2 * tiles); ++next, asked.next()) ask(next, asked.place, Part::kAll);
  }
  __device__ void ask_for_queries() const {
    const int c = static_cast<int>(threadIdx.x) % X::S::kChunks;
#pragma unroll
    for (int i = 0; i < X::kRows * X::S::kChunks / X::S::kThreads; ++i) {
      const int row = static_cast<int>(threadIdx.x) / X::S::kChunks + i * (X::S::kThreads / X::S::kChunks),
                of = min(row, place.rows - 1);
      const T* from = static_cast<const T*>(p.q) + (place.q_off + place.token_of(of)) * p.q_token_stride +
                      place.head_of(of) * p.q_head_stride;
      copy16(queries_at(row / 16) + column_swizzled(16, row % 16, c), from + c * 8, true);
    }
    commit_copies();
  }
  __device__ uint32_t take() {
    barrier_wait(barrier(taken.place), taken.phase);
    const uint32_t at = memory + taken.place * X::kTileBytes;
    taken.next();
    return at;
  }

  // --- A tile.

  static constexpr int kOctets = 2 * X::kMine;  // of a warp's keys of a tile
  using Scores = float[X::kTiles][kOctets][4];
  __device__ void find_scores(uint32_t tile, Scores& s) const {
    const uint32_t k_row = column_swizzled(kContiguousSlice, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1),
                   mine = tile + warp * X::kMine * X::kPieceBytes + k_row;
#pragma unroll
    for (int d = 0; d < X::kDim / 16; ++d) {
      uint32_t k[X::kMine][4];
#pragma unroll
      for (int i = 0; i < X::kMine; ++i) load_tiles(k[i], chunk_at<kContiguousSlice>(mine + i * X::kPieceBytes, d));
#pragma unroll
      for (int i = 0; i < X::kTiles * kOctets; ++i) {
        const int m = i % X::kTiles, octet = i / X::kTiles;
        mma_m16n8k16<T>(s[m][octet], q[m][d], k[octet / 2][octet % 2 * 2], k[octet / 2][octet % 2 * 2 + 1]);
      }
    }
  }
  __device__ void hide(int tile, Scores& s) const {
    const int first = tile * X::kKeys + warp * X::kMine * kContiguousSlice + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < X::kTiles * kOctets * 4; ++i) {
      const int m = i / (kOctets * 4), octet = i / 4 % kOctets, half = i / 2 % 2;
      if (first + octet * 8 + i % 2 >= seen[m][half]) s[m][octet][i % 4] = -INFINITY;
    }
  }
  __device__ void tell_largest(const Scores& s) const {
#pragma unroll
    for (int i = 0; i < X::kGroups; ++i) {
      float top = -INFINITY;
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet)
        top = fmaxf(top, fmaxf(s[i / 2][octet][i % 2 * 2], s[i / 2][octet][i % 2 * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      if (lane % 4 == 0) largest_of(warp, i * 8 + lane / 4) = top;
    }
  }
  // Follows the largest scores of all warps.
  __device__ Softening follow(int m) {
    Softening x;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = largest[m][half];
#pragma unroll
      for (int of = 0; of < X::kWarps; ++of) top = fmaxf(top, largest_of(of, m * 16 + half * 8 + lane / 4));
      x.keep[half] = conditional_rescaling(top, largest[m][half], x.base[half], to_log2);
    }
    return x;
  }
  // Turns scores into weights for all warps: packed for the MMAs, and exact for the sums.
  __device__ void tell_weights(int m, Scores& s, const Softening& x) const {
#pragma unroll
    for (int i = 0; i < kOctets * 4; ++i) {
      float& weight = s[m][i / 4][i % 4];
      weight = exp2_fast(fmaf(weight, to_log2, -x.base[i / 2 % 2]));
    }
    uint32_t packed[X::kMine][4];
    pack<T>(packed, s[m]);
#pragma unroll
    for (int i = 0; i < X::kMine; ++i)
      *weights_of(warp * X::kMine + i, m) = make_uint4(packed[i][0], packed[i][1], packed[i][2], packed[i][3]);
#pragma unroll
    for (int i = 0; i < kOctets * 2; ++i)
      *exact_weights(warp * kOctets + i / 2, i % 2) = make_float2(s[m][i / 2][i % 2 * 2], s[m][i / 2][i % 2 * 2 + 1]);
  }
  // Returns the value for that half of a row tile whose weights this warp adds up.
  __device__ float own(const float (&x)[2]) const { return warp % 2 == 0 ? x[0] : x[1]; }
  // Adds up weights in the order of weigh().
  __device__ void add_weights(float keep) {
    float2 added = *exact_weights(0, warp % 2);
#pragma unroll
    for (int octet = 1; octet < X::kKeys / 8; ++octet) {
      const float2 w = *exact_weights(octet, warp % 2);
      added = {__fadd_rn(added.x, w.x), __fadd_rn(added.y, w.y)};
    }
    sum = fmaf(sum, keep, __fadd_rn(added.x, added.y));
  }
  // Clears this warp's columns of values behind the stored keys in a slice: they may be NaN, and 0 times NaN is NaN.
  __device__ void clear_values(uint32_t piece, int first) const {
    constexpr int kChunks = X::kColumns / 8;
    for (int i = lane; i < (first + kContiguousSlice - total) * kChunks; i += 32) {
      const uint32_t to =
          piece + column_swizzled(kContiguousSlice, total - first + i / kChunks, warp * kChunks + i % kChunks);
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    __syncwarp();
  }
  __device__ void add_values(uint32_t tile, int pieces) {
    const uint32_t v_row = column_swizzled(kContiguousSlice, lane % 16, lane / 16);
#pragma unroll 4
    for (int n = 0; n < pieces; ++n) {
      uint32_t w[X::kTiles][4];
#pragma unroll
      for (int m = 0; m < X::kTiles; ++m) {
        const uint4 x = *weights_of(n, m);
        w[m][0] = x.x, w[m][1] = x.y, w[m][2] = x.z, w[m][3] = x.w;
      }
#pragma unroll
      for (int d = 0; d < X::kColumns / 16; ++d) {
        uint32_t v[4];
        load_tiles_transposed(
            v, chunk_at<kContiguousSlice>(tile + n * X::kPieceBytes + v_row, warp * (X::kColumns / 16) + d));
#pragma unroll
        for (int m = 0; m < X::kTiles; ++m) {
          mma_m16n8k16<T>(value[m][2 * d], w[m], v[0], v[1]);
          mma_m16n8k16<T>(value[m][2 * d + 1], w[m], v[2], v[3]);
        }
      }
    }
  }
  __device__ void attend(int tile) {
    const int first = tile * X::kKeys,
              pieces = min((total - first + kContiguousSlice - 1) / kContiguousSlice, X::kPieces);
    Scores s = {};
    const uint32_t k_at = take();
    if (warp * X::kMine < pieces) find_scores(k_at, s);
    if (first + X::kKeys > keys.cached) hide(tile, s);
    tell_largest(s);
    __syncthreads();  // all have also computed their scores, and accumulated the values of the tile before
    ask_again(2 * tile + 1 + asked.places);
#pragma unroll
    for (int m = 0; m < X::kTiles; ++m) {
      const Softening x = follow(m);
      if (m > 0) __syncthreads();  // the exact weights of the previous rows have been added up
      tell_weights(m, s, x);
      scale(value[m], x);
      __syncthreads();
      if (warp / 2 == m) add_weights(own(x.keep));
    }
    const uint32_t v_at = take();
    if (keys.fresh == 0 && first + pieces * kContiguousSlice > total)
      clear_values(v_at + (pieces - 1) * X::kPieceBytes, first + (pieces - 1) * kContiguousSlice);
    add_values(v_at, pieces);
  }

  // Processes all keys and writes the rows. Returns true if a value is NaN.
  __device__ bool attend_all() {
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) attend(i);
    if (warp < X::kGroups) {
      const float all = quad_sum(sum), top = warp / 2 == 0 ? own(largest[0]) : own(largest[X::kTiles - 1]);
      if (lane % 4 == 0) sums_of(warp * 8 + lane / 4) = {__fmul_rn(top, to_log2), all};
    }
    __syncthreads();
    return write();
  }
  __device__ bool write() const {
    float zeros = 0;  // NaN if a value is NaN or infinite
#pragma unroll
    for (int i = 0; i < X::kGroups; ++i) {
      const int row = i * 8 + lane / 4;
      if (row >= place.rows) continue;
      const float2 all = sums_of(row);
      const float by = all.y == 0 ? 0.0f : p.v_scale / all.y;
      T* const to = static_cast<T*>(p.out) + place.out_at(p, row) + warp * X::kColumns + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < X::kColumns / 8; ++d) {
        const float x = value[i / 2][d][i % 2 * 2] * by, y = value[i / 2][d][i % 2 * 2 + 1] * by;
        zeros = fmaf(x, 0, fmaf(y, 0, zeros));
        *reinterpret_cast<uint32_t*>(to + d * 8) = pack2<T>(x, y);
      }
      if (p.lse != nullptr && warp == 0 && lane % 4 == 0)
        p.lse[(place.q_off + place.token_of(row)) * p.lse_stride + place.head_of(row)] =
            PartialState{all.x, all.y}.log_sum();
    }
    return isnan(zeros);
  }
};

#endif

}  // namespace headrace::cuda
