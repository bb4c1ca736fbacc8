// Batch-invariant GEMM by WGMMA (sm_90a) for large M, in the fixed split-K order of gemm_common.cuh. A row has the bits
// of skinny_gemm, because WGMMA adds the same 16 elements to a sum as mma.sync does, to the bit.
//
// Persistent CTAs take tiles of kRows rows of x by kColumns rows of W. One producer thread fills a TMA pipeline with
// stages of 64 elements of K, split by split. Two ping-pong warpgroups multiply 64 rows each, up to two stages a turn.
// So one adds a split's sums to the totals, or writes results, while the other multiplies.
#pragma once
#include "headrace/ops/cuda/arch/pairs.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/arch/wgmma_widths.cuh"
#include "headrace/ops/cuda/gemm/gemm.h"
#include "headrace/ops/cuda/gemm/gemm_common.cuh"
#include "headrace/ops/cuda/gemm/sm90/ping_pong.cuh"

namespace headrace::cuda::batch_invariant {

inline constexpr int kDepth = kPartLen, kRowBytes = kDepth * 2;  // elements of K in a stage: of one split
inline constexpr int kGroups = PingPong::kGroups, kGroupRows = 64, kRows = kGroups * kGroupRows, kColumns = 192,
                     kBoxRows = 96;
inline constexpr int kTiles = kColumns / 8, kStages = 5;
inline constexpr int kGroupBytes = kGroupRows * kRowBytes, kXBytes = kGroups * kGroupBytes;
inline constexpr int kBoxBytes = kBoxRows * kRowBytes, kStageBytes = kXBytes + kColumns * kRowBytes;
inline constexpr int kThreads = (1 + kGroups) * 128, kSharedBytes = kStages * (kStageBytes + 16);

struct Params {
  CUtensorMap x, weights[2];  // [K, M] and [K, N]
  Rows y, residual;           // y: of x's dtype, or float32 without residual; the residual's data may be null
  const void* bias;           // of x's dtype, or null
  int rows, out, in;
  int weight_columns;  // columns of a tile that one weight has: kColumns, or half of it for SwiGLU
  int row_tiles, column_tiles;
};

struct Shared {
  uint32_t stages, full, empty;  // addresses
  __device__ uint32_t x(int stage) const { return stages + stage * kStageBytes; }
  __device__ uint32_t weights(int stage) const { return x(stage) + kXBytes; }
};

struct Producer {
  const Params& p;
  Shared shared;

  __device__ void run() const {
    PipelineState<kStages> at;
    for (int t = blockIdx.x; t < p.row_tiles * p.column_tiles; t += gridDim.x) {
      const GemmTile tile = gemm_tile(p.row_tiles, p.column_tiles, t);
      for (int part = 0; part < kSegments; ++part) {
        for (int k = part * kPartLen; k < p.in; k += kPassLen, at.next()) fill(tile, k, at);
      }
    }
  }

 private:
  // Zeros past the ends.
  __device__ void fill(const GemmTile& tile, int k, const PipelineState<kStages>& at) const {
    barrier_wait(shared.empty + at.stage * 8, at.phase ^ 1);
    const uint32_t full = shared.full + at.stage * 8, weights = shared.weights(at.stage);
    barrier_expect(full, kStageBytes);
    tma_load(shared.x(at.stage), p.x, k, tile.row * kRows, 0, 0, full);
    const int first = tile.column * p.weight_columns, combined = p.weight_columns < kColumns;
    tma_load(weights, p.weights[0], k, first, 0, 0, full);
    tma_load(weights + kBoxBytes, p.weights[combined], k, combined ? first : first + kBoxRows, 0, 0, full);
  }
};

// Transposes 4 x 4 words of four neighbouring lanes.
__device__ inline void transpose_quad(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

template <class T>
struct Consumer : PingPong {
  const Params& p;
  Shared shared;

  __device__ void run() const {
    PipelineState<kStages> at;
    if (group == 1) pass_turn();
    for (int t = blockIdx.x; t < p.row_tiles * p.column_tiles; t += gridDim.x) {
      const GemmTile tile = gemm_tile(p.row_tiles, p.column_tiles, t);
      float totals[kTiles][4] = {};
      multiply(at, totals);
      write(totals, tile.row * kRows + group * kGroupRows + warp * 16 + lane / 4, tile.column);
    }
    if (group == 0) take_turn();
  }

 private:
  __device__ void multiply(PipelineState<kStages>& at, float (&totals)[kTiles][4]) const {
    float sums[kTiles][4] = {};
    for (int part = 0; part < kSegments; ++part) {
      Add add = Add::kNo;
      for (int k = part * kPartLen; k < p.in; k += 2 * kPassLen) {
        take_turn();
        const int before = at.stage;
        multiply_stage(at, sums, add);
        add = Add::kYes;
        const bool two = k + kPassLen < p.in;
        if (two) multiply_stage(at, sums, add);
        pass_turn();
        if (two) {
          wgmma_wait<1>();
          release(shared.empty + before * 8);
        }
        wgmma_wait<0>();
        hold(sums);
        release(shared.empty + (two ? (before + 1 == kStages ? 0 : before + 1) : before) * 8);
      }
      if (add == Add::kNo) break;  // this split and those after it are empty
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) totals[i][j] += sums[i][j];
      }
    }
  }
  __device__ void multiply_stage(PipelineState<kStages>& at, float (&sums)[kTiles][4], Add add) const {
    barrier_wait(shared.full + at.stage * 8, at.phase);
    const uint32_t x = uniform(operand_low(shared.x(at.stage) + group * kGroupBytes, 0));
    const uint32_t w = uniform(operand_low(shared.weights(at.stage), 0));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      wgmma_shared<T>(sums, operand(x + k * 2), operand(w + k * 2), k == 0 ? add : Add::kYes);
    }
    wgmma_commit();
    at.next();
  }

  // A lane has columns 2 (lane % 4) and the next of each tile of 8, of rows `row` and row + 8.
  __device__ void write(float (&v)[kTiles][4], int row, int column_tile) const {
    const int first = column_tile * p.weight_columns;
    if (p.weight_columns == kColumns) return write_tiles(v, row, first);
    float combined[kTiles / 2][4];
    if (p.y.type == DType::kF32) {
      combine(v, combined, [](float x) { return silu(x); });
    } else {
      combine(v, combined, [](float x) { return quick_silu(x); });
    }
    write_tiles(combined, row, first);
  }
  template <class Silu>
  __device__ static void combine(const float (&v)[kTiles][4], float (&combined)[kTiles / 2][4], const Silu& silu) {
#pragma unroll
    for (int i = 0; i < kTiles / 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) combined[i][j] = silu(v[i][j]) * v[i + kTiles / 2][j];
    }
  }
  template <int kCount>
  __device__ void write_tiles(float (&v)[kCount][4], int row, int first) const {
    if (p.bias != nullptr) add_bias(v, first);  // loads issued at once, as for the residual
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int at = row + high * 8;
      if (p.y.type == DType::kF32) {
        write_pairs(v, high, at, first + lane % 4 * 2);
      } else {
        if (p.residual.data != nullptr) add_residual(v, high, at, first + lane % 4 * 8);
        write_pieces(v, high, at, first + lane % 4 * 8);
      }
    }
  }
  template <int kCount>
  __device__ void add_bias(float (&v)[kCount][4], int first) const {
    const T* bias = static_cast<const T*>(p.bias) + first + lane % 4 * 2;
    uint32_t words[kCount] = {};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (first + i * 8 < p.out) words[i] = __ldg(reinterpret_cast<const uint32_t*>(bias + i * 8));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float2 pair = unpack2<T>(words[i]);
      v[i][0] += pair.x, v[i][1] += pair.y, v[i][2] += pair.x, v[i][3] += pair.y;
    }
  }
  template <int kCount>
  __device__ void write_pairs(const float (&v)[kCount][4], int high, int row, int first) const {
    float* y = row_at<float>(p.y, row) + first;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (row >= p.rows || first + i * 8 >= p.out) continue;
      *reinterpret_cast<float2*>(y + i * 8) = make_float2(v[i][high * 2], v[i][high * 2 + 1]);
    }
  }
  // Transposing four tiles of 8 columns among four lanes gives each lane 16 bytes of one tile.
  template <int kCount>
  __device__ void write_pieces(const float (&v)[kCount][4], int high, int row, int first) const {
    T* y = row_at<T>(p.y, row) + first;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = pack2<T>(v[i + j][high * 2], v[i + j][high * 2 + 1]);
      transpose_quad(words);
      if (row >= p.rows || first + i * 8 >= p.out) continue;
      *reinterpret_cast<uint4*>(y + i * 8) = {words[0], words[1], words[2], words[3]};
    }
  }
  // Issues all loads of a row before it waits for the first.
  template <int kCount>
  __device__ void add_residual(float (&v)[kCount][4], int high, int row, int first) const {
    const T* residual = row_at<T>(p.residual, row) + first;
    uint32_t words[kCount / 4][4] = {};
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      if (row >= p.rows || first + i * 8 >= p.out) continue;
      const uint4 piece = __ldcg(reinterpret_cast<const uint4*>(residual + i * 8));
      words[i / 4][0] = piece.x, words[i / 4][1] = piece.y, words[i / 4][2] = piece.z, words[i / 4][3] = piece.w;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i % 4 == 0) transpose_quad(words[i / 4]);
      const float2 pair = unpack2<T>(words[i / 4][i % 4]);
      v[i][high * 2] += pair.x, v[i][high * 2 + 1] += pair.y;
    }
  }
  template <class U>
  __device__ static U* row_at(const Rows& rows, int row) {
    return static_cast<U*>(rows.data) + rows.at(row);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, 1) multiply(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  const uint32_t stages = shared_address(memory), barriers = stages + kStages * kStageBytes;
  const Shared shared{stages, barriers, barriers + kStages * 8};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(shared.full + stage * 8, 1);
      barrier_init(shared.empty + stage * 8, 4 * kGroups);
    }
    fence_barrier_init();
  }
  __syncthreads();
  pdl_wait();
  pdl_launch_dependents();
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (thread == 0) Producer{p, shared}.run();
  } else {
    // The launch has 3 x 168 registers in total; with more, setmaxnreg would wait forever.
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    Consumer<T>{{group - 1, thread / 32, thread % 32}, p, shared}.run();
  }
#endif
}

}  // namespace headrace::cuda::batch_invariant
