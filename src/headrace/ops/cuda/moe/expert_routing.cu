// One warp for each token. Scores are computed in double as on the host, so that a choice between two all but equal
// experts falls the same way.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kNone = INT32_MAX;

struct Params {
  Rows logits;
  const void *bias, *expert_scale;
  DType bias_type, scale_type;
  bool sigmoids, renormalise, shared;
  const float* shared_gate;  // [tokens], or null
  int64_t shared_gate_stride;
  int tokens, num_experts, k, num_groups, groups_per_token;
  float weight_scale;
  const int32_t* num_rows;  // or null
  int32_t* experts;
  float* weights;
  int64_t experts_stride, weights_stride;
};

// Maps floats to unsigned numbers in the same order. Zeros of both signs are alike; NaN becomes 0, below all.
__device__ inline unsigned ordered(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);
  return isnan(x) ? 0 : bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// Shared-memory floats of a warp: every expert's and group's score, and the choices.
__host__ __device__ inline int floats_of_warp(const Params& p) { return p.num_experts + p.num_groups + p.k; }

__device__ inline double sigmoid_of(float x) { return 1 / (1 + exp(-static_cast<double>(x))); }

// Returns the sum of the two best scores of a group, or its only one.
__device__ inline float group_score(const float* rank, int size) {
  float first = -INFINITY, second = -INFINITY;
  for (int i = 0; i < size; ++i) {
    second = fmaxf(second, fminf(first, rank[i]));
    first = fmaxf(first, rank[i]);
  }
  return size > 1 ? first + second : first;
}

// Sets the scores of experts outside the best groups to minus infinity. `groups` holds one float for each group.
__device__ void keep_best_groups(const Params& p, float* rank, float* groups) {
  const int lane = threadIdx.x % 32, size = p.num_experts / p.num_groups;
  for (int g = lane; g < p.num_groups; g += 32) groups[g] = group_score(rank + g * size, size);
  __syncwarp();
  for (int g = lane; g < p.num_groups; g += 32) {
    int before = 0;
    for (int other = 0; other < p.num_groups; ++other) {
      before += groups[other] > groups[g] || (groups[other] == groups[g] && other < g);
    }
    if (before < p.groups_per_token) continue;
    for (int i = 0; i < size; ++i) rank[g * size + i] = -INFINITY;
  }
  __syncwarp();
}

__device__ inline double warp_sum_of(double x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

__device__ void choose_nothing(const Params& p, int token) {
  for (int j = threadIdx.x % 32; j < p.k + (p.shared ? 1 : 0); j += 32) {
    p.experts[token * p.experts_stride + j] = kNoExpert;
    p.weights[token * p.weights_stride + j] = 0;
  }
}

// A lane's scores: every 32nd expert's, as ordered() maps them; 0 for those that are chosen.
template <int kPer>
struct Scores {
  unsigned of[kPer];

  __device__ Scores(const float* rank, int count) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int expert = i * 32 + threadIdx.x % 32;
      of[i] = expert < count ? ordered(rank[expert]) : 0;
    }
  }
  __device__ unsigned largest() const {
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) most = max(most, of[i]);
    return most;
  }
  // Returns this lane's lowest expert with that score, or kNone.
  __device__ int first_with(unsigned score) const {
    int first = kNone;
#pragma unroll
    for (int i = kPer - 1; i >= 0; --i) first = of[i] == score ? i * 32 + static_cast<int>(threadIdx.x % 32) : first;
    return first;
  }
  __device__ void drop(int expert) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) of[i] = i * 32 + static_cast<int>(threadIdx.x % 32) == expert ? 0 : of[i];
  }
};

// Chooses the k experts with the largest `rank`; ties go to the lower expert. `rank` and `chosen` lie in shared memory.
template <int kPer>
__device__ void choose_best(const Params& p, const float* rank, int* chosen) {
  Scores<kPer> scores(rank, p.num_experts);
  unsigned own = scores.largest();
  for (int j = 0; j < p.k; ++j) {
    const unsigned top = __reduce_max_sync(0xffffffffu, own);
    const int index = __reduce_min_sync(0xffffffffu, own == top ? scores.first_with(top) : kNone);
    // All are NaN: the result will be NaN as well.
    if (threadIdx.x % 32 == 0) chosen[j] = top == 0 ? 0 : index;
    if (index % 32 == static_cast<int>(threadIdx.x % 32)) scores.drop(index), own = scores.largest();
  }
  __syncwarp();
}

__device__ void choose_shared(const Params& p, int token) {
  if (threadIdx.x % 32 != 0) return;
  p.experts[token * p.experts_stride + p.k] = p.num_experts;
  const float weight = p.shared_gate == nullptr ? 1 : sigmoid(p.shared_gate[token * p.shared_gate_stride]);
  p.weights[token * p.weights_stride + p.k] = weight;
}

// Writes the scores to `rank` and returns the largest logit. Several loads are in flight at a time.
__device__ float score_experts(const Params& p, int token, float* rank) {
  constexpr int kAtOnce = 8;
  const auto* logits = static_cast<const float*>(p.logits.data) + p.logits.at(token);
  float largest = -INFINITY;
  for (int e0 = threadIdx.x % 32; e0 < p.num_experts; e0 += 32 * kAtOnce) {
    float x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) x[i] = e0 + i * 32 < p.num_experts ? logits[e0 + i * 32] : -INFINITY;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int e = e0 + i * 32;
      if (e >= p.num_experts) break;
      largest = fmaxf(largest, x[i]);
      const float score = p.sigmoids ? static_cast<float>(sigmoid_of(x[i])) : x[i];  // a softmax keeps logits' order
      rank[e] = p.bias != nullptr ? score + load(p.bias, p.bias_type, e) : score;
    }
  }
  return warp_max(largest);
}

template <int kPer>
__global__ void __launch_bounds__(kWarps * 32) choose(const __grid_constant__ Params p) {
  extern __shared__ float shared[];
  pdl_wait();
  pdl_launch_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.x * kWarps + warp;
  if (token >= p.tokens) return;
  if (p.num_rows != nullptr && token >= __ldcg(p.num_rows)) return choose_nothing(p, token);
  float* rank = shared + warp * floats_of_warp(p);
  int* chosen = reinterpret_cast<int*>(rank + p.num_experts + p.num_groups);
  const float largest = score_experts(p, token, rank);
  __syncwarp();
  if (p.groups_per_token < p.num_groups) keep_best_groups(p, rank, rank + p.num_experts);
  const auto score = [&](int e) {
    const float x = p.logits.get(token, 0, e);
    return p.sigmoids ? sigmoid_of(x) : exp(static_cast<double>(x) - static_cast<double>(largest));
  };
  double sum = 0;
  if (!p.renormalise && !p.sigmoids) {
    for (int e = lane; e < p.num_experts; e += 32) sum += score(e);
    sum = warp_sum_of(sum);
  }
  choose_best<kPer>(p, rank, chosen);
  const double first = lane < p.k ? score(chosen[lane]) : 0;  // k is rarely larger
  const auto score_at = [&](int j) { return j < 32 ? first : score(chosen[j]); };
  for (int j0 = 0; p.renormalise && j0 < p.k; j0 += 32) {  // computed at once, added one after the other
    const double own = j0 + lane < p.k ? score_at(j0 + lane) : 0;
    for (int j = 0; j < min(32, p.k - j0); ++j) sum += __shfl_sync(0xffffffffu, own, j);
  }
  if (sum == 0) sum = 1;  // sigmoids are not normalised, and vanished ones stay zero
  for (int j = lane; j < p.k; j += 32) {
    const int expert = chosen[j];
    const float own = p.expert_scale != nullptr ? load(p.expert_scale, p.scale_type, expert) : 1.0f;
    p.experts[token * p.experts_stride + j] = expert;
    p.weights[token * p.weights_stride + j] = static_cast<float>(score_at(j) / sum) * (p.weight_scale * own);
  }
  if (p.shared) choose_shared(p, token);
}

}  // namespace

void expert_routing(const ExpertRoutingArgs& a, const OpContext& context) {
  check(a);
  if (a.logits.dim(0) == 0) return;
  const Stream& stream = stream_of(context);
  const Params p{.logits = Rows(a.logits),
                 .bias = a.bias.data(),
                 .expert_scale = a.expert_scale.data(),
                 .bias_type = a.bias.dtype(),
                 .scale_type = a.expert_scale.dtype(),
                 .sigmoids = a.scores == ExpertRoutingArgs::Scores::kSigmoid,
                 .renormalise = a.renormalise == ExpertRoutingArgs::Renormalise::kYes,
                 .shared = a.shared != ExpertRoutingArgs::Shared::kNone,
                 .shared_gate = static_cast<const float*>(a.shared_gate.data()),
                 .shared_gate_stride = a.shared_gate ? a.shared_gate.stride(0) : 0,
                 .tokens = static_cast<int>(a.logits.dim(0)),
                 .num_experts = static_cast<int>(a.logits.dim(1)),
                 .k = static_cast<int>(a.k()),
                 .num_groups = static_cast<int>(a.num_groups),
                 .groups_per_token = static_cast<int>(a.groups_per_token),
                 .weight_scale = a.weight_scale,
                 .num_rows = static_cast<const int32_t*>(a.num_rows.data()),
                 .experts = static_cast<int32_t*>(a.experts.data()),
                 .weights = static_cast<float*>(a.weights.data()),
                 .experts_stride = a.experts.stride(0),
                 .weights_stride = a.weights.stride(0)};
  constexpr int kMostShared = kLeastSharedBytes;
  const int shared_bytes = kWarps * floats_of_warp(p) * static_cast<int>(sizeof(float));
  static_assert(kWarps * 2 * kMostExperts * sizeof(float) < kMostShared);  // as many choices as experts
  HR_REQUIRE(p.num_experts <= kMostExperts && shared_bytes <= kMostShared, ErrorCode::kUnsupported,
             "expert_routing: ", p.num_experts, " experts in ", p.num_groups, " groups, at most ", kMostExperts,
             " are built");
  const auto kernel = p.num_experts <= 128   ? choose<4>
                      : p.num_experts <= 256 ? choose<8>
                      : p.num_experts <= 512 ? choose<16>
                                             : choose<kMostExperts / 32>;
  launch_pdl(stream, kernel, dim3(static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps)), dim3(kWarps * 32),
             static_cast<size_t>(shared_bytes), p, "expert_routing");
}

}  // namespace headrace::cuda
