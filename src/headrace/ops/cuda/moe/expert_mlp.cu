// Sorts slots by expert, unless they are few, then runs two grouped GEMMs and the weighted sum of a token's results.
// For many tokens, down and the sum run on a part of the channels at a time, as many as the stream's scratch holds of
// their results: all experts' weights are read once. Only what still does not fit is split by tokens.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/moe/grouped_gemm.h"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/expert_routing.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;
// So few tokens rarely choose an expert twice. A sort costs more than reading its weights again from the L2.
constexpr int64_t kUnsortedTokens = 4;

// Weighted sum of the results of a token's experts.
struct ExpertSum {
  Rows results;            // [tokens * k, hidden], dense
  const float* weights;    // [tokens * k]
  const int32_t* experts;  // [tokens * k]; kNoExpert: the result does not exist
  Rows residual, y;        // [tokens, hidden]; residual may have no data
  int tokens, hidden, k;

  struct Choice {
    bool exists;
    float weight;
  };
  __device__ Choice choice(int slot) const { return {__ldcg(experts + slot) != kNoExpert, __ldcg(weights + slot)}; }
};

// Rows of any dtype and alignment, one channel at a time.
__global__ void __launch_bounds__(kThreads) sum_elements(const __grid_constant__ ExpertSum p) {
  pdl_wait();
  pdl_launch_dependents();
  const int token = static_cast<int>(blockIdx.x);
  for (int d = threadIdx.x; d < p.hidden; d += kThreads) {
    float sum = 0;
    for (int j = 0; j < p.k; ++j) {
      const int slot = token * p.k + j;
      const ExpertSum::Choice chosen = p.choice(slot);
      if (chosen.exists) sum = fmaf(chosen.weight, p.results.get(slot, 0, d), sum);
    }
    p.y.set(token, 0, d, p.residual.data == nullptr ? sum : p.residual.get(token, 0, d) + sum);
  }
}

// Loads 8 elements of rows of T or float32.
template <class T>
__device__ inline Vec8<float> load_floats(const Rows& x, int token, int d) {
  if (x.type == DType::kF32) return Vec8<float>::load(row_of<float>(x, token) + d);
  const auto values = Vec8<T>::load(row_of<T>(x, token) + d);
  Vec8<float> wide;
#pragma unroll
  for (int e = 0; e < kVec8; ++e) wide.v[e] = values.v[e];
  return wide;
}

// Eight channels at a time: all rows are is_vec8(), and residual and y have the results' dtype T or float32. Results of
// kNoExpert are dropped after their load, so that many loads are in flight.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_vec8(const __grid_constant__ ExpertSum p) {
  pdl_wait();
  pdl_launch_dependents();
  const int d = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * kVec8, token = static_cast<int>(blockIdx.y);
  if (d >= p.hidden) return;
  constexpr int kAhead = 12;  // most tokens have no more choices
  const Vec8<float> residual = p.residual.data == nullptr ? Vec8<float>{} : load_floats<T>(p.residual, token, d);
  Vec8<float> sum{};
  for (int j0 = 0; j0 < p.k; j0 += kAhead) {
    RawVec8<T> raw[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      raw[i] = RawVec8<T>::load(row_of<T>(p.results, int64_t{token} * p.k + min(j0 + i, p.k - 1)) + d);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (j0 + i >= p.k) break;
      const ExpertSum::Choice chosen = p.choice(token * p.k + j0 + i);
      const Vec8<T> result = raw[i].piece();
#pragma unroll
      for (int e = 0; e < kVec8; ++e) sum.v[e] = chosen.exists ? fmaf(chosen.weight, result.v[e], sum.v[e]) : sum.v[e];
    }
  }
  if (p.residual.data != nullptr) {
#pragma unroll
    for (int e = 0; e < kVec8; ++e) sum.v[e] = residual.v[e] + sum.v[e];
  }
  if (p.y.type == DType::kF32) return sum.store(row_of<float>(p.y, token) + d);
  Vec8<T> rounded;
#pragma unroll
  for (int e = 0; e < kVec8; ++e) rounded.v[e] = sum.v[e];
  rounded.store(row_of<T>(p.y, token) + d);
}

bool sums_vec8(const TensorView& results, const ExpertMLPArgs& a) {
  return is_vec8(results) && is_vec8(a.y) && (!a.residual || is_vec8(a.residual));
}

ExpertSum sum_of(const TensorView& results, const ExpertMLPArgs& a) {
  return {.results = Rows(results),
          .weights = static_cast<const float*>(a.weights.data()),
          .experts = static_cast<const int32_t*>(a.experts.data()),
          .residual = Rows(a.residual),
          .y = Rows(a.y),
          .tokens = static_cast<int>(a.y.dim(0)),
          .hidden = static_cast<int>(results.dim(1)),
          .k = static_cast<int>(a.experts.dim(1))};
}

void weighted_sum(const ExpertSum& p, bool vec8, const Stream& stream) {
  constexpr int kPerBlock = kThreads * kVec8;
  const auto tokens = static_cast<unsigned>(p.tokens);
  const dim3 grid = vec8 ? dim3(static_cast<unsigned>((p.hidden + kPerBlock - 1) / kPerBlock), tokens) : dim3(tokens);
  for_type(p.results.type, [&]<class T>(T) {
    launch_pdl(stream, vec8 ? sum_vec8<T> : sum_elements, grid, dim3(kThreads), 0, p, "expert_mlp: weighted sum");
  });
}

struct Scratch {
  char* at;

  void* take(int64_t bytes) {
    void* place = at;
    at += (bytes + 255) / 256 * 256;
    return place;
  }
};

// Returns the kernel of both GEMMs: K of one is N of the other.
ExpertKernel kernel_of(const GroupedGemm& gate_up, const Stream& stream) {
  if (grouped_sm90_supports(gate_up, stream)) return ExpertKernel::kSm90;
  return grouped_supports(gate_up) && gate_up.out % 8 == 0 ? ExpertKernel::kTensorCores : ExpertKernel::kPlain;
}

void multiply(const GroupedGemm& gemm, ExpertKernel kernel, const Stream& stream) {
  switch (kernel) {
    case ExpertKernel::kSm90: return grouped_gemm_sm90(gemm, stream);
    case ExpertKernel::kTensorCores: return grouped_gemm(gemm, stream);
    default: return simt_grouped_gemm(gemm, stream);
  }
}

// Groups all slots of `a`, with room in the stream's scratch.
ExpertGroups groups_of(const ExpertMLPArgs& a, ExpertKernel kernel, Scratch& scratch) {
  const int64_t tokens = a.x.dim(0), slots = tokens * a.experts.dim(1);
  ExpertGroups groups{.experts = static_cast<const int32_t*>(a.experts.data()),
                      .slots = static_cast<int32_t>(slots),
                      .num_experts = static_cast<int32_t>(a.addresses.dim(0)),
                      .tile_rows = expert_tile_rows(kernel, slots, a.addresses.dim(0))};
  if (tokens <= kUnsortedTokens) {
    groups.tiling = ExpertGroups::Tiling::kPerSlot;
    return groups;
  }
  const int64_t tiles = groups.most_tiles();
  groups.num_tiles = static_cast<int32_t*>(scratch.take(4));
  groups.order = static_cast<int32_t*>(scratch.take(slots * 4));
  groups.tiles = static_cast<ExpertTile*>(scratch.take(tiles * static_cast<int64_t>(sizeof(ExpertTile))));
  return groups;
}

ExpertChunk chunk_of(const ExpertMLPArgs& a, bool sm90, const Stream& stream) {
  constexpr int64_t kKept = int64_t{1} << 20;  // of the scratch: for rounding up, and tiles of rarely chosen experts
  const ExpertWork work{.tokens = a.x.dim(0),
                        .chosen = a.experts.dim(1),
                        .channels = a.x.dim(1),
                        .intermediate = a.intermediate,
                        .element_bytes = size_of(a.x.dtype()),
                        .sorting_bytes = 4 + static_cast<int64_t>(sizeof(ExpertTile)),
                        .room = static_cast<int64_t>(stream.scratch_bytes) - kKept,
                        .sm90 = sm90};
  const ExpertChunk chunk = choose_expert_chunk(work);
  HR_REQUIRE(chunk.tokens > 0 || work.tokens == 0, ErrorCode::kUnsupported, "expert_mlp: one token takes ",
             work.bytes_per_token(chunk.channels), " bytes of the ", work.room,
             " that the device's scratch memory has");
  return chunk;
}

// Returns the channels from `first` on.
Rows columns_of(const TensorView& x, int64_t first) {
  Rows rows(x);
  if (x) rows.data = static_cast<char*>(rows.data) + first * size_of(x.dtype());
  return rows;
}

GroupedGemm gate_up_of(const ExpertMLPArgs& a) {
  return {.x = Rows(a.x),
          .k = static_cast<int32_t>(a.experts.dim(1)),
          .addresses = static_cast<const int64_t*>(a.addresses.data()),
          .weight_type = a.weight_type,
          .activation = a.activation,
          .in = static_cast<int32_t>(a.x.dim(1)),
          .out = static_cast<int32_t>(a.intermediate)};
}

void run(const ExpertMLPArgs& a, int64_t channels, const Stream& stream) {
  const int64_t hidden = a.x.dim(1), slots = a.x.dim(0) * a.experts.dim(1);
  const DType type = a.x.dtype();
  Scratch scratch{static_cast<char*>(stream.scratch)};
  GroupedGemm gate_up = gate_up_of(a);
  const ExpertKernel kernel = kernel_of(gate_up, stream);
  gate_up.groups = groups_of(a, kernel, scratch);
  const TensorView inner(scratch.take(slots * a.intermediate * size_of(type)), type, {slots, a.intermediate});
  const TensorView results(scratch.take(slots * channels * size_of(type)), type, {slots, channels});
  gate_up.y = Rows(inner);
  GroupedGemm down = gate_up;
  down.x = Rows(inner), down.k = 0, down.projection = GroupedGemm::Projection::kDown, down.y = Rows(results);
  down.in = gate_up.out, down.out = static_cast<int32_t>(channels);
  ExpertSum sum = sum_of(results, a);
  const bool vec8 = sums_vec8(results, a);
  if (gate_up.groups.tiling == ExpertGroups::Tiling::kSorted) group_slots(gate_up.groups, stream);
  multiply(gate_up, kernel, stream);
  for (int64_t first = 0; first < hidden; first += channels) {
    down.first = static_cast<int32_t>(first);
    multiply(down, kernel, stream);
    sum.residual = columns_of(a.residual, first), sum.y = columns_of(a.y, first);
    weighted_sum(sum, vec8, stream);
  }
}

}  // namespace

void expert_mlp(const ExpertMLPArgs& a, const OpContext& context) {
  check(a);
  const Stream& stream = stream_of(context);
  const ExpertChunk chunk = chunk_of(a, grouped_sm90_supports(gate_up_of(a), stream), stream);
  for (int64_t begin = 0; begin < a.x.dim(0); begin += chunk.tokens) {
    const int64_t end = std::min(a.x.dim(0), begin + chunk.tokens);
    ExpertMLPArgs slice = a;
    slice.x = a.x.slice(begin, end), slice.experts = a.experts.slice(begin, end);
    slice.weights = a.weights.slice(begin, end), slice.y = a.y.slice(begin, end);
    if (a.residual) slice.residual = a.residual.slice(begin, end);
    run(slice, chunk.channels, stream);
  }
}

}  // namespace headrace::cuda
