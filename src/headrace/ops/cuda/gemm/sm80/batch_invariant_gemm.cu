// Batch-invariant GEMM by mma.sync for large M, on any device from sm_80 on. It has the fixed split-K order of
// gemm_common.cuh, so a row has the bits of skinny_gemm.
//
// A CTA computes 128 x 128 results, each of its 8 warps 64 x 32. Chunks of 32 elements of K stream through a pipeline
// of four stages in shared memory, split by split. The chunks of one split follow each other; its sums are then added
// to the totals.
#include <cuda_pipeline.h>

#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/gemm/gemm.h"
#include "headrace/ops/cuda/gemm/gemm_common.cuh"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256, kRows = 128, kColumns = 128, kStages = 4;
constexpr int kPartChunks = kPartLen / kChunkLen;  // of a split, in one pass
constexpr int kWarpRows = 64, kWarpColumns = 32, kHigh = kWarpRows / 16, kWide = kWarpColumns / 8;
constexpr int kStageBytes = (kRows + kColumns) * kChunkLen * 2;

struct Params {
  Rows x;
  const char* weight;
  int64_t weight_row_bytes;
  Result result;
  int rows, out, in, passes;
};

// Returns the first element of K of chunk `i` in the order of the sum. It may lie past the end.
__device__ inline int first_element(int i, int passes) {
  const int part = i / (passes * kPartChunks), in_part = i % (passes * kPartChunks);
  return in_part / kPartChunks * kPassLen + part * kPartLen + in_part % kPartChunks * kChunkLen;
}

// Swizzle: the place of vector `piece` of a row's four 16-byte vectors. Every other two rows have their halves swapped,
// so that 8-byte reads of 32 bytes of four rows hit all banks.
__device__ inline int vec8_at(int row, int piece) { return row * 4 + (piece ^ (row & 2)); }

// Issues the cp.async of one chunk of x and W: rows of 64 bytes, zeros past the ends.
__device__ inline void copy_chunk(const Params& p, int chunk, int total, char* stage) {
  if (chunk < total) {
    const int k0 = first_element(chunk, p.passes);
    for (int i = threadIdx.x; i < (kRows + kColumns) * 4; i += kThreads) {
      const int line = i / 4, k = k0 + i % 4 * 8;
      const bool of_x = line < kRows;
      const int row = of_x ? blockIdx.y * kRows + line : blockIdx.x * kColumns + line - kRows;
      const bool inside = k < p.in && row < (of_x ? p.rows : p.out);
      const char* from = !inside ? p.weight
                         : of_x  ? static_cast<const char*>(p.x.data) + (p.x.at(row) + k) * 2
                                 : p.weight + row * p.weight_row_bytes + int64_t{k} * 2;
      __pipeline_memcpy_async(stage + vec8_at(line, i % 4) * 16, from, 16, inside ? 0 : 16);
    }
  }
  __pipeline_commit();
}

template <class T>
__device__ inline void multiply_stage(const char* stage, int warp_row, int warp_column,
                                      float (&sums)[kHigh][kWide][4]) {
  const int lane = threadIdx.x % 32, line = lane / 4, at = first_of_lane(lane);
  const auto load = [&](int row, int half) {
    return *reinterpret_cast<const uint2*>(stage + vec8_at(row, half * 2 + at / 8) * 16 + at % 8 * 2);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint2 weights[kWide];
#pragma unroll
    for (int j = 0; j < kWide; ++j) weights[j] = load(kRows + warp_column + j * 8 + line, half);
#pragma unroll
    for (int i = 0; i < kHigh; ++i) {
      const uint2 low = load(warp_row + i * 16 + line, half), high = load(warp_row + i * 16 + 8 + line, half);
#pragma unroll
      for (int j = 0; j < kWide; ++j) multiply_16<T>(sums[i][j], low, high, weights[j]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) ordered(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char stages[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / 4 * kWarpRows, warp_column = warp % 4 * kWarpColumns;
  const int chunks_of_part = p.passes * kPartChunks, total = chunks_of_part * kSegments;
  float totals[kHigh][kWide][4] = {}, sums[kHigh][kWide][4] = {};
  for (int s = 0; s < kStages - 1; ++s) copy_chunk(p, s, total, stages + s * kStageBytes);
  for (int chunk = 0; chunk < total; ++chunk) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();
    copy_chunk(p, chunk + kStages - 1, total, stages + (chunk + kStages - 1) % kStages * kStageBytes);
    multiply_stage<T>(stages + chunk % kStages * kStageBytes, warp_row, warp_column, sums);
    if ((chunk + 1) % chunks_of_part != 0) continue;
#pragma unroll
    for (int i = 0; i < kHigh; ++i) {
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) totals[i][j][e] += sums[i][j][e], sums[i][j][e] = 0;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kHigh; ++i) {
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = blockIdx.y * kRows + warp_row + i * 16 + lane / 4 + e / 2 * 8;
        const int column = blockIdx.x * kColumns + warp_column + j * 8 + lane % 4 * 2 + e % 2;
        if (row < p.rows && column < p.out) p.result.write(row, column, totals[i][j][e]);
      }
    }
  }
}

template <class T>
void launch(const Params& p, const Stream& stream) {
  constexpr int kBytes = kStages * kStageBytes;
  static_assert(kBytes <= kLeastSharedBytes);
  allow_shared(stream, ordered<T>, kBytes, "batch_invariant_gemm_sm80");
  const dim3 grid(static_cast<unsigned>((p.out + kColumns - 1) / kColumns),
                  static_cast<unsigned>((p.rows + kRows - 1) / kRows));
  ordered<T><<<grid, kThreads, kBytes, stream.handle>>>(p);
  check_launch("batch_invariant_gemm_sm80");
}

}  // namespace

void batch_invariant_gemm_sm80(const FusedLinearArgs& a, const Stream& stream) {
  const FusedLinearArgs::Product& product = a.products[0];
  const Params p{.x = Rows(a.x),
                 .weight = static_cast<const char*>(product.weight.data()),
                 .weight_row_bytes = product.weight.stride(0) * 2,
                 .result = {.y = Rows(product.y),
                            .residual = Rows(a.residual),
                            .bias = product.bias.data(),
                            .bias_type = product.bias.dtype()},
                 .rows = static_cast<int>(a.x.dim(0)),
                 .out = static_cast<int>(product.weight.dim(0)),
                 .in = static_cast<int>(a.x.dim(1)),
                 .passes = static_cast<int>((a.x.dim(1) + kPassLen - 1) / kPassLen)};
  a.x.dtype() == DType::kBF16 ? launch<__nv_bfloat16>(p, stream) : launch<__half>(p, stream);
}

}  // namespace headrace::cuda
