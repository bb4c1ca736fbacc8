// Contiguous-KV fast path of short-KV decode, default mode: keys from the first one on, in pages that hold whole
// slices. The request may have new keys that the pool does not hold. One short loop serves all tiles, because a warp
// that works alone waits for its own instructions more than for keys (docs/design/attention.md).
#pragma once
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv_pipeline.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_softmax.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Keys of a request that rows see, in slices of 16: one of new keys first, if the pool does not hold them, then those
// of the pool.
struct RunKeys {
  int cached, added;  // keys: cached, and new in this step
  int stored;         // keys in the pool
  int fresh;          // slices of new keys
  int pieces;         // slices of the pool
  __device__ RunKeys(const AttentionParams& p, const KeySpan& span)
      : cached(span.ctx_len),
        added(span.kind == KeySpan::Kind::kNone ? 0 : span.q_len),
        stored(cached + (p.k_new.data == nullptr ? added : 0)),
        fresh(p.k_new.data != nullptr && added > 0 ? 1 : 0),
        pieces((stored + kContiguousSlice - 1) / kContiguousSlice) {}
  // Returns true if the fast path supports the request. Tests what the launch cannot know.
  __device__ bool usual(const AttentionParams& p, const KeySpan& span) const {
    const bool one_run = span.hole_end <= span.hole_begin && (stored == cached || span.phys0 == cached);
    return one_run && added * fresh <= kContiguousSlice && (cached > 0 || fresh == 0) && stored <= p.page_size * 32;
  }
  __device__ int tiles() const { return (fresh + pieces + 1) / 2; }
};

// Work of a warp: tiles of 32 keys, each two slices of K and then two of V.
template <class S, int kTiles>
struct ShortRun {
  using T = typename S::T;
  static constexpr int kBytes = kContiguousSlice * S::kDim * 2, kOfTile = 4, kAhead = 6,  // slices
      kStages = (S::kWarpBytes - kTiles * S::kQueryBytes) / kBytes;
  static_assert(kStages > kOfTile && kStages <= S::kMostStages);
  const ShortCall& call;
  const AttentionParams& p;
  const ShortPlace& place;
  RunKeys keys;
  uint32_t full, memory;  // the first stage's barrier, and the stage's address
  uint32_t phases;        // a bit per stage: the barrier phase that the next slice completes
  int lane, page;         // page: each lane has one page number of the request
  float to_log2;
  int stage = 0, tiles = keys.tiles();
  int seen[kTiles][2];  // new keys that a row sees
  float value[kTiles][S::kDim / 8][4] = {};
  float largest[kTiles][2], sum[kTiles][2] = {};

  // Returns the pool slice that is first or second in a tile. The slice of new keys comes before those of the pool.
  __device__ int piece_of(int tile, int sub) const { return tile * 2 + sub % 2 - keys.fresh; }
  __device__ ColumnsAt source(int tile, int sub) const {
    const int key = min(piece_of(tile, sub), keys.pieces - 1) * kContiguousSlice;
    return {0, key & (p.page_size - 1), place.kv_head, __shfl_sync(0xffffffffu, page, key >> p.page_shift)};
  }
  __device__ const CUtensorMap& map(int sub) const { return sub < 2 ? call.maps[1].k : call.maps[1].v; }
  __device__ void ask(int tile, int sub, int at) const {
    const ColumnsAt from = source(tile, sub);
    if (lane != 0) return;
    barrier_expect(full + at * 8, kBytes);
    copy_columns(memory + at * kBytes, map(sub), from, full + at * 8);
  }
  __device__ bool is_fresh(int n) const { return keys.fresh != 0 && n < kOfTile && n % 2 == 0; }
  // Loads the first slices, except new keys: those that hold only cached keys, or the others. With the former it
  // prefetches some more to L2, because memory is idle until queries arrive.
  template <bool kCached>
  __device__ void begin() const {
#pragma unroll 1
    for (int n = 0; n < min(kCached ? kStages + kAhead : kStages, tiles * kOfTile); ++n) {
      const int tile = n / kOfTile, sub = n % kOfTile;
      if (is_fresh(n) || ((piece_of(tile, sub) + 1) * kContiguousSlice <= keys.cached) != kCached) continue;
      if (!kCached || n < kStages) {
        ask(tile, sub, n);
      } else if (const ColumnsAt from = source(tile, sub); lane == 0) {
        prefetch_columns(map(sub), from);
      }
    }
  }
  // Copies new keys and their values.
  __device__ void bring() const {
    const int c = lane % S::kChunks;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const PagedSide& side = i == 0 ? p.k_new : p.v_new;
      const T* from =
          static_cast<const T*>(side.data) + place.q_off * side.page_stride + place.kv_head * side.head_stride + c * 8;
#pragma unroll 4
      for (int row = lane / S::kChunks; row < kContiguousSlice; row += 32 / S::kChunks) {
        const bool is_key = row < keys.added;
        copy16(memory + 2 * i * kBytes + column_swizzled(kContiguousSlice, row, c),
               is_key ? from + row * side.page_stride : from, is_key);
      }
    }
  }
  // Loads everything that the preceding kernels made.
  __device__ void begin_rest(const KeySpan& span) {
    if (keys.fresh != 0) bring();
    ask_for_short_queries<S, kTiles>(p, place, queries_at(0), lane);
    begin<false>();
    const int row = place.row0 + min(lane, place.rows - 1);
    const int sees = keys.added == 0 ? 0 : span.new_keys(place.packed.token(row));
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      seen[i / 2][i % 2] = __shfl_sync(0xffffffffu, sees, i * 8 + lane / 4);
      largest[i / 2][i % 2] = -INFINITY;
    }
    wait_copies<0>();
    fence_for_wgmma();  // for TMA, which writes there next
    __syncwarp();
    if (keys.fresh != 0 && lane == 0) barrier_arrive(full), barrier_arrive(full + 2 * 8);
  }
  __device__ uint32_t queries_at(int m) const { return memory + kStages * kBytes + m * S::kQueryBytes; }

  // Waits for the next slice and returns its address.
  __device__ uint32_t take() {
    barrier_wait(full + stage * 8, phases >> stage & 1);
    phases ^= 1u << stage;
    const uint32_t at = memory + stage * kBytes;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    return at;
  }
  // Loads into the stages of the two slices taken last, which were `kSub` and the next.
  template <int kSub>
  __device__ void ask_again(int tile) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      constexpr int kNext = kSub + kStages;
      const int n = kNext + i, at = stage - 2 + i;
      if (tile + n / kOfTile < tiles) ask(tile + n / kOfTile, n % kOfTile, at < 0 ? at + kStages : at);
    }
  }

  using Scores = float[kTiles][4][4];
  __device__ void find_scores(const uint32_t (&at)[2], Scores& s) const {
    const uint32_t k_row = column_swizzled(kContiguousSlice, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1),
                   q_row = column_swizzled(16, lane % 16, lane / 16);
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      uint32_t k[2][4], q[kTiles][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_tiles(k[i], chunk_at<kContiguousSlice>(at[i] + k_row, d));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) load_tiles(q[m], chunk_at<16>(queries_at(m) + q_row, d));
#pragma unroll
      for (int i = 0; i < kTiles * 4; ++i) {
        const int m = i % kTiles, octet = i / kTiles;
        mma_m16n8k16<T>(s[m][octet], q[m], k[octet / 2][octet % 2 * 2], k[octet / 2][octet % 2 * 2 + 1]);
      }
    }
  }
  __device__ void hide(int tile, Scores& s) const {
#pragma unroll
    for (int i = 0; i < kTiles * 16; ++i) {
      const int m = i / 16, octet = i / 4 % 4, half = i / 2 % 2;
      const int piece = piece_of(tile, octet / 2), key = octet % 2 * 8 + lane % 4 * 2 + i % 2;
      const int sees =
          piece < 0 ? seen[m][half] : keys.cached + (keys.fresh != 0 ? 0 : seen[m][half]) - piece * kContiguousSlice;
      if (key >= sees) s[m][octet][i % 4] = -INFINITY;
    }
  }
  // Clears values behind the stored keys: they may be NaN, and 0 times NaN is NaN.
  __device__ void clear_values(int tile, const uint32_t (&at)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int piece = piece_of(tile, i);
#pragma unroll 1
      for (int row = piece < 0 ? kContiguousSlice : max(keys.stored - piece * kContiguousSlice, 0);
           row < kContiguousSlice; ++row) {
#pragma unroll
        for (int columns = 0; columns < S::kDim / 64; columns += 2) {
          const uint32_t to = at[i] + ((columns + lane / 16) * kContiguousSlice + row) * 128 + lane % 16 * 8;
          asm volatile("st.shared.v2.b32 [%0], {%1, %1};" ::"r"(to), "r"(0) : "memory");
        }
      }
    }
    __syncwarp();
  }
  using Weights = uint32_t[kTiles][2][4];
  __device__ void add_values(const uint32_t (&at)[2], const Weights& w) {
    const uint32_t v_row = column_swizzled(kContiguousSlice, lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int d = 0; d < S::kDim / 16; ++d) {
        uint32_t v[4];
        load_tiles_transposed(v, chunk_at<kContiguousSlice>(at[i] + v_row, d));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          mma_m16n8k16<T>(value[m][2 * d], w[m][i], v[0], v[1]);
          mma_m16n8k16<T>(value[m][2 * d + 1], w[m][i], v[2], v[3]);
        }
      }
    }
  }
  __device__ void attend(int tile) {
    Scores s = {};
    const uint32_t k_at[2] = {take(), take()};
    find_scores(k_at, s);
    ask_again<0>(tile);
    if (piece_of(tile, 1) + 1 > keys.cached / kContiguousSlice || piece_of(tile, 0) < 0) hide(tile, s);
    Weights w;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const Softening x = begin_softening(s[m], largest[m], to_log2);
      soften(s[m], 0, x, to_log2, sum[m]), soften(s[m], 1, x, to_log2, sum[m]);
      pack<T>(w[m], s[m]);
      scale(value[m], x);
    }
    const uint32_t v_at[2] = {take(), take()};
    if (piece_of(tile, 1) + 1 >= keys.pieces) clear_values(tile, v_at);
    add_values(v_at, w);
    ask_again<2>(tile);
  }
  __device__ void attend_all() {
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) attend(i);
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      largest[i / 2][i % 2] = __fmul_rn(largest[i / 2][i % 2], to_log2);
      sum[i / 2][i % 2] = quad_sum(sum[i / 2][i % 2]);
    }
  }
};

#endif

}  // namespace headrace::cuda
