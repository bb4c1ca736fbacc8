// Rows of logits read once: a block for a slice of a row, then one warp for each row merges its slices. Slices and the
// order of merging depend on the vocabulary alone.
#include <cfloat>

#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/primitives/launch.cuh"
#include "headrace/kernels/token_confidence.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kPerThread = 16, kSlice = kThreads * kPerThread;
constexpr int kNone = INT32_MAX;

// Of a set of logits.
struct Top {
  float largest = -INFINITY, second = -INFINITY;
  int best = kNone;
};

__device__ inline Top merged(const Top& a, const Top& b) {
  return {fmaxf(a.largest, b.largest), fmaxf(fminf(a.largest, b.largest), fmaxf(a.second, b.second)),
          a.largest > b.largest   ? a.best
          : b.largest > a.largest ? b.best
                                  : min(a.best, b.best)};
}

// Besides, sum of exp(x - largest), and of exp(x - largest) * (x - largest).
struct Summary {
  Top top;
  float sum = 0, weighted = 0;
};

// Scales a sum to a larger maximum.
__device__ inline void rebase(Summary& s, float largest) {
  if (s.top.largest == -INFINITY) {  // nothing but minus infinities, or a NaN that must stay
    s.weighted = s.sum;
    return;
  }
  const float shift = s.top.largest - largest, keep = expf(shift);
  s.weighted = keep > 0 ? keep * fmaf(shift, s.sum, s.weighted) : 0 * s.sum;
  s.sum *= keep;
}

__device__ inline Summary merged(Summary a, Summary b) {
  const Top top = merged(a.top, b.top);
  rebase(a, top.largest);
  rebase(b, top.largest);
  return {top, a.sum + b.sum, a.weighted + b.weighted};
}

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline Top other(const Top& top, int distance) {
  return {__shfl_xor_sync(kAllLanes, top.largest, distance), __shfl_xor_sync(kAllLanes, top.second, distance),
          __shfl_xor_sync(kAllLanes, top.best, distance)};
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

// Sums are of exp(x - the slice's largest), so that those of its threads are only added.
__global__ void __launch_bounds__(kThreads) read_slices(const __grid_constant__ Params p) {
  __shared__ Top top_of[kWarps];
  __shared__ float sum_of[kWarps], weighted_of[kWarps];
  let_next_start();
  wait_for_previous();
  const float* row = p.logits + blockIdx.y * p.stride;
  const int first = blockIdx.x * kSlice + threadIdx.x, warp = threadIdx.x / 32;
  const bool leads = threadIdx.x % 32 == 0;
  float x[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int id = first + i * kThreads;
    x[i] = id < p.vocab && id != p.excluded ? __ldcg(row + id) : -INFINITY;
  }
  Top top;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (x[i] > top.largest) {
      top = {x[i], top.largest, first + i * kThreads};
    } else {
      top.second = fmaxf(top.second, x[i]);
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) top = merged(top, other(top, distance));
  if (leads) top_of[warp] = top;
  __syncthreads();
  float from = -INFINITY;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) from = fmaxf(from, top_of[w].largest);
  if (from == -INFINITY) from = 0;
  Summary s;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const float shift = x[i] - from, weight = expf(shift);
    s.sum += weight;
    s.weighted = fmaf(weight, fmaxf(shift, -FLT_MAX), s.weighted);  // no product of 0 and an infinity
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    s.sum += __shfl_xor_sync(kAllLanes, s.sum, distance);
    s.weighted += __shfl_xor_sync(kAllLanes, s.weighted, distance);
  }
  if (leads) sum_of[warp] = s.sum, weighted_of[warp] = s.weighted;
  __syncthreads();
  if (threadIdx.x != 0) return;
  s = {};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    s.top = merged(s.top, top_of[w]);
    s.sum += sum_of[w];
    s.weighted += weighted_of[w];
  }
  p.summaries[blockIdx.y * p.slices + blockIdx.x] = s;
}

// A warp for each row.
__global__ void __launch_bounds__(32) merge_slices(const __grid_constant__ Params p) {
  let_next_start();
  wait_for_previous();
  Summary s;
  for (int i = threadIdx.x; i < p.slices; i += 32) s = merged(s, p.summaries[blockIdx.x * p.slices + i]);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    s = merged(s, Summary{other(s.top, distance), __shfl_xor_sync(kAllLanes, s.sum, distance),
                          __shfl_xor_sync(kAllLanes, s.weighted, distance)});
  }
  if (threadIdx.x != 0) return;
  const float log_sum = logf(s.sum);
  float* stats = p.stats + blockIdx.x * p.stats_stride;
  p.best[blockIdx.x] = s.top.best == kNone ? (p.excluded == 0 ? 1 : 0) : s.top.best;  // nothing but minus infinities
  stats[0] = s.top.largest, stats[1] = log_sum, stats[2] = s.top.second, stats[3] = log_sum - s.weighted / s.sum;
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
  launch_early(stream, merge_slices, dim3(static_cast<unsigned>(rows)), dim3(32), 0, p, "token_confidence");
}

}  // namespace headrace::cuda
