// Rows of logits read once: a block for a slice of a row, then one block for each row merges its slices. Slices and the
// order of merging depend on the vocabulary alone.
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/primitives/launch.cuh"
#include "headrace/kernels/token_confidence.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256, kPerThread = 16, kSlice = kThreads * kPerThread;
constexpr int kNone = INT32_MAX;

// Of a set of logits: sum of exp(x - largest), and of exp(x - largest) * (x - largest).
struct Summary {
  float largest = -INFINITY, second = -INFINITY, sum = 0, weighted = 0;
  int best = kNone;
};

// Scales a sum to a larger maximum.
__device__ inline void rebase(Summary& s, float largest) {
  if (s.largest == -INFINITY) {  // nothing but minus infinities, or a NaN that must stay
    s.weighted = s.sum;
    return;
  }
  const float shift = s.largest - largest, keep = expf(shift);
  s.weighted = keep > 0 ? keep * fmaf(shift, s.sum, s.weighted) : 0 * s.sum;
  s.sum *= keep;
}

__device__ inline Summary merged(Summary a, Summary b) {
  Summary out;
  out.largest = fmaxf(a.largest, b.largest);
  out.second = fmaxf(fminf(a.largest, b.largest), fmaxf(a.second, b.second));
  out.best = a.largest > b.largest ? a.best : b.largest > a.largest ? b.best : min(a.best, b.best);
  rebase(a, out.largest);
  rebase(b, out.largest);
  out.sum = a.sum + b.sum;
  out.weighted = a.weighted + b.weighted;
  return out;
}

__device__ inline Summary other(const Summary& s, int distance) {
  constexpr unsigned kAll = 0xffffffffu;
  return {__shfl_xor_sync(kAll, s.largest, distance), __shfl_xor_sync(kAll, s.second, distance),
          __shfl_xor_sync(kAll, s.sum, distance), __shfl_xor_sync(kAll, s.weighted, distance),
          __shfl_xor_sync(kAll, s.best, distance)};
}

// Of the whole block, in thread 0.
__device__ Summary over_block(Summary s) {
  __shared__ Summary of_warp[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) s = merged(s, other(s, distance));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kThreads / 32; ++w) s = merged(s, of_warp[w]);
  }
  return s;
}

struct Params {
  const float* logits;
  int64_t stride;
  int vocab, excluded, slices;  // excluded: kNone for no id
  Summary* summaries;           // [rows, slices]
  int32_t* best;
  float* stats;
  int64_t stats_stride;
};

__global__ void __launch_bounds__(kThreads) read_slices(const __grid_constant__ Params p) {
  let_next_start();
  wait_for_previous();
  const float* row = p.logits + blockIdx.y * p.stride;
  float x[kPerThread];
  Summary s;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int id = blockIdx.x * kSlice + i * kThreads + threadIdx.x;
    x[i] = id < p.vocab && id != p.excluded ? __ldcg(row + id) : -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (x[i] > s.largest) {
      s.second = s.largest;
      s.largest = x[i];
      s.best = blockIdx.x * kSlice + i * kThreads + threadIdx.x;
    } else {
      s.second = fmaxf(s.second, x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (x[i] == -INFINITY) continue;
    const float shift = x[i] - s.largest, weight = expf(shift);
    s.sum += weight;
    if (weight > 0) s.weighted = fmaf(weight, shift, s.weighted);
  }
  s = over_block(s);
  if (threadIdx.x == 0) p.summaries[blockIdx.y * p.slices + blockIdx.x] = s;
}

__global__ void __launch_bounds__(kThreads) merge_slices(const __grid_constant__ Params p) {
  let_next_start();
  wait_for_previous();
  Summary s;
  for (int i = threadIdx.x; i < p.slices; i += kThreads) s = merged(s, p.summaries[blockIdx.x * p.slices + i]);
  s = over_block(s);
  if (threadIdx.x != 0) return;
  const float log_sum = logf(s.sum);
  float* stats = p.stats + blockIdx.x * p.stats_stride;
  p.best[blockIdx.x] = s.best == kNone ? (p.excluded == 0 ? 1 : 0) : s.best;  // nothing but minus infinities
  stats[0] = s.largest, stats[1] = log_sum, stats[2] = s.second, stats[3] = log_sum - s.weighted / s.sum;
}

}  // namespace

void token_confidence(const TokenConfidenceArgs& a, const OpContext& context) {
  check(a);
  const int64_t rows = a.logits.dim(0);
  if (rows == 0) return;
  const Stream& stream = stream_of(context);
  const int slices = (a.vocab + kSlice - 1) / kSlice;
  HR_REQUIRE(static_cast<size_t>(rows * slices) * sizeof(Summary) <= stream.scratch_bytes, ErrorCode::kInvalidArgument,
             "token_confidence: ", rows, " rows of ", a.vocab, " logits, more than the device's scratch memory holds");
  const Params p{.logits = static_cast<const float*>(a.logits.data()),
                 .stride = a.logits.stride(0),
                 .vocab = a.vocab,
                 .excluded = a.excluded_id.value_or(kNone),
                 .slices = slices,
                 .summaries = static_cast<Summary*>(stream.scratch),
                 .best = static_cast<int32_t*>(a.best.data()),
                 .stats = static_cast<float*>(a.stats.data()),
                 .stats_stride = a.stats.stride(0)};
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(rows));
  launch_early(stream, read_slices, grid, dim3(kThreads), 0, p, "token_confidence");
  launch_early(stream, merge_slices, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, p, "token_confidence");
}

}  // namespace headrace::cuda
