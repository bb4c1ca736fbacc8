// Short-KV decode: many requests with few rows that see some hundred keys each. A warp processes all keys of one
// request and KV head, and loads them itself. There is no plan, there are no KV splits, and it waits for its own copies
// only. Eight warps share an SM, so there is one wave where other kernels have several prologues and epilogues. If
// requests are too few for that, the four warps of a CTA share one (cta_per_head.cuh). MMAs are mma.sync, which 16 rows
// fill. In batch-invariant mode KV tiles are those of fmha.cuh, and every result has its steps (fmha_softmax.cuh) in
// their order. Default mode has a loop of its own for contiguous KV (contiguous_kv.cuh). Source: Dao 2023,
// FlashAttention-2.
#pragma once
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/contiguous_kv.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv.h"
#include "headrace/ops/cuda/attention/sm90/fmha_mask.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_softmax.cuh"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

// Batch-invariant bits need the tiles of fmha.cuh.
template <class T, int kDim>
using StrictShape = ShortShape<T, kDim, tile_keys(kDim, 1), false>;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S, int kTiles>
struct ShortWarp {
  using T = typename S::T;
  using Slice = ShortSliceShape<S, kTiles>;
  using Scores = float[S::kKeys / 8][4];
  static constexpr int kProducts = Slice::kProducts;
  const AttentionParams& p;
  const ShortRows<S>& rows;
  char* shared;
  int lane;
  float to_log2;  // converts scores, as MMAs produce them, to base 2
  ShortRing<S, kTiles> ring;
  // State that rows carry from tile to tile of a fixed KV split.
  float value[kTiles][S::kDim / 8][4] = {};
  float largest[kTiles][2], sum[kTiles][2] = {};
  SeenRange range[kTiles][2];  // keys that a row sees, if rows.ranges

  __device__ ShortWarp(const ShortCall& call, ShortControl<S>& control, char* memory, uint32_t& phases, int kv_head,
                       int first_pages)
      : p(call.p),
        rows(*reinterpret_cast<const ShortRows<S>*>(control.rows)),
        shared(memory),
        lane(threadIdx.x % 32),
        to_log2(p.cap > 0 ? 1.4426950408889634f : p.scale * 1.4426950408889634f),
        ring{call, p, rows, shared_address(control.full), shared_address(memory), phases, lane, kv_head, first_pages} {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) largest[m][0] = largest[m][1] = -INFINITY;
  }

  __device__ uint32_t queries_at(int m) const {
    return shared_address(shared) + S::kWarpBytes - (kTiles - m) * S::kQueryBytes;
  }
  // Memory of the second row tile's scores, until those of the first are weights.
  __device__ float4* parked_scores(int octet) const {
    return reinterpret_cast<float4*>(shared + Slice::kStages * Slice::kBytes) + octet * 32 + lane;
  }
  __device__ int my_row(int m, int half) const { return m * 16 + half * 8 + lane / 4; }

  // Computes what depends only on the rows.
  __device__ void prepare() {
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      const KeyAxis::Row row = rows.row(p, my_row(i / 2, i % 2));
      range[i / 2][i % 2] = {row.first, row.end};
    }
  }

  // Computes the scores of slice `n` of a tile: to `s`, or to shared memory where they are parked.
  __device__ void find_scores(uint32_t keys, int n, Scores (&s)[Slice::kParks ? 1 : kTiles]) const {
    const uint32_t k_at = keys + column_swizzled(16, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1),
                   q_row = column_swizzled(16, lane % 16, lane / 16);
    float x[kTiles][2 * kProducts][4] = {};
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      uint32_t k[kProducts][4], q[kTiles][4];
#pragma unroll
      for (int i = 0; i < kProducts; ++i) load_tiles(k[i], chunk_at<Slice::kKeys>(k_at + i * 16 * 128, d));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) load_tiles(q[m], chunk_at<16>(queries_at(m) + q_row, d));
#pragma unroll
      for (int i = 0; i < kTiles * 2 * kProducts; ++i) {
        const int m = i % kTiles, octet = i / kTiles;
        mma_m16n8k16<T>(x[m][octet], q[m], k[octet / 2][octet % 2 * 2], k[octet / 2][octet % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (p.cap > 0) cap_scores(p, x[m]);
    }
#pragma unroll
    for (int i = 0; i < S::kKeys / 8; ++i) {  // registers cannot be indexed by `n`
      if (Slice::kOfTile > 1 && i / (2 * kProducts) != n) continue;
#pragma unroll
      for (int j = 0; j < 4 * (Slice::kParks ? 1 : kTiles); ++j)
        s[j / 4][i][j % 4] = x[j / 4][i % (2 * kProducts)][j % 4];
    }
    if constexpr (Slice::kParks) {
#pragma unroll
      for (int j = 0; j < 2 * kProducts; ++j) {
        const float(&from)[4] = x[1][j];
        *parked_scores(2 * kProducts * n + j) = make_float4(from[0], from[1], from[2], from[3]);
      }
    }
  }
  __device__ void load_parked(Scores& s) const {
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
      const float4 x = *parked_scores(n);
      s[n][0] = x.x, s[n][1] = x.y, s[n][2] = x.z, s[n][3] = x.w;
    }
  }
  __device__ void hide(int m, const ShortSlices& tile, Scores& s) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t seen =
          rows.seen_by(p, my_row(m, half), range[m][half], tile.first + lane % 4 * 2, tile.with_cached);
#pragma unroll
      for (int i = 0; i < S::kKeys / 4; ++i) {
        if ((seen >> i & 1) == 0) s[i / 2][half * 2 + i % 2] = -INFINITY;
      }
    }
  }
  // Accumulates the values of a slice.
  using Weights = uint32_t[kProducts][kTiles][4];
  __device__ void add_values(uint32_t values, const Weights& w) {
    const uint32_t v_at = values + column_swizzled(16, lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
#pragma unroll
      for (int d = 0; d < S::kDim / 16; ++d) {
        uint32_t v[4];
        load_tiles_transposed(v, chunk_at<Slice::kKeys>(v_at + i * 16 * 128, d));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          mma_m16n8k16<T>(value[m][2 * d], w[i][m], v[0], v[1]);
          mma_m16n8k16<T>(value[m][2 * d + 1], w[i][m], v[2], v[3]);
        }
      }
    }
  }

  // Turns scores of a row tile into weights and rescales its values to them.
  using TileWeights = uint32_t[S::kKeys / 16][4];
  __device__ void find_weights(int m, const ShortSlices& tile, bool seen_whole, Scores& s, TileWeights& w) {
    if (!seen_whole) hide(m, tile, s);
    const Softening x = begin_softening(s, largest[m], to_log2);
    soften(s, 0, x, to_log2, sum[m]), soften(s, 1, x, to_log2, sum[m]);
    pack<T>(w, s);
    scale(value[m], x);
  }
  // Memory of weights once parked scores are consumed: of 16 keys and a row tile.
  __device__ uint4* parked_weights(int step, int m) const {
    return reinterpret_cast<uint4*>(parked_scores(0)) + (step * kTiles + m) * 32;
  }
  __device__ void park_weights(int m, const TileWeights& w) const {
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i) *parked_weights(i, m) = make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]);
  }

  __device__ void attend(const ShortSlices& tile, bool seen_whole) {
    constexpr int kHeld = Slice::kParks ? 1 : kTiles;  // row tiles whose scores and weights are in registers
    Scores s[kHeld] = {};
#pragma unroll 1
    for (int n = tile.begin; n < tile.end; ++n) ring.take(tile, n, [&](uint32_t keys) { find_scores(keys, n, s); });
    TileWeights w[kHeld];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (Slice::kParks && m == 1) {
        load_parked(s[0]);
        park_weights(0, w[0]);
      }
      find_weights(m, tile, seen_whole, s[m % kHeld], w[m % kHeld]);
    }
    if (Slice::kParks) park_weights(1, w[0]);
#pragma unroll 1
    for (int n = tile.begin; n < tile.end; ++n) {
      Weights here = {};
      if constexpr (Slice::kParks) {
#pragma unroll
        for (int i = 0; i < kProducts * kTiles; ++i) {
          const uint4 x = *parked_weights(n * kProducts + i / kTiles, i % kTiles);
          uint32_t(&to)[4] = here[i / kTiles][i % kTiles];
          to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
        }
      } else {
#pragma unroll
        for (int i = 0; i < S::kKeys / 16; ++i) {
          if (Slice::kOfTile > 1 && i / kProducts != n) continue;
#pragma unroll
          for (int j = 0; j < kTiles * 4; ++j) here[i % kProducts][j / 4][j % 4] = w[j / 4][i][j % 4];
        }
      }
      ring.take(tile, n, [&](uint32_t values) { add_values(values, here); });
    }
  }

  // Sums of the previous fixed splits: in local memory, not in registers.
  struct Before {
    PartialState state[kTiles][2];
    float value[kTiles][S::kDim / 8][4];
  };
  // Ends a split: what rows carry becomes the sums of all splits so far.
  __device__ void end_group(const Before* before) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      float a[2], b[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const PartialState mine{__fmul_rn(largest[m][half], to_log2), quad_sum(sum[m][half])};
        const PartialState all = before == nullptr ? mine : before->state[m][half].merged_with(mine);
        if (before != nullptr) a[half] = before->state[m][half].factor(all), b[half] = mine.factor(all);
        largest[m][half] = all.largest, sum[m][half] = all.sum;
      }
      if (before == nullptr) continue;
#pragma unroll
      for (int i = 0; i < S::kDim / 2; ++i) {
        float& x = value[m][i / 4][i % 4];
        x = PartialState::merged_value(before->value[m][i / 4][i % 4], a[i % 4 / 2], x, b[i % 4 / 2]);
      }
    }
  }
  // Stores the sums of all splits so far and begins the next split.
  __device__ void put_away(Before* before) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        before->state[m][half] = {largest[m][half], sum[m][half]};
        largest[m][half] = -INFINITY, sum[m][half] = 0;
      }
#pragma unroll
      for (int i = 0; i < S::kDim / 2; ++i) {
        before->value[m][i / 4][i % 4] = value[m][i / 4][i % 4];
        value[m][i / 4][i % 4] = 0;
      }
    }
  }

  // Processes all keys that the rows see.
  __device__ void attend_all(int asked) {
    ask_for_short_queries<S, kTiles>(p, rows, queries_at(0), lane);
    ring.begin(asked);
    wait_copies<0>();
    __syncwarp();
    Before memory, *before = nullptr;
    int cut = rows.tiles.group_end(S::kGroupTiles, 0);
#pragma unroll 1
    for (int i = 0; i < ring.tiles; ++i) {
      if (i == cut) {
        end_group(before);
        before = &memory;
        asm volatile("" : "+l"(before)::"memory");  // forces the state to have an address
        put_away(before);
        cut = rows.tiles.group_end(S::kGroupTiles, cut);
      }
      const ShortSlices tile = ring.pieces(i);
      attend(tile, (i >= ring.plain.begin && i < ring.plain.end) || rows.seen_whole(tile));
    }
    end_group(before);
  }
};

// Work of a warp.
struct ShortPart {
  KeySpan span;  // folded
  int request, kv_head, row0;
  int first_pages;  // each lane has one of the request's first 32
};

// Processes the rows from row0 on. Returns true if a value is NaN.
template <class S, int kTiles>
__device__ inline bool attend_short_rows(const ShortCall& call, const ShortPart& part, const PackedRows& packed,
                                         ShortControl<S>& control, char* shared, uint32_t& phases) {
  ShortWarp<S, kTiles> warp(call, control, shared, phases, part.kv_head, part.first_pages);
  const int asked = warp.ring.begin_early(part.span);
  if (warp.lane == 0)
    *reinterpret_cast<ShortRows<S>*>(control.rows) =
        ShortRows<S>(call.p, packed, part.request, part.kv_head, part.row0, 16 * kTiles);
  __syncwarp();
  warp.prepare();
  if (part.row0 == 0) {
    pdl_wait();
    pdl_launch_dependents();
  }
  warp.attend_all(asked);
  return write_short_rows<S, kTiles>(warp.p, warp.rows, shared, warp.lane, {warp.value, warp.largest, warp.sum});
}

// The contiguous-KV fast path for the rows from row0 on. `block`: shared memory of all warps. Returns true if a value
// is NaN.
template <class S, int kTiles>
__device__ inline bool attend_run_rows(const ShortCall& call, const ShortPart& part, const PackedRows& packed,
                                       ShortControl<S>& control, char* block, uint32_t& phases) {
  const AttentionParams& p = call.p;
  const KeySpan& span = part.span;
  const ShortPlace place{packed, span.q_off, part.kv_head, part.row0,
                         min(16 * kTiles, span.q_len * packed.group - part.row0)};
  const int warp = static_cast<int>(uniform(threadIdx.x / 32));
  char* shared = block + warp * S::kWarpBytes;
  ShortRun<S, kTiles> run{.call = call,
                          .p = p,
                          .place = place,
                          .keys = RunKeys(p, span),
                          .full = shared_address(control.full),
                          .memory = shared_address(shared),
                          .phases = phases,
                          .lane = static_cast<int>(threadIdx.x % 32),
                          .page = part.first_pages,
                          .to_log2 = p.scale * 1.4426950408889634f};
  run.template begin<true>();
  if (part.row0 == 0) {
    pdl_wait();
    pdl_launch_dependents();
  }
  run.begin_rest(span);
  run.attend_all();
  phases = run.phases;
  const ShortSums<S, kTiles> sums{run.value, run.largest, run.sum};
  return write_short_rows<S, kTiles>(p, place, shared, run.lane, sums);
}

// Recomputes rows with NaN: an infinite or NaN value corrupts rows that do not see it, since 0 times it is NaN.
__device__ inline void redo_short_rows(const AttentionParams& p, const KeySpan& span, int request, int first_head,
                                       int heads, char* shared) {
  const int group = p.heads / p.kv_heads, end = min(first_head + heads, p.kv_heads) * group;
#pragma unroll 1
  for (int token = span.q_off, i = span.q_len; i > 0; ++token, --i) {
#pragma unroll 1
    for (int head = first_head * group; head < end; ++head) {
      attend_row(p, request, token, head, *reinterpret_cast<RowScratch*>(shared), RowWrite::kWhereNaN,
                 {1, static_cast<int>(threadIdx.x)});
    }
  }
}

// Returns one of the request's first page numbers per lane. They are loaded before anything else is known, because keys
// wait for them.
__device__ inline int first_pages_of(const AttentionParams& p, const KeySpan& span) {
  const int lane = threadIdx.x % 32;
  if (lane >= p.table_stride) return 0;
  return p.page_table[(p.encoder ? span.encoder_page_row : span.page_row) * p.table_stride + lane];
}

template <class S, int kTiles>
__device__ inline void attend_short_block(const ShortCall& call, char* shared) {
  const AttentionParams& p = call.p;
  // The last request is the padding, which may have more rows than others: it begins first.
  const int request = static_cast<int>(gridDim.y - 1 - blockIdx.y), warp = static_cast<int>(uniform(threadIdx.x / 32)),
            lane = threadIdx.x % 32, first_head = static_cast<int>(blockIdx.x) * S::kWarps, kv_head = first_head + warp;
  static_assert(sizeof(ShortControl<S>) * S::kWarps <= S::kControlBytes);
  // Spans, pages and keys that were cached before this step exist already (DeviceMetadata). They are read while the
  // preceding kernels make queries and new keys.
  const KeySpan span = folded(p.spans[request], p.type);
  const int first_pages = first_pages_of(p, span);
  ShortControl<S>& control = reinterpret_cast<ShortControl<S>*>(shared + S::kWarps * S::kWarpBytes)[warp];
  if (lane == 0) {
    for (uint64_t& full : control.full) barrier_init(shared_address(&full), 1);
    fence_barrier_init();
  }
  __syncwarp();
  const PackedRows packed(p.heads / p.kv_heads);
  bool run = false;
  if constexpr (S::kRuns) run = call.contiguous && RunKeys(p, span).usual(p, span);
  const int rows = kv_head < p.kv_heads ? span.q_len * packed.group : 0;
  uint32_t phases = 0;
  bool nan = false;
  if (rows == 0) {
    pdl_wait();  // a kernel may not end before the preceding ones
    pdl_launch_dependents();
  }
  for (int row0 = 0; row0 < rows; row0 += 16 * kTiles) {
    const ShortPart part{span, request, kv_head, row0, first_pages};
    nan |= run ? attend_run_rows<S, kTiles>(call, part, packed, control, shared, phases)
               : attend_short_rows<S, kTiles>(call, part, packed, control, shared + warp * S::kWarpBytes, phases);
    fence_for_wgmma();  // for TMA: the next rows' keys come where these rows were staged for output
    __syncwarp();
  }
  if (__syncthreads_or(nan)) redo_short_rows(p, p.spans[request], request, first_head, S::kWarps, shared);
}

#endif

template <class S, int kTiles>
__global__ void __launch_bounds__(S::kThreads, S::kResident) attend_short(const __grid_constant__ ShortCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  attend_short_block<S, kTiles>(call, shared);
#endif
}

}  // namespace headrace::cuda
