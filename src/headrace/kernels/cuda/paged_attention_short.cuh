// Attention of many requests with few rows that see some hundred keys each: a warp takes all keys of one request and kv
// head, and brings them for itself. No plan, no parts, nothing to wait for but its own copies: eight warps share a
// multiprocessor, so that there is one round of them where others have several beginnings and ends. Products are
// `mma.sync`, of which 16 rows fill one. Source: Dao 2023, FlashAttention-2.
#pragma once
#include "headrace/kernels/cuda/attention_mma_parts.cuh"
#include "headrace/kernels/cuda/attention_mma_tile.cuh"
#include "headrace/kernels/cuda/attention_sm90_shape.cuh"
#include "headrace/kernels/cuda/launch.cuh"
#include "headrace/kernels/cuda/paged_attention_short.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {

// Warps of neighbouring kv heads; heads of up to 128 elements.
template <class T_>
struct ShortShape {
  using T = T_;
  static constexpr int kDim = 128, kChunks = kDim / 8, kKeys = 16, kWarps = 4, kThreads = 32 * kWarps, kResident = 2;
  static constexpr int kRows = 32;  // of a warp at a time: one or two tiles of 16
  static constexpr int kSideBytes = kKeys * kDim * 2, kStageBytes = 2 * kSideBytes, kQueryBytes = 16 * kDim * 2;
  static constexpr int kWarpBytes = 28 * 1024, kMostStages = 3;
  static constexpr int kControlBytes = 1024, kSharedBytes = kWarps * kWarpBytes + kControlBytes;
  static constexpr int kOutStride = kDim * 2 + 16;  // bytes of a row on its way out: neighbours begin in other banks
  // Tiles of keys in use or under way: all that the queries leave room for.
  static constexpr int stages(int row_tiles) { return (kWarpBytes - row_tiles * kQueryBytes) / kStageBytes; }
  static_assert(stages(1) == kMostStages && stages(2) == 2 && kSharedBytes <= 113 * 1024);
  static_assert(16 * kOutStride <= kStageBytes && kWarpBytes >= int(sizeof(RowScratch)));
};

// A request's rows of one kv head, or some of them, and the keys that they see. It lies in shared memory, as registers
// are few.
template <class S>
struct ShortRows {
  KeyAxis axis;
  int kv_head, group, row0, rows;  // rows: from row0 on
  int pool_end;                    // keys before it lie in the pool, at the position of their number
  KeyAxis::Row top, bottom;        // of the first and last row
  TileRange range;                 // of keys in the pool
  int seen_whole;                  // keys before it are seen by all rows

  __device__ ShortRows(const AttentionParams& p, int request, int head, int first)
      : axis(p, request), kv_head(head), group(p.heads / p.kv_heads), row0(first) {
    rows = min(S::kRows, axis.span.q_len * group - first);
    const bool stored = p.k_new.data == nullptr && !p.encoder && axis.span.phys0 == axis.ctx;
    pool_end = stored ? axis.ctx + axis.span.q_len : axis.ctx;
    top = axis.row(p, token_of(0)), bottom = axis.row(p, token_of(rows - 1));
    range = TileRange::of<S::kKeys>(p, axis, top, min(bottom.end, pool_end));
    const bool plain = !p.encoder && axis.span.hole_end == axis.span.hole_begin && p.window == kNoWindow;
    seen_whole = plain ? min(top.end, pool_end) : 0;
  }
  __device__ int token_of(int row) const { return (row0 + row) / group; }
  __device__ int head_of(int row) const { return kv_head * group + (row0 + row) % group; }
  __device__ int64_t query_at(const AttentionParams& p, int row) const {
    return (axis.span.q_off + token_of(row)) * p.q_token_stride + head_of(row) * p.q_head_stride;
  }
  __device__ int64_t out_at(const AttentionParams& p, int row) const {
    return (axis.span.q_off + token_of(row)) * p.out_token_stride + head_of(row) * p.out_head_stride;
  }
};

// Of a warp, behind the tiles of all.
template <class S>
struct ShortControl {
  uint64_t full[S::kMostStages];
  alignas(16) char rows[sizeof(ShortRows<S>)];
};

struct ShortCall {
  AttentionParams p;
  KVMaps maps;
};

#if __CUDA_ARCH__ >= 900

template <class S, int kTiles>
struct ShortWarp {
  using T = typename S::T;
  static constexpr int kStages = S::stages(kTiles);
  const ShortCall& call;
  const AttentionParams& p;
  const ShortRows<S>& rows;
  ShortControl<S>& control;
  char* shared;
  int lane;
  int first_page = -32, page = 0;  // page numbers, a lane one of 32
  // What rows carry from tile to tile.
  float value[kTiles][S::kDim / 8][4] = {};
  float largest[kTiles][2], sum[kTiles][2] = {};

  __device__ uint32_t tile_at(int stage) const { return shared_address(shared) + stage * S::kStageBytes; }
  __device__ uint32_t queries_at(int tile) const {
    return shared_address(shared) + S::kWarpBytes - (tile + 1) * S::kQueryBytes;
  }
  __device__ int my_row(int tile, int half) const { return tile * 16 + half * 8 + lane / 4; }
  // Where a row's chunk 2 d + i lies, if chunk i is at `first`: swizzling changes two bits, and there are columns.
  __device__ static uint32_t chunk_at(uint32_t first, int d) { return (first ^ d % 4 * 32) + d / 4 * 16 * 128; }

  __device__ int page_at(int index) {
    if (index < first_page || index >= first_page + 32) {
      first_page = index & ~31;
      const int last = (rows.pool_end - 1) >> p.page_shift;
      page = p.page_table[rows.axis.page_row * p.table_stride + min(first_page + lane, last)];
    }
    return __shfl_sync(0xffffffffu, page, index & 31);
  }
  // Asks for what the pool holds of the i-th tile of keys.
  __device__ void ask_for(int i, int stage) {
    const int first = rows.range.tile(i) * S::kKeys, box_rows = min(p.page_size, S::kKeys);
    const uint32_t full = shared_address(&control.full[stage]);
    if (lane == 0) barrier_expect(full, S::kStageBytes);
    for (int row = 0; row < S::kKeys; row += box_rows) {
      // Boxes behind the last are the last again: a tile is all of its bytes.
      const int key = min(first + row, (rows.pool_end - 1) & -box_rows), number = page_at(key >> p.page_shift);
      if (lane != 0) continue;
      const int slot = key & (p.page_size - 1);
#pragma unroll
      for (int c = 0; c < S::kDim / 64; ++c) {
        const uint32_t to = tile_at(stage) + c * S::kKeys * 128 + row * 128;
        copy_box(to, call.maps.k, c * 64, slot, rows.kv_head, number, full, kReadOnce);
        copy_box(to + S::kSideBytes, call.maps.v, c * 64, slot, rows.kv_head, number, full, kReadOnce);
      }
    }
  }
  __device__ void ask_for_queries() const {
    for (int i = lane; i < kTiles * 16 * S::kChunks; i += 32) {
      const int row = i / S::kChunks, c = i % S::kChunks;
      copy16(queries_at(row / 16) + column_swizzled(16, row % 16, c),
             static_cast<const T*>(p.q) + rows.query_at(p, min(row, rows.rows - 1)) + c * 8, c * 8 < p.head_dim);
    }
  }
  // Asks for keys from `first` on that the copy engine does not bring; zeros where there are none.
  __device__ void ask_for_new(int first, uint32_t tile) const {
    for (int i = lane; i < S::kKeys * S::kChunks; i += 32) {
      const int r = i / S::kChunks, c = i % S::kChunks, key = first + r;
      const bool valid = key < rows.bottom.end && key >= rows.top.first_new;
      KeyAxis::Place at{0, 0, false};
      if (valid) at = rows.axis.place(p, rows.kv_head, key);
      const auto* k = static_cast<const T*>(at.fresh ? p.k_new.data : p.k.data);
      const auto* v = static_cast<const T*>(at.fresh ? p.v_new.data : p.v.data);
      const bool k_valid = valid && c * 8 < p.head_dim, v_valid = valid && c * 8 < p.v_head_dim;
      const uint32_t to = tile + column_swizzled(S::kKeys, r, c);
      copy16(to, k + (k_valid ? at.k + c * 8 : 0), k_valid);
      copy16(to + S::kSideBytes, v + (v_valid ? at.v + c * 8 : 0), v_valid);
    }
  }
  // Zeros for values of the last tile behind what the pool holds: they may be NaN.
  __device__ void clear_values(int from, int stage) const {
    char* v = shared + stage * S::kStageBytes + S::kSideBytes;
    for (int i = lane; i < (S::kKeys - from) * S::kChunks; i += 32) {
      *reinterpret_cast<uint4*>(v + column_swizzled(S::kKeys, from + i / S::kChunks, i % S::kChunks)) = uint4{};
    }
    __syncwarp();
  }

  // A tile of keys; `first` is the first one's number, and none is seen from `end` on.
  __device__ void attend(uint32_t tile, int first, int end, bool masked) {
    float s[kTiles][2][4] = {};
    const uint32_t k_at = tile + column_swizzled(S::kKeys, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1),
                   a_row = column_swizzled(16, lane % 16, lane / 16), v_at = tile + S::kSideBytes + a_row;
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      uint32_t k[4];
      load_tiles(k, chunk_at(k_at, d));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        uint32_t q[4];
        load_tiles(q, chunk_at(queries_at(m) + a_row, d));
        mma16816<T>(s[m][0], q, k[0], k[1]);
        mma16816<T>(s[m][1], q, k[2], k[3]);
      }
    }
    uint32_t w[kTiles][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      scale(s[m]);
      if (masked) mask(m, first, end, s[m]);
      soften(m, s[m]);
#pragma unroll
      for (int i = 0; i < 4; ++i) w[m][i] = pack2<T>(s[m][i / 2][i % 2 * 2], s[m][i / 2][i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      uint32_t v[4];
      load_tiles_transposed(v, chunk_at(v_at, d));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        mma16816<T>(value[m][2 * d], w[m], v[0], v[1]);
        mma16816<T>(value[m][2 * d + 1], w[m], v[2], v[3]);
      }
    }
  }
  // Scores in base 2.
  __device__ void scale(float (&s)[2][4]) const {
    const float to_log2 = p.scale * kLog2e;
    if (p.cap > 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = p.cap * kLog2e * tanhf(s[i / 4][i % 4] * p.scale / p.cap);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) s[i / 4][i % 4] *= to_log2;
    }
  }
  __device__ void mask(int tile, int first, int end, float (&s)[2][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyAxis::Row row = rows.axis.row(p, rows.token_of(min(my_row(tile, half), rows.rows - 1)));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (key >= end || !rows.axis.sees(p, row, key)) s[i / 2][half * 2 + i % 2] = -INFINITY;
      }
    }
  }
  // Scores to weights in place. Weights are relative to a score that follows the largest only when that has risen by
  // more than 2^8, so that values are hardly ever multiplied again.
  __device__ void soften(int m, float (&s)[2][4]) {
    constexpr float kRise = 8;
    float here[2];
    bool rises = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = fmaxf(fmaxf(s[0][half * 2], s[0][half * 2 + 1]), fmaxf(s[1][half * 2], s[1][half * 2 + 1]));
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
      here[half] = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
      rises |= here[half] > largest[m][half] + kRise;
    }
    if (__any_sync(0xffffffffu, rises)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float next = fmaxf(largest[m][half], here[half]);
        const float keep = next == -INFINITY ? 1.0f : exp2_fast(largest[m][half] - next);
        largest[m][half] = next, sum[m][half] *= keep;
#pragma unroll
        for (int d = 0; d < S::kDim / 8; ++d) value[m][d][half * 2] *= keep, value[m][d][half * 2 + 1] *= keep;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = largest[m][half] == -INFINITY ? 0.0f : largest[m][half];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[i / 2][half * 2 + i % 2];
        sum[m][half] += x = exp2_fast(x - base);
      }
    }
  }

  // All keys that the rows see. New ones come first, while tiles of the pool are on their way; those of the last stage
  // follow. `phases`: a bit for each stage, of the barrier's phase that its next tile completes.
  __device__ void attend_all(uint32_t& phases) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) largest[m][0] = largest[m][1] = -INFINITY;
    const int count = rows.range.count, pool_end = rows.pool_end, end = rows.bottom.end;
    for (int i = 0; i < min(kStages - 1, count); ++i) ask_for(i, i);
    ask_for_queries();
    for (int first = max(pool_end, rows.top.first_new); first < end; first += S::kKeys) {
      ask_for_new(first, tile_at(kStages - 1));
      commit_copies();
      wait_copies<0>();
      __syncwarp();
      attend(tile_at(kStages - 1), first, end, true);
      __syncwarp();
    }
    commit_copies();
    wait_copies<0>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy engine writes where new keys were
    __syncwarp();
    if (count >= kStages) ask_for(kStages - 1, kStages - 1);
    for (int i = 0, stage = 0; i < count; ++i) {
      barrier_wait(shared_address(&control.full[stage]), phases >> stage & 1);
      phases ^= 1u << stage;
      const int first = rows.range.tile(i) * S::kKeys;
      if (first + S::kKeys > pool_end) clear_values(pool_end - first, stage);
      attend(tile_at(stage), first, pool_end, first + S::kKeys > rows.seen_whole);
      __syncwarp();
      if (i + kStages < count) ask_for(i + kStages, stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
  }
  // Returns whether a value is NaN.
  __device__ bool write() {
    bool nan = false;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      __syncwarp();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float all = quad_sum(sum[m][half]), by = all == 0 ? 0.0f : p.v_scale / all;
        const int row = my_row(m, half);
        char* to = shared + (row % 16) * S::kOutStride + lane % 4 * 4;
#pragma unroll
        for (int d = 0; d < S::kDim / 8; ++d) {
          const float x = value[m][d][half * 2] * by, y = value[m][d][half * 2 + 1] * by;
          nan |= isnan(x) || isnan(y);
          *reinterpret_cast<uint32_t*>(to + d * 16) = pack2<T>(x, y);
        }
        if (p.lse == nullptr || lane % 4 != 0 || row >= rows.rows) continue;
        p.lse[(rows.axis.span.q_off + rows.token_of(row)) * p.lse_stride + rows.head_of(row)] =
            PartSum{largest[m][half], all}.log_sum();
      }
      __syncwarp();
      for (int i = lane; i < 16 * S::kChunks; i += 32) {
        const int row = i / S::kChunks, c = i % S::kChunks;
        if (m * 16 + row >= rows.rows || c * 8 >= p.v_head_dim) continue;
        *reinterpret_cast<uint4*>(static_cast<T*>(p.out) + rows.out_at(p, m * 16 + row) + c * 8) =
            *reinterpret_cast<const uint4*>(shared + row * S::kOutStride + c * 16);
      }
    }
    return nan;
  }
};

template <class S, int kTiles>
__device__ inline bool attend_short_rows(const ShortCall& call, ShortControl<S>& control, char* shared,
                                         uint32_t& phases) {
  const ShortRows<S>& rows = *reinterpret_cast<const ShortRows<S>*>(control.rows);
  ShortWarp<S, kTiles> warp{call, call.p, rows, control, shared, static_cast<int>(threadIdx.x % 32)};
  warp.attend_all(phases);
  return warp.write();
}

template <class S>
__device__ inline void attend_short_block(const ShortCall& call, char* shared) {
  const AttentionParams& p = call.p;
  // The padding's request is the last, and may have more rows than others: it begins first.
  const int request = static_cast<int>(gridDim.y - 1 - blockIdx.y), warp = static_cast<int>(uniform(threadIdx.x / 32)),
            lane = threadIdx.x % 32, first_head = static_cast<int>(blockIdx.x) * S::kWarps;
  static_assert(sizeof(ShortControl<S>) * S::kWarps <= S::kControlBytes);
  ShortControl<S>& control = reinterpret_cast<ShortControl<S>*>(shared + S::kWarps * S::kWarpBytes)[warp];
  if (lane == 0) {
    for (uint64_t& full : control.full) barrier_init(shared_address(&full), 1);
    fence_barrier_init();
  }
  wait_for_previous();
  const int rows = first_head + warp < p.kv_heads ? p.spans[request].q_len * (p.heads / p.kv_heads) : 0;
  uint32_t phases = 0;
  bool nan = false;
  for (int row0 = 0; row0 < rows; row0 += S::kRows) {
    if (lane == 0) *reinterpret_cast<ShortRows<S>*>(control.rows) = ShortRows<S>(p, request, first_head + warp, row0);
    __syncwarp();
    char* mine = shared + warp * S::kWarpBytes;
    nan |= rows - row0 <= 16 ? attend_short_rows<S, 1>(call, control, mine, phases)
                             : attend_short_rows<S, 2>(call, control, mine, phases);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // tiles of the next rows come where these left by
    __syncwarp();
  }
  let_next_start();
  if (!__syncthreads_or(nan)) return;
  // A value that is infinite or NaN spoils rows that do not see it, since 0 times it is NaN: they are done again.
  const KeySpan& span = p.spans[request];
  const int group = p.heads / p.kv_heads, end = min(first_head + S::kWarps, p.kv_heads) * group;
  for (int token = span.q_off; token < span.q_off + span.q_len; ++token) {
    for (int head = first_head * group; head < end; ++head) {
      attend_row(p, request, token, head, *reinterpret_cast<RowScratch*>(shared), RowWrite::kWhereNaN,
                 {1, static_cast<int>(threadIdx.x)});
    }
  }
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kResident) attend_short(const __grid_constant__ ShortCall call) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) char shared[];
  attend_short_block<S>(call, shared);
#endif
}

}  // namespace headrace::cuda
