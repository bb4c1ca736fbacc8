// Statistics of logits in one pass. CTAs process slices of rows, then one warp per row merges its slices. Slices and
// merge order depend on the vocabulary and the row's width only.
#include <algorithm>
#include <cfloat>

#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/common/merge_states.cuh"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/token_confidence.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kPerThread = 16, kPerWarp = 32 * kPerThread;
constexpr int kSlice = kThreads * kPerThread;
constexpr int kBlocksPerSM = 5;  // leaves room for the next kernels
constexpr int kNone = INT32_MAX;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr unsigned kAllLanes = 0xffffffffu;

// Statistics of a set of logits: the two largest, the id of the first, and, with u = (x - largest) / ln 2, the sums of
// 2^u and 2^u * u.
struct Summary {
  float largest = -INFINITY, second = -INFINITY;
  int best = kNone;
  float sum = 0, weighted = 0;
};

// Rescales the sums to a larger maximum.
__device__ inline void rebase(Summary& s, float largest) {
  if (s.largest == -INFINITY) {  // only minus infinities, or a NaN that must be kept
    s.weighted = s.sum;
    return;
  }
  const float shift = (s.largest - largest) * kLog2e, keep = exp2_fast(shift);
  s.weighted = keep > 0 ? keep * fmaf(shift, s.sum, s.weighted) : 0 * s.sum;
  s.sum *= keep;
}

__device__ inline Summary merged(Summary a, Summary b) {
  const float largest = fmaxf(a.largest, b.largest);
  rebase(a, largest);
  rebase(b, largest);
  return {.largest = largest,
          .second = fmaxf(fminf(a.largest, b.largest), fmaxf(a.second, b.second)),
          .best = min(a.largest == largest ? a.best : kNone, b.largest == largest ? b.best : kNone),
          .sum = a.sum + b.sum,
          .weighted = a.weighted + b.weighted};
}

// Maximum over a warp; no value may be NaN.
__device__ inline float warp_max(float x) {
  const auto in_order = [](int bits) { return bits ^ (bits >> 31 & INT32_MAX); };  // an involution
  return __int_as_float(in_order(__reduce_max_sync(kAllLanes, in_order(__float_as_int(x)))));
}

// Sums over groups of kLanes lanes.
template <int kLanes>
__device__ inline void add_lanes(Summary& s) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    s.sum += __shfl_xor_sync(kAllLanes, s.sum, distance);
    s.weighted += __shfl_xor_sync(kAllLanes, s.weighted, distance);
  }
}

struct Params {
  const float* logits;
  int64_t stride;
  int rows, vocab, width, excluded;  // kNone: no id
  // Slices of ids below `vocab`, which may be the best; all_slices adds those of ids from `vocab` on, which only count
  // in the sums.
  int slices, all_slices;
  int next_rows, next_slices;  // steps from one slice of a CTA to its next
  Summary* summaries;          // [rows, all_slices]
  int32_t* best;
  float* stats;
  int64_t stats_stride;
};

// Id of a lane's i-th logit in a warp's part of a slice: four times four consecutive ids.
__device__ inline int id_of(int first, int i) { return first + i / 4 * 128 + i % 4; }

// Loads the ids from `begin` on; ids from `end` on and the excluded id yield minus infinity.
__device__ inline void load(const Params& p, int row, int begin, int end, float (&x)[kPerThread]) {
  const float* from = p.logits + row * p.stride;
  const int first = begin + threadIdx.x % 32 * 4;
  const bool excluded = p.excluded >= begin && p.excluded < begin + kPerWarp;
  if (begin + kPerWarp <= end && !excluded && reinterpret_cast<uintptr_t>(from + begin) % sizeof(float4) == 0) {
#pragma unroll
    for (int i = 0; i < kPerThread; i += 4) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(from + id_of(first, i)));
      x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int id = id_of(first, i);
    x[i] = id < end && id != p.excluded ? __ldcg(from + id) : -INFINITY;
  }
}

// Computes a warp's sums and maximum. best and second are left to the warp with the slice's largest logit.
__device__ inline Summary sums_of(const float (&x)[kPerThread]) {
  Summary s;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) s.largest = fmaxf(s.largest, x[i]);
  s.largest = warp_max(s.largest);
  const float from = s.largest == -INFINITY ? 0 : s.largest;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const float shift = (x[i] - from) * kLog2e, weight = exp2_fast(shift);
    s.sum += weight;
    s.weighted = fmaf(weight, fmaxf(shift, -FLT_MAX), s.weighted);  // avoids 0 * infinity
  }
  add_lanes<32>(s);
  return s;
}

// Finds best and second of a warp whose largest logit is known. A lane's ids are ascending.
__device__ inline void find_best(Summary& s, int first, const float (&x)[kPerThread]) {
  float mine = -INFINITY, but_first = -INFINITY;
#pragma unroll
  for (int i = kPerThread - 1; i >= 0; --i) {
    if (x[i] == s.largest)
      s.best = id_of(first, i), but_first = mine;
    else
      but_first = fmaxf(but_first, x[i]);
    mine = fmaxf(mine, x[i]);
  }
  const int best = __reduce_min_sync(kAllLanes, s.best);
  s.second = warp_max(s.best == best ? but_first : mine);
  s.best = best;
}

// Combines a slice; called by the warp with its largest logit in `x`. Lane i < kWarps holds warp i's summary in
// `other`.
__device__ inline Summary summary_of(Summary other, float largest, int first, const float (&x)[kPerThread]) {
  Summary s;
  s.largest = largest;
  if (largest > -INFINITY) find_best(s, first, x);
  s.second = warp_max(threadIdx.x % 32 == threadIdx.x / 32 ? s.second : other.largest);
  rebase(other, largest);
  add_lanes<kWarps>(other);
  s.sum = other.sum, s.weighted = other.weighted;
  return s;
}

// Position of a CTA: one slice of all rows comes before the next slice.
struct Place {
  int row, slice;
  __device__ explicit Place(const Params& p)
      : row(static_cast<int>(blockIdx.x) % p.rows), slice(static_cast<int>(blockIdx.x) / p.rows) {}
  __device__ void advance(const Params& p) {
    row += p.next_rows, slice += p.next_slices;
    if (row >= p.rows) row -= p.rows, ++slice;
  }
  __device__ bool is_behind(const Params& p) const { return slice >= p.slices; }
  __device__ int begin(const Params& p) const {
    return is_behind(p) ? p.vocab + (slice - p.slices) * kSlice : slice * kSlice;
  }
  __device__ int end(const Params& p) const { return is_behind(p) ? p.width : p.vocab; }
};

// Each warp sums relative to its own largest logit. The first warp that has the slice's largest adds up.
__global__ void __launch_bounds__(kThreads, kBlocksPerSM + 1) read_slices(const __grid_constant__ Params p) {
  __shared__ Summary of_warps[2][kWarps];  // double buffer: the adding warp may still read the other
  pdl_launch_dependents();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Place at(p);
  pdl_wait();
  for (int turn = 0; at.slice < p.all_slices; turn ^= 1, at.advance(p)) {
    const int begin = at.begin(p) + warp * kPerWarp;
    float x[kPerThread];
    load(p, at.row, begin, at.end(p), x);
    const Summary mine = sums_of(x);
    if (lane == 0) of_warps[turn][warp] = mine;
    __syncthreads();
    Summary other;
    if (lane < kWarps) other = of_warps[turn][lane];
    const float largest = warp_max(other.largest);
    if (__ffs(__ballot_sync(kAllLanes, lane < kWarps && other.largest == largest)) - 1 != warp) continue;
    const Summary s = summary_of(other, largest, begin + lane * 4, x);
    if (lane == 0) p.summaries[at.row * p.all_slices + at.slice] = s;
  }
}

// Merges a lane's share of the slices [begin, end).
__device__ inline Summary merged_slices(const Summary* summaries, int begin, int end) {
  Summary s;
  const int first = begin + static_cast<int>(threadIdx.x);
  if (first < end) s = summaries[first];
#pragma unroll 1
  for (int i = first + 32; i < end; i += 32) s = merged(s, summaries[i]);
  return s;
}

// One warp per row.
__global__ void __launch_bounds__(32) merge_slices(const __grid_constant__ Params p) {
  pdl_launch_dependents();
  pdl_wait();
  const Summary* summaries = p.summaries + static_cast<int64_t>(blockIdx.x) * p.all_slices;
  Summary s = merged_slices(summaries, 0, p.slices), behind = merged_slices(summaries, p.slices, p.all_slices);
  const float largest = warp_max(s.largest);
  const int best = __reduce_min_sync(kAllLanes, s.largest == largest ? s.best : kNone);
  const float second = warp_max(s.best == best ? s.second : s.largest);
  // Sums are relative to the largest logit of all columns. Relative to a smaller one they could overflow, and an
  // entropy near 0 would be the difference of two large numbers.
  const float from = fmaxf(largest, warp_max(behind.largest));
  rebase(s, from);
  rebase(behind, from);
  s.sum += behind.sum, s.weighted += behind.weighted;
  add_lanes<32>(s);
  if (threadIdx.x != 0) return;
  const float log_sum = logf(s.sum), above = from > largest ? from - largest : 0;
  float* stats = p.stats + blockIdx.x * p.stats_stride;
  p.best[blockIdx.x] = best == kNone ? (p.excluded == 0 ? 1 : 0) : best;  // only minus infinities
  stats[0] = largest, stats[1] = log_sum + above, stats[2] = second, stats[3] = log_sum - s.weighted / s.sum * kLn2;
}

}  // namespace

void token_confidence(const TokenConfidenceArgs& a, const OpContext& context) {
  check(a);
  const int64_t rows = a.logits.dim(0);
  if (rows == 0) return;
  const Stream& stream = stream_of(context);
  const auto width = static_cast<int>(a.logits.dim(1));
  const auto slices_of = [](int ids) { return (ids + kSlice - 1) / kSlice; };
  const int slices = slices_of(a.vocab), all_slices = slices + slices_of(width - a.vocab);
  HR_REQUIRE(static_cast<size_t>(rows * all_slices) * sizeof(Summary) <= stream.scratch_bytes,
             ErrorCode::kInvalidArgument, "token_confidence: ", rows, " rows of ", width,
             " logits, more than the device's scratch memory holds");
  const int64_t blocks = std::min(rows * all_slices, int64_t{kBlocksPerSM} * stream.num_sms);
  const Params p{.logits = static_cast<const float*>(a.logits.data()),
                 .stride = a.logits.stride(0),
                 .rows = static_cast<int>(rows),
                 .vocab = a.vocab,
                 .width = width,
                 .excluded = a.excluded_id.value_or(kNone),
                 .slices = slices,
                 .all_slices = all_slices,
                 .next_rows = static_cast<int>(blocks % rows),
                 .next_slices = static_cast<int>(blocks / rows),
                 .summaries = static_cast<Summary*>(stream.scratch),
                 .best = static_cast<int32_t*>(a.best.data()),
                 .stats = static_cast<float*>(a.stats.data()),
                 .stats_stride = a.stats.stride(0)};
  // Reserves shared memory for a concurrent kernel that needs more than these do.
  const auto launch = [&](void (*kernel)(Params), int64_t grid, int threads) {
    launch_pdl(stream, kernel, dim3(static_cast<unsigned>(grid)), dim3(static_cast<unsigned>(threads)), 0, p,
               "token_confidence", {.share = SharedShare::kAll});
  };
  launch(read_slices, blocks, kThreads);
  launch(merge_slices, rows, 32);
}

}  // namespace headrace::cuda
