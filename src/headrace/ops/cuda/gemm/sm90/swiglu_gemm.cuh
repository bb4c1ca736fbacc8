// SwiGLU GEMM, silu(x G^T) * (x U^T), by WGMMA (sm_90a) for large M, with swap-AB: A = weights (64 rows), B = x. N of
// WGMMA may be any multiple of 8, so tiles of x can have the width that fills the SMs.
//
// Persistent CTAs take tiles of kWidth rows of x by 128 channels. One producer thread fills a TMA pipeline with stages
// of 64 elements of K. Two ping-pong warpgroups multiply 64 channels each, gate and up of the same ones, so that a lane
// holds both. A turn is 128 elements of K; one warpgroup writes results while the other multiplies. A result is one
// chain of k16 MMAs in ascending k whatever the tile, so a row's bits depend on nothing else.
#pragma once
#include <algorithm>

#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/arch/lean_silu.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/shared_vec.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/arch/wgmma.cuh"
#include "headrace/ops/cuda/arch/wgmma_widths.cuh"
#include "headrace/ops/cuda/gemm/sm90/ping_pong.cuh"
#include "headrace/ops/cuda/gemm/sm90/swiglu_gemm_plan.h"

namespace headrace::cuda::swiglu {

inline constexpr int kDepth = 64, kRowBytes = kDepth * 2;  // elements of K in a stage
inline constexpr int kGroups = PingPong::kGroups, kGroupChannels = 64, kColumns = SwigluGemmPlan::kColumns;
inline constexpr int kGroupBytes = kGroupChannels * kRowBytes, kWeightBytes = kColumns * kRowBytes;
inline constexpr int kThreads = (1 + kGroups) * 128;
inline constexpr int kPairBytes = 16 * 16 * 2, kWarpResultBytes = 2 * kPairBytes;  // 16 rows of x, a warp's 16 channels
inline constexpr int kResultBytes = kGroups * 4 * kWarpResultBytes;

struct Params {
  CUtensorMap x, gate, up;  // [K, M], [K, N]
  Rows y;                   // of x's dtype
  int rows, out, in;
  int row_tiles, column_tiles;
};

template <class T, int kTileRows>
struct Shape {
  using Element = T;
  static constexpr int kWidth = kTileRows, kTiles = kWidth / 8;
  static constexpr int kStageBytes = 2 * kWeightBytes + kWidth * kRowBytes;
  static constexpr int kStages = ((227 << 10) - 128 - kResultBytes) / kStageBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + 16) + kResultBytes;
};

template <class S>
struct Shared {
  uint32_t stages, results, full, empty;  // addresses
  __device__ uint32_t gate(int stage) const { return stages + stage * S::kStageBytes; }
  __device__ uint32_t up(int stage) const { return gate(stage) + kWeightBytes; }
  __device__ uint32_t x(int stage) const { return up(stage) + kWeightBytes; }
};

template <class S>
struct Producer {
  const Params& p;
  Shared<S> shared;

  // Weights are constants: those of the first stages are loaded while the previous kernel still writes x (PDL).
  __device__ void run() const {
    const int tiles = p.row_tiles * p.column_tiles;
    int early = 0;
    for (const GemmTile tile = gemm_tile(p.row_tiles, p.column_tiles, blockIdx.x);
         early < S::kStages && early * kDepth < p.in; ++early) {
      fill_weights(tile, early * kDepth, early);
    }
    pdl_wait();
    PipelineState<S::kStages> at;
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
      const GemmTile tile = gemm_tile(p.row_tiles, p.column_tiles, t);
      for (int k = 0; k < p.in; k += kDepth, at.next()) {
        if (early > 0) {
          --early;
        } else {
          barrier_wait(shared.empty + at.stage * 8, at.phase ^ 1);
          fill_weights(tile, k, at.stage);
        }
        tma_load(shared.x(at.stage), p.x, k, tile.row * S::kWidth, 0, 0, shared.full + at.stage * 8);
      }
    }
  }

 private:
  // Zeros past the ends.
  __device__ void fill_weights(const GemmTile& tile, int k, int stage) const {
    const uint32_t full = shared.full + stage * 8;
    barrier_expect(full, S::kStageBytes);
    tma_load(shared.gate(stage), p.gate, k, tile.column * kColumns, 0, 0, full);
    tma_load(shared.up(stage), p.up, k, tile.column * kColumns, 0, 0, full);
  }
};

template <class S>
struct Consumer : PingPong {
  using T = typename S::Element;
  const Params& p;
  Shared<S> shared;

  __device__ void run() const {
    PipelineState<S::kStages> at;
    if (group == 1) pass_turn();
    for (int t = blockIdx.x; t < p.row_tiles * p.column_tiles; t += gridDim.x) {
      const GemmTile tile = gemm_tile(p.row_tiles, p.column_tiles, t);
      float gate[S::kTiles][4] = {}, up[S::kTiles][4] = {};
      multiply(at, gate, up);
      write(gate, up, tile.row * S::kWidth, tile.column * kColumns + group * kGroupChannels + warp * 16);
    }
    if (group == 0) take_turn();
  }

 private:
  __device__ void multiply(PipelineState<S::kStages>& at, float (&gate)[S::kTiles][4],
                           float (&up)[S::kTiles][4]) const {
    for (int k = 0; k < p.in; k += 2 * kDepth) {
      take_turn();
      const int before = at.stage;
      multiply_stage(at, gate, up, k == 0 ? Add::kNo : Add::kYes);
      const bool two = k + kDepth < p.in;
      if (two) multiply_stage(at, gate, up, Add::kYes);
      pass_turn();
      if (two) {
        wgmma_wait<1>();
        release(shared.empty + before * 8);
      }
      wgmma_wait<0>();
      hold(gate), hold(up);
      release(shared.empty + (two ? (before + 1 == S::kStages ? 0 : before + 1) : before) * 8);
    }
  }
  __device__ void multiply_stage(PipelineState<S::kStages>& at, float (&gate)[S::kTiles][4], float (&up)[S::kTiles][4],
                                 Add add) const {
    barrier_wait(shared.full + at.stage * 8, at.phase);
    const uint32_t g = uniform(operand_low(shared.gate(at.stage) + group * kGroupBytes, 0));
    const uint32_t u = uniform(operand_low(shared.up(at.stage) + group * kGroupBytes, 0));
    const uint32_t x = uniform(operand_low(shared.x(at.stage), 0));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      wgmma_shared<T>(gate, operand(g + k * 2), operand(x + k * 2), k == 0 ? add : Add::kYes);
      wgmma_shared<T>(up, operand(u + k * 2), operand(x + k * 2), k == 0 ? add : Add::kYes);
    }
    wgmma_commit();
    at.next();
  }

  // A lane has channels lane / 4 and lane / 4 + 8 of a warp's 16, of rows 2 (lane % 4) and the next of each 8. A
  // transpose through shared memory, 16 rows at a time, gives it 8 neighbouring channels of one row.
  __device__ void write(const float (&gate)[S::kTiles][4], const float (&up)[S::kTiles][4], int first_row,
                        int first_channel) const {
    const int in_pair = lane / 2, channel = first_channel + lane % 2 * 8;
    const uint32_t to = shared.results + (group * 4 + warp) * kWarpResultBytes + lane * 16;
    const uint32_t from = to + ((in_pair / 8 * 2 + lane % 2) * 8 + in_pair % 8 - lane) * 16;
    uint4* y = static_cast<uint4*>(p.y.data) + (p.y.at(first_row + in_pair) + channel) / 8;
    const int64_t step = p.y.token_stride * 2;  // 16 rows
    const int rows = channel < p.out ? p.rows - first_row - in_pair : 0;
#pragma unroll
    for (int j = 0; j < S::kTiles; j += 2, y += step) {
      const uint32_t slot = j / 2 % 2 * kPairBytes;  // double buffer: one is read while the other is written
      stmatrix_x4_trans(to + slot, made(gate[j], up[j], 0), made(gate[j], up[j], 2), made(gate[j + 1], up[j + 1], 0),
                        made(gate[j + 1], up[j + 1], 2));
      __syncwarp();
      const uint4 piece = load_vec8(from + slot);
      if (j * 8 < rows) *y = piece;
    }
  }
  // SwiGLU of two rows, from sums i and i + 1 of a lane, packed.
  __device__ static uint32_t made(const float (&gate)[4], const float (&up)[4], int i) {
    return pack2<T>(lean_silu(gate[i]) * up[i], lean_silu(gate[i + 1]) * up[i + 1]);
  }
};

template <class S>
__global__ void __launch_bounds__(kThreads, 1) multiply(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  const uint32_t stages = shared_address(memory), results = stages + S::kStages * S::kStageBytes;
  const Shared<S> shared{stages, results, results + kResultBytes, results + kResultBytes + S::kStages * 8};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      barrier_init(shared.full + stage * 8, 1);
      barrier_init(shared.empty + stage * 8, 4 * kGroups);
    }
    fence_barrier_init();
  }
  __syncthreads();
  pdl_launch_dependents();
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (thread == 0) Producer<S>{p, shared}.run();
  } else {
    // The launch has 3 x 168 registers in total; with more, setmaxnreg would wait forever.
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    pdl_wait();
    Consumer<S>{{group - 1, thread / 32, thread % 32}, p, shared}.run();
  }
#endif
}

template <class S>
void launch(const Params& p, const Stream& stream) {
  const int blocks = std::min(stream.num_sms, p.row_tiles * p.column_tiles);
  launch_pdl(stream, multiply<S>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), S::kSharedBytes, p, "gate_up");
}

template <class T>
void launch_of(int width, const Params& p, const Stream& stream) {
  switch (width) {
    case 96: return launch<Shape<T, 96>>(p, stream);
    case 112: return launch<Shape<T, 112>>(p, stream);
    case 128: return launch<Shape<T, 128>>(p, stream);
    case 144: return launch<Shape<T, 144>>(p, stream);
    case 160: return launch<Shape<T, 160>>(p, stream);
    default: return launch<Shape<T, 176>>(p, stream);
  }
}

}  // namespace headrace::cuda::swiglu
