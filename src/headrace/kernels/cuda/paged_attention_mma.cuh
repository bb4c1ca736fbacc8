// Attention of 16-bit floats on tensor cores (mma.sync). A block takes kRows rows, packed as (token, query head of the
// group), so that one pass over K and V serves the whole group; blocks that share rows take parts of their keys, and a
// second kernel joins the parts. Source: Dao 2023, FlashAttention-2; Dao et al. 2023, Flash-Decoding.
#pragma once
#include <algorithm>

#include "headrace/kernels/cuda/attention_mma_parts.cuh"
#include "headrace/kernels/cuda/mma.cuh"
#include "headrace/kernels/cuda/stream.h"
#include "headrace/kernels/cuda/tiles.cuh"

namespace headrace::cuda {

constexpr float kLog2e = 1.4426950408889634f;

// What the pool holds: numbers of the queries' type, or codes of FP8, which are copied as they are and unpacked to a
// tile of the queries' type.
enum class PoolOf : uint8_t { kFloats, kCodes };

// kRowTiles tiles of 16 rows for each of kWarpsM warps; kWarpsN warps share a tile's keys.
template <class T_, PoolOf kPool_, int kDim_, int kWarpsM_, int kWarpsN_, int kRowTiles_, int kKeys_, int kStages_>
struct MmaShape {
  using T = T_;
  static constexpr bool kCodes = kPool_ == PoolOf::kCodes;
  static constexpr int kDim = kDim_, kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kRowTiles = kRowTiles_, kKeys = kKeys_,
                       kStages = kStages_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN, kRows = 16 * kWarpsM * kRowTiles, kChunks = kDim / 8;
  static constexpr int kWarpKeys = kKeys / kWarpsN;
  static constexpr bool kStrict = kWarpsN == 1;  // whether strict mode takes it
  static constexpr int kQBytes = kRows * kDim * 2, kTileBytes = kKeys * kDim * 2;
  static constexpr int kCodeChunks = kDim / 16, kCodeBytes = kKeys * kDim;  // of one side
  static constexpr int kStageBytes = 2 * (kCodes ? kCodeBytes : kTileBytes);
  static constexpr int kPipeBytes = kQBytes + kStages * kStageBytes + (kCodes ? 2 * kTileBytes : 0);
  static constexpr int kMergeBytes = kWarpsN > 1 ? kWarpsN* kRows*(kDim + 2) * 4 : 0;
  static constexpr int kSharedBytes = (kPipeBytes > kMergeBytes ? kPipeBytes : kMergeBytes) > int(sizeof(RowScratch))
                                          ? (kPipeBytes > kMergeBytes ? kPipeBytes : kMergeBytes)
                                          : int(sizeof(RowScratch));
  static_assert(kThreads >= 128 && kWarpKeys % 16 == 0);
};

template <class S>
struct MmaBlock {
  using T = typename S::T;
  const AttentionParams& p;
  const KeyAxis& axis;
  char* shared;
  int kv_head, row0, rows, group, lane, warp_m, warp_n;
  KeyAxis::Row top, bottom;  // of the block's first and last row

  // Of codes there is one tile of floats, behind the stages.
  __device__ char* k_tile(int stage) const {
    return shared + S::kQBytes + (S::kCodes ? S::kStages : stage) * S::kStageBytes;
  }
  __device__ char* v_tile(int stage) const { return k_tile(stage) + S::kTileBytes; }
  __device__ char* k_codes(int stage) const { return shared + S::kQBytes + stage * S::kStageBytes; }
  __device__ char* v_codes(int stage) const { return k_codes(stage) + S::kCodeBytes; }
  __device__ int my_row(int tile, int half) const { return (warp_m * S::kRowTiles + tile) * 16 + half * 8 + lane / 4; }
  __device__ int token_of(int row) const { return (row0 + row) / group; }
  __device__ int head_of(int row) const { return kv_head * group + (row0 + row) % group; }

  __device__ void load_queries() const {
    const uint32_t to = shared_address(shared);
    for (int i = threadIdx.x; i < S::kRows * S::kChunks; i += S::kThreads) {
      const int r = i / S::kChunks, c = i % S::kChunks;
      const bool valid = row0 + r < rows && c * 8 < p.head_dim;
      const int64_t at =
          valid ? (axis.span.q_off + token_of(r)) * p.q_token_stride + head_of(r) * p.q_head_stride + c * 8 : 0;
      copy16(to + swizzled<S::kChunks>(r, c), static_cast<const T*>(p.q) + at, valid);
    }
  }

  // Keys that no row of the block sees are zeros: what lies there may be NaN.
  __device__ bool readable(int key) const {
    if (key >= bottom.end) return false;
    if (key >= axis.ctx) return key >= top.first_new;
    return key >= top.first && (p.encoder || axis.span.sees_cached(key));
  }
  __device__ void load_keys(int tile, int stage) const {
    const uint32_t k_to = shared_address(k_tile(stage)), v_to = shared_address(v_tile(stage));
#pragma unroll 4
    for (int i = threadIdx.x; i < S::kKeys * S::kChunks; i += S::kThreads) {
      const int r = i / S::kChunks, c = i % S::kChunks, key = tile * S::kKeys + r;
      KeyAxis::Place at{0, 0, false};
      const bool valid = readable(key);
      if (valid) at = axis.place(p, kv_head, key);
      const uint32_t to = swizzled<S::kChunks>(r, c);
      copy_chunk(k_to + to, v_to + to, at, c, valid);
    }
  }
  // Chunk `c` of a key and its value; zeros unless `valid`.
  __device__ void copy_chunk(uint32_t k_to, uint32_t v_to, const KeyAxis::Place& at, int c, bool valid) const {
    const auto* k = static_cast<const T*>(at.fresh ? p.k_new.data : p.k.data);
    const auto* v = static_cast<const T*>(at.fresh ? p.v_new.data : p.v.data);
    const bool k_valid = valid && c * 8 < p.head_dim, v_valid = valid && c * 8 < p.v_head_dim;
    copy16(k_to, k + (k_valid ? at.k + c * 8 : 0), k_valid);
    copy16(v_to, v + (v_valid ? at.v + c * 8 : 0), v_valid);
  }

  // Sixteen codes from the pool, or of new numbers as they would be stored.
  __device__ static void load_codes(char* to, const PagedSide& side, int64_t at, bool fresh, bool valid, float scale) {
    if (!fresh || !valid) return copy16(shared_address(to), static_cast<const char*>(side.data) + at, valid);
    uint32_t words[4];
    const T* from = static_cast<const T*>(side.data) + at;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = static_cast<float>(from[i * 4 + j]);
      words[i] = floats_to_e4m3(x[0], x[1], scale) | floats_to_e4m3(x[2], x[3], scale) << 16;
    }
    *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
  }
  __device__ void load_codes(int tile, int stage) const {
#pragma unroll 2
    for (int i = threadIdx.x; i < S::kKeys * S::kCodeChunks; i += S::kThreads) {
      const int r = i / S::kCodeChunks, d = i % S::kCodeChunks * 16, key = tile * S::kKeys + r;
      KeyAxis::Place at{0, 0, false};
      const bool valid = readable(key), k_valid = valid && d < p.head_dim, v_valid = valid && d < p.v_head_dim;
      if (valid) at = axis.place(p, kv_head, key);
      load_codes(k_codes(stage) + i * 16, at.fresh ? p.k_new : p.k, k_valid ? at.k + d : 0, at.fresh, k_valid,
                 p.k_scale);
      load_codes(v_codes(stage) + i * 16, at.fresh ? p.v_new : p.v, v_valid ? at.v + d : 0, at.fresh, v_valid,
                 p.v_scale);
    }
  }
  // A thread unpacks what it copied itself: its own copies are all that it waits for.
  __device__ void unpack_codes(int stage) const {
#pragma unroll 2
    for (int i = threadIdx.x; i < S::kKeys * S::kCodeChunks; i += S::kThreads) {
      const int r = i / S::kCodeChunks, c = i % S::kCodeChunks;
      const auto unpack = [&](const char* from, char* to) {
        const uint4 codes = *reinterpret_cast<const uint4*>(from + i * 16);
        const uint4 low = e4m3_to_floats<T>(codes.x, codes.y), high = e4m3_to_floats<T>(codes.z, codes.w);
        *reinterpret_cast<uint4*>(to + swizzled<S::kChunks>(r, 2 * c)) = low;
        *reinterpret_cast<uint4*>(to + swizzled<S::kChunks>(r, 2 * c + 1)) = high;
      };
      unpack(k_codes(stage), k_tile(stage));
      unpack(v_codes(stage), v_tile(stage));
    }
  }

  __device__ void load(int tile, int stage) const {
    if constexpr (S::kCodes) {
      load_codes(tile, stage);
    } else {
      load_keys(tile, stage);
    }
  }
};

// Adds up a row's sum over the four lanes that share it.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <class S>
struct MmaState {
  float value[S::kRowTiles][S::kDim / 8][4];
  float largest[S::kRowTiles][2], sum[S::kRowTiles][2];
  KeyAxis::Row row[S::kRowTiles][2];
};

// The state of rows that have seen nothing yet. `last`: the block's last row.
template <class S>
__device__ inline void begin_rows(const MmaBlock<S>& b, int last, MmaState<S>& state) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.largest[m][half] = -INFINITY, state.sum[m][half] = 0;
      const int row = min(b.my_row(m, half), last);
      state.row[m][half] = b.axis.row(b.p, b.token_of(row));
    }
#pragma unroll
    for (int d = 0; d < S::kDim / 8; ++d) {
      state.value[m][d][0] = state.value[m][d][1] = state.value[m][d][2] = state.value[m][d][3] = 0;
    }
  }
}

// Strict mode: a row's sums over the groups before. They lie in local memory, since registers are full.
template <class S>
struct Stash {
  float value[S::kRowTiles][S::kDim / 8][4];
  PartSum sum[S::kRowTiles][2];

  __device__ void clear() {
    for (int m = 0; m < S::kRowTiles; ++m) sum[m][0] = sum[m][1] = {};
  }
  // Adds the sums of groups before to a group's.
  __device__ void add_to(MmaState<S>& state) const {
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const PartSum before = sum[m][half], mine{state.largest[m][half], quad_sum(state.sum[m][half])};
        const PartSum all = before.joined(mine);
        const float a = before.factor(all), b = mine.factor(all);
        state.largest[m][half] = all.largest;
        state.sum[m][half] = threadIdx.x % 4 == 0 ? all.sum : 0;  // of the four lanes that share the row
        if (before.sum == 0) continue;
#pragma unroll
        for (int d = 0; d < S::kDim / 8; ++d) {
#pragma unroll
          for (int j = half * 2; j < half * 2 + 2; ++j) {
            state.value[m][d][j] = PartSum::joined_value(value[m][d][j], a, state.value[m][d][j], b);
          }
        }
      }
    }
  }
  // Takes a group's sums, with those before, and begins anew.
  __device__ void take(MmaState<S>& state) {
    add_to(state);
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] = {state.largest[m][half], quad_sum(state.sum[m][half])};
        state.largest[m][half] = -INFINITY, state.sum[m][half] = 0;
      }
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
#pragma unroll
        for (int j = 0; j < 4; ++j) value[m][d][j] = state.value[m][d][j], state.value[m][d][j] = 0;
      }
    }
  }
};

template <class S>
__device__ inline void scores_of(const MmaBlock<S>& b, int stage, float (&s)[S::kRowTiles][S::kWarpKeys / 8][4]) {
  const uint32_t q_at = shared_address(b.shared), k_at = shared_address(b.k_tile(stage));
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < S::kWarpKeys / 8; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
  }
#pragma unroll
  for (int d = 0; d < S::kDim / 16; ++d) {
    uint32_t q[S::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      const int r = (b.warp_m * S::kRowTiles + m) * 16 + b.lane % 16;
      load_tiles(q[m], q_at + swizzled<S::kChunks>(r, d * 2 + b.lane / 16));
    }
#pragma unroll
    for (int n = 0; n < S::kWarpKeys / 16; ++n) {
      uint32_t k[4];
      const int r = b.warp_n * S::kWarpKeys + n * 16 + (b.lane & 7) + (b.lane >> 4) * 8;
      load_tiles(k, k_at + swizzled<S::kChunks>(r, d * 2 + (b.lane >> 3 & 1)));
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
        mma16816<typename S::T>(s[m][2 * n], q[m], k[0], k[1]);
        mma16816<typename S::T>(s[m][2 * n + 1], q[m], k[2], k[3]);
      }
    }
  }
}

// Scores to weights in place; brings the state to the new largest scores.
template <class S>
__device__ inline void soften(const MmaBlock<S>& b, int tile, bool masked, MmaState<S>& state,
                              float (&s)[S::kRowTiles][S::kWarpKeys / 8][4]) {
  const AttentionParams& p = b.p;
  const float to_log2 = p.scale * kLog2e;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = state.largest[m][half];
#pragma unroll
      for (int n = 0; n < S::kWarpKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& x = s[m][n][half * 2 + j];
          x = p.cap > 0 ? p.cap * kLog2e * tanhf(x * p.scale / p.cap) : x * to_log2;
          const int key = tile * S::kKeys + b.warp_n * S::kWarpKeys + n * 8 + b.lane % 4 * 2 + j;
          if (masked && !b.axis.sees(p, state.row[m][half], key)) x = -INFINITY;
          largest = fmaxf(largest, x);
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const float base = largest == -INFINITY ? 0.0f : largest;
      const float keep = exp2f(state.largest[m][half] - base);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < S::kWarpKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) sum += s[m][n][half * 2 + j] = exp2f(s[m][n][half * 2 + j] - base);
      }
      state.largest[m][half] = largest;
      state.sum[m][half] = fmaf(state.sum[m][half], keep, sum);
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
        state.value[m][d][half * 2] *= keep;
        state.value[m][d][half * 2 + 1] *= keep;
      }
    }
  }
}

template <class S>
__device__ inline void add_values(const MmaBlock<S>& b, int stage, const float (&s)[S::kRowTiles][S::kWarpKeys / 8][4],
                                  MmaState<S>& state) {
  using T = typename S::T;
  const uint32_t v_at = shared_address(b.v_tile(stage));
#pragma unroll
  for (int n = 0; n < S::kWarpKeys / 16; ++n) {
    uint32_t w[S::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      w[m][0] = pack2<T>(s[m][2 * n][0], s[m][2 * n][1]);
      w[m][1] = pack2<T>(s[m][2 * n][2], s[m][2 * n][3]);
      w[m][2] = pack2<T>(s[m][2 * n + 1][0], s[m][2 * n + 1][1]);
      w[m][3] = pack2<T>(s[m][2 * n + 1][2], s[m][2 * n + 1][3]);
    }
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      uint32_t v[4];
      const int r = b.warp_n * S::kWarpKeys + n * 16 + b.lane % 16;
      load_tiles_transposed(v, v_at + swizzled<S::kChunks>(r, d * 2 + b.lane / 16));
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
        mma16816<T>(state.value[m][2 * d], w[m], v[0], v[1]);
        mma16816<T>(state.value[m][2 * d + 1], w[m], v[2], v[3]);
      }
    }
  }
}

// Where a row's result goes: final, or one part of it.
struct RowResult {
  const AttentionParams& p;
  const SplitPlan& plan;
  int part;

  __device__ void state(int token, int head, float largest, float sum) const {
    if (plan.values != nullptr) {
      plan.states[(int64_t{token} * p.heads + head) * plan.parts + part] = make_float2(largest, sum);
    } else if (p.lse != nullptr) {
      p.lse[token * p.lse_stride + head] = log_sum(largest, sum);
    }
  }
  // Two neighbouring values, divided by the sum when final. NaN comes back as true.
  template <class T>
  __device__ bool values(int token, int head, int d, float x, float y, float sum) const {
    if (d >= p.v_head_dim) return false;
    if (plan.values != nullptr) {
      float* to = plan.values + ((int64_t{token} * p.heads + head) * plan.parts + part) * p.v_head_dim + d;
      to[0] = x;
      if (d + 1 < p.v_head_dim) to[1] = y;
      return false;
    }
    const float scale = sum == 0 ? 0.0f : p.v_scale / sum;
    T* to = static_cast<T*>(p.out) + token * p.out_token_stride + head * p.out_head_stride + d;
    *reinterpret_cast<uint32_t*>(to) = pack2<T>(x * scale, y * scale);
    return isnan(x * scale) || isnan(y * scale);
  }
};

// The warps that shared the keys join their states through shared memory and write. Returns whether a value is NaN.
template <class S>
__device__ inline bool write_joined(const MmaBlock<S>& b, MmaState<S>& state, const RowResult& result) {
  float* values = reinterpret_cast<float*>(b.shared);
  float* states = values + S::kWarpsN * S::kRows * S::kDim;
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = b.my_row(0, half), at = b.warp_n * S::kRows + row;
    const float sum = quad_sum(state.sum[0][half]);
    if (b.lane % 4 == 0) states[at * 2] = state.largest[0][half], states[at * 2 + 1] = sum;
#pragma unroll
    for (int d = 0; d < S::kDim / 8; ++d) {
      float* to = values + at * S::kDim + d * 8 + b.lane % 4 * 2;
      to[0] = state.value[0][d][half * 2], to[1] = state.value[0][d][half * 2 + 1];
    }
  }
  __syncthreads();
  bool nan = false;
  for (int i = threadIdx.x; i < S::kRows * S::kDim / 2; i += S::kThreads) {
    const int row = i / (S::kDim / 2), d = i % (S::kDim / 2) * 2;
    if (b.row0 + row >= b.rows) break;
    float largest = -INFINITY, sum = 0, x = 0, y = 0;
#pragma unroll
    for (int w = 0; w < S::kWarpsN; ++w) largest = fmaxf(largest, states[(w * S::kRows + row) * 2]);
    const float base = largest == -INFINITY ? 0.0f : largest;
#pragma unroll
    for (int w = 0; w < S::kWarpsN; ++w) {
      const int at = w * S::kRows + row;
      const float factor = exp2f(states[at * 2] - base);
      sum = fmaf(factor, states[at * 2 + 1], sum);
      x = fmaf(factor, values[at * S::kDim + d], x);
      y = fmaf(factor, values[at * S::kDim + d + 1], y);
    }
    const int token = b.axis.span.q_off + b.token_of(row), head = b.head_of(row);
    if (d == 0) result.state(token, head, largest, sum);
    nan |= result.values<typename S::T>(token, head, d, x, y, sum);
  }
  return nan;
}

template <class S>
__device__ inline bool write_own(const MmaBlock<S>& b, MmaState<S>& state, const RowResult& result) {
  bool nan = false;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(state.sum[m][half]);
      const int row = b.my_row(m, half);
      if (b.row0 + row >= b.rows) continue;
      const int token = b.axis.span.q_off + b.token_of(row), head = b.head_of(row);
      if (b.lane % 4 == 0) result.state(token, head, state.largest[m][half], sum);
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
        nan |= result.values<typename S::T>(token, head, d * 8 + b.lane % 4 * 2, state.value[m][d][half * 2],
                                            state.value[m][d][half * 2 + 1], sum);
      }
    }
  }
  return nan;
}

// A value that is infinite or NaN spoils rows that do not see it, since 0 times it is NaN. Such elements, which real
// models do not have, are done again row by row.
template <class S>
__device__ inline void redo_rows(const MmaBlock<S>& b, int request) {
  for (int row = 0; row < S::kRows && b.row0 + row < b.rows; ++row) {
    attend_row(b.p, request, b.axis.span.q_off + b.token_of(row), b.head_of(row),
               *reinterpret_cast<RowScratch*>(b.shared), RowWrite::kWhereNaN, {1, static_cast<int>(threadIdx.x)});
  }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads) attend_tiles(AttentionParams p, SplitPlan plan) {
  extern __shared__ __align__(128) char shared[];
  const int group = p.heads / p.kv_heads, tile_index = gridDim.x - 1 - blockIdx.x;  // long causal tiles first
  const TilePlace place = locate_tile(p.spans, p.requests, S::kRows, tile_index, group);
  if (place.request < 0) return;
  const KeyAxis axis(p, place.request);
  MmaBlock<S> b{p, axis, shared, static_cast<int>(blockIdx.y), place.tile * S::kRows, axis.span.q_len * group, group};
  b.lane = threadIdx.x % 32;
  b.warp_m = threadIdx.x / 32 % S::kWarpsM, b.warp_n = threadIdx.x / 32 / S::kWarpsM;
  b.top = axis.row(p, b.token_of(0));
  const int last = min(b.row0 + S::kRows, b.rows) - 1 - b.row0;
  b.bottom = axis.row(p, b.token_of(last));
  const TileRange range = TileRange::of<S::kKeys>(p, axis, b.top, b.bottom.end);
  const int part = blockIdx.z;
  PartTiles tiles(range, plan, part);
  const int begin = tiles.begin, end = tiles.end;
  if (part > 0 && begin >= end) return;  // part 0 writes rows that see nothing

  MmaState<S> state;
  begin_rows(b, last, state);

  b.load_queries();
#pragma unroll
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (begin + i < end) b.load(range.tile(begin + i), i);
    commit_copies();
  }
  const bool plain = !p.encoder && axis.span.hole_end == axis.span.hole_begin && p.window == kNoWindow;
  const bool has_rows = b.row0 + b.warp_m * S::kRowTiles * 16 < b.rows;
  Stash<S> local, *stash = &local;
  if constexpr (S::kStrict) {
    asm volatile("" : "+l"(stash));  // the compiler does not know any more that these could be registers
    stash->clear();
  }
  for (int i = begin, stage = 0; i < end; ++i) {
    wait_copies<S::kStages - 2>();
    __syncthreads();
    const int ahead = i + S::kStages - 1;
    if (ahead < end) b.load(range.tile(ahead), (stage + S::kStages - 1) % S::kStages);
    commit_copies();
    if constexpr (S::kCodes) {
      b.unpack_codes(stage);
      __syncthreads();
    }
    if (has_rows) {
      const int tile = range.tile(i);
      const bool masked = !plain || (tile + 1) * S::kKeys > b.top.end;
      float s[S::kRowTiles][S::kWarpKeys / 8][4];
      scores_of(b, stage, s);
      soften(b, tile, masked, state, s);
      add_values(b, stage, s, state);
    }
    stage = (stage + 1) % S::kStages;
    if constexpr (S::kStrict) {
      if (i + 1 == tiles.cut && i + 1 < end) {
        stash->take(state);
        tiles.next_cut(range, plan);
      }
    }
  }
  wait_copies<0>();
  if constexpr (S::kStrict) {
    if (plan.group_tiles != 0) stash->add_to(state);
  }
  const RowResult result{p, plan, part};
  bool nan;
  if constexpr (S::kWarpsN > 1) {
    nan = write_joined(b, state, result);
  } else {
    nan = write_own(b, state, result);
  }
  if (__syncthreads_or(nan) && threadIdx.x < 128) redo_rows(b, place.request);
}

template <class S>
int blocks_per_sm() {
  static const int blocks = [] {
    check_cuda(cudaFuncSetAttribute(attend_tiles<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
               "paged_attention: shared memory");
    int count = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, attend_tiles<S>, S::kThreads, S::kSharedBytes),
               "paged_attention: occupancy");
    return count > 0 ? count : 1;
  }();
  return blocks;
}

// Parts so that the device is full, as far as keys and scratch memory allow; in strict mode a part for each group,
// where blocks are few.
template <class S>
SplitPlan split_plan(const AttentionParams& p, const AttentionShape& shape, int64_t tiles, const Stream& stream) {
  SplitPlan plan{.min_tiles = 4};
  const bool strict = shape.determinism == Determinism::kStrict;
  if (strict) plan.group_tiles = kGroupKeys / S::kKeys;
  const int64_t blocks = tiles * p.kv_heads, wanted = int64_t{stream.num_sms} * blocks_per_sm<S>();
  if (blocks * 2 > wanted) return plan;
  const int64_t most_tiles = (int64_t{shape.max_keys} + S::kKeys - 1) / S::kKeys;
  const int64_t rows = int64_t{p.tokens} * p.heads, row_bytes = (p.v_head_dim + 2) * int64_t{sizeof(float)};
  const int64_t fits = static_cast<int64_t>(stream.scratch_bytes) / (rows * row_bytes);
  const int64_t groups = most_tiles / (kGroupKeys / S::kKeys) + 1;  // that any tiles of a row can touch
  if (strict && (groups > fits || groups > 65535)) return plan;
  const int64_t parts =
      strict ? groups
             : std::min({wanted / blocks, (most_tiles + plan.min_tiles - 1) / plan.min_tiles, fits, int64_t{128}});
  if (parts < 2) return plan;
  plan.parts = static_cast<int>(parts);
  plan.states = static_cast<float2*>(stream.scratch);
  plan.values = reinterpret_cast<float*>(plan.states + rows * parts);
  return plan;
}

template <class S>
void launch(const AttentionParams& p, const AttentionShape& shape, int64_t tiles, const Stream& stream) {
  const SplitPlan plan = split_plan<S>(p, shape, tiles, stream);
  blocks_per_sm<S>();
  if (plan.values != nullptr) {  // parts without keys stay at zero
    check_cuda(cudaMemsetAsync(plan.states, 0, static_cast<size_t>(p.tokens) * p.heads * plan.parts * sizeof(float2),
                               stream.handle),
               "paged_attention: clearing states");
  }
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(plan.parts));
  attend_tiles<S><<<grid, S::kThreads, S::kSharedBytes, stream.handle>>>(p, plan);
  if (plan.values != nullptr) {
    join_parts<typename S::T>
        <<<dim3(static_cast<unsigned>(p.tokens), static_cast<unsigned>(p.heads)), 128, 0, stream.handle>>>(p, plan);
  }
  check_launch("paged_attention");
}

// Strict mode takes one shape for every row, so that a row's sums have one order however it is batched.
template <class T, int kDim, int kDecodeStages, int kTallWarps, int kStages, PoolOf kPool = PoolOf::kFloats>
void launch_dim(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  using Decode = MmaShape<T, kPool, kDim, 1, 4, 1, 64, kDecodeStages>;
  using Small = MmaShape<T, kPool, kDim, 4, 1, 1, 64, kStages>;
  using Tall = MmaShape<T, kPool, kDim, kTallWarps, 1, 1, 64, kStages>;
  if (shape.determinism == Determinism::kFast && shape.max_rows <= 16) {
    launch<Decode>(p, shape, shape.tiles16, stream);
  } else if (kTallWarps == 4 || shape.max_rows <= 64) {
    launch<Small>(p, shape, shape.tiles64, stream);
  } else {
    launch<Tall>(p, shape, shape.tiles128, stream);
  }
}

}  // namespace headrace::cuda
