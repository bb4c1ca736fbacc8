// Samples tokens. A row's token depends on one or two short ranges of its sorted candidates. The CTAs that read the row
// list the candidates of these ranges, and one CTA per row sorts the list. The ranges follow
//  - for a small top k from a sample of the row, whose largest logits bound the top k;
//  - else from a histogram of all candidates and weights over the distance from the largest logit: prefix sums over the
//    bins give the bin in which a search ends.
// If too many candidates are equal or nearly equal for a list, a CTA searches the row itself by narrowing a range.
//
// Weights are integers, so sums depend neither on the order of adding nor on how a row is split. Launches depend on
// sizes only.
#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/sampling/candidates.cuh"

namespace headrace::cuda {
namespace sampling {
namespace {

constexpr int kRowThreads = 1024, kSliceThreads = 256;  // per CTA of a row, and of a slice of a row
constexpr int kSliceBlocks = 4;                         // CTAs per SM

struct Params {
  const float *logits, *stats;
  const int32_t* best;
  const TokenDraw* draws;
  int64_t stride, best_stride, stats_stride;
  int vocab, excluded, slice, first_row;
  RowState* states;  // of first_row and later rows
  uint64_t* lists;   // kList entries per row: candidate's place in the upper half, its id in the lower half
  int32_t* ids;
  float* chosen;

  // Returns true if the row's temperature is positive. `index` counts rows of this launch. Draws are written before the
  // logits that they apply to, so this needs no pdl_wait().
  __device__ bool is_drawn(unsigned index) const {
    return __ldcg(&draws[first_row + static_cast<int>(index)].temperature) > 0;
  }
  // Kernels launched after begin_rows() may call it before pdl_wait(), for rows that are drawn.
  __device__ Row row(unsigned index) const {
    const int64_t at = first_row + static_cast<int>(index);
    return {logits + at * stride, vocab, excluded, __ldcg(stats + at * stats_stride), loaded(draws + at)};
  }
};

// Returns the bins that hold at least the top k, from the maxima of the sample's parts. Only the first warp's result is
// valid; the whole CTA calls it.
__device__ BinRange top_bins(const Row& row) {
  static_assert(kSampleParts == 32 && kRowThreads == 32 * kSampleParts);
  __shared__ float largest_of[kSampleParts];
  constexpr int kLines = kSample / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, apart = max(row.vocab / kLines, 32);
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kLines / kSampleParts; ++i) {
    const float x = row.logit((i * kSampleParts + warp) * apart + lane);
    if (row.may_weigh(x)) largest = fmaxf(largest, x);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
  }
  if (lane == 0) largest_of[warp] = largest;
  __syncthreads();
  if (warp > 0) return {};
  largest = largest_of[lane];
  int rank = 1;
  for (int i = 0; i < kSampleParts; ++i) {
    const float other = largest_of[i];
    if (other > largest || (other == largest && i < lane)) ++rank;
  }
  const unsigned last = __ballot_sync(kAllLanes, rank == sample_rank(row.draw.top_k, row.vocab));
  largest = __shfl_sync(kAllLanes, largest, __ffs(static_cast<int>(last)) - 1);
  return {0, largest > -INFINITY ? row.bin(largest) : kBins - 1};
}

// Exit of CTAs without work. One of them waits, so that kernels that wait for this one also wait for its predecessors.
__device__ inline void leave_undrawn() {
  if (blockIdx.x == 0) pdl_wait();
}

__global__ void __launch_bounds__(kRowThreads) begin_rows(const __grid_constant__ Params p) {
  if (!p.is_drawn(blockIdx.x)) {
    pdl_launch_dependents();
    return leave_undrawn();
  }
  pdl_wait();
  pdl_launch_dependents();  // not earlier: the next kernels read logits before they wait
  const Row row = p.row(blockIdx.x);
  RowState& state = p.states[blockIdx.x];
  auto* pieces = reinterpret_cast<uint4*>(&state);
  constexpr int kPieces = sizeof(RowState) / sizeof(uint4),
                kCounts = sizeof(state.weight) / sizeof(uint4) + sizeof(state.count) / sizeof(uint4);
  for (int i = threadIdx.x + (row.is_short() ? kCounts : 0); i < kPieces; i += kRowThreads) pieces[i] = {};
  if (!row.is_short()) return;
  const BinRange top = row.vocab <= kList ? BinRange{0, kBins - 1} : top_bins(row);
  if (threadIdx.x == 0) state.plan.ranges[0] = top;
}

using Way = Walk<kSliceThreads>;
__device__ inline Way way_over_slice(const Params& p, const Row& row) {
  const int begin = static_cast<int>(blockIdx.x) * p.slice;
  return {row, begin, min(begin + p.slice, p.vocab)};
}

__global__ void __launch_bounds__(kSliceThreads, kSliceBlocks) count_bins(const __grid_constant__ Params p) {
  __shared__ Histogram<kSliceThreads, kBins> bins;
  pdl_launch_dependents();
  if (!p.is_drawn(blockIdx.y)) return leave_undrawn();
  const Row row = p.row(blockIdx.y);
  if (row.is_short()) {
    pdl_wait();
    return;
  }
  bins.clear();
  Mass likely{};
  const auto least = __double2ull_ru(static_cast<double>(row.draw.min_p) * kUnit);
  way_over_slice(p, row).over<Way::Code::kLong>([&](float x, int) {
    if (!row.may_weigh(x)) return;
    const uint64_t weight = row.weight(x);
    bins.add(row.bin(x), weight);
    if (weight >= least) likely += {weight, 1};
  });
  __syncthreads();
  pdl_wait();
  RowState& state = p.states[blockIdx.y];
  for (int i = threadIdx.x; i < kBins; i += kSliceThreads) {
    const Mass mass = bins.at(i);
    if (mass.count > 0) atomicAdd(&state.count[i], mass.count);
    if (mass.weight > 0) atomicAdd(as_unsigned(state.weight + i), mass.weight);
  }
  if (!(row.draw.min_p > 0)) return;
  likely = over_warp(likely);
  if (threadIdx.x % 32 != 0 || likely.count == 0) return;
  atomicAdd(&state.likely.count, likely.count);
  atomicAdd(as_unsigned(&state.likely.weight), likely.weight);
}

using SliceBins = Histogram<kSliceThreads, kBins>;

// Plans the ranges without top k: where top p ends and where the token can lie, whatever part of the end's bin is kept.
__device__ Plan plan_of_weights(const Row& row, const SliceBins& bins, const Mass& likely) {
  Plan plan{.all = bins.at(kBins - 1)};
  uint64_t fewest = plan.all.weight, most = fewest;
  Hit end{};
  if (row.draw.top_p < 1) {
    end = bins.find(row.share_of(plan.all));
    fewest = end.before.weight, most = fewest + end.own.weight;
    plan.ranges[1] = {end.index, end.index};
  }
  if (likely.count > 0) fewest = min(fewest, likely.weight), most = min(most, likely.weight);
  const Hit from = bins.find(row.token_of(fewest)), to = bins.find(row.token_of(most));
  plan.ranges[0] = {from.index, to.index};
  plan.begin = from.before;
  if (plan.ranges[1].first <= to.index) plan.ranges[1] = {};
  plan.split = plan.ranges[1].empty() ? kList : to.before.count + to.own.count - from.before.count;
  plan.gap = end.before;
  plan.gap -= to.before;
  plan.gap -= to.own;
  return plan;
}

__device__ Plan plan_of(const Row& row, const RowState& state) {
  __shared__ SliceBins bins;
  add_up(state, bins);
  const Mass all = bins.at(kBins - 1);
  const int top_k = row.draw.top_k;
  if (top_k <= 0 || static_cast<uint32_t>(top_k) >= all.count) {
    return plan_of_weights(row, bins, loaded(&state.likely));
  }
  return {.ranges = {{0, bins.find(row.top_k()).index}, {}}, .split = kList, .all = all};
}

__global__ void __launch_bounds__(kSliceThreads, kSliceBlocks) list_candidates(const __grid_constant__ Params p) {
  pdl_launch_dependents();
  if (!p.is_drawn(blockIdx.y)) return leave_undrawn();
  const Row row = p.row(blockIdx.y);
  auto way = way_over_slice(p, row);
  pdl_wait();
  RowState& state = p.states[blockIdx.y];
  BinRange ranges[2] = {loaded(&state.plan.ranges[0]), {}};
  if (!row.is_short()) {
    const Plan plan = plan_of(row, state);
    if (blockIdx.x == 0 && threadIdx.x == 0) state.plan = plan;
    ranges[0] = plan.ranges[0], ranges[1] = plan.ranges[1];
  }
  const Distances first = row.distances(ranges[0]), second = row.distances(ranges[1]);
  uint64_t* list = p.lists + int64_t{blockIdx.y} * kList;
  way.over<Way::Code::kShort>([&](float x, int id) {
    const float distance = row.largest - x;
    if (!first.has(distance) && !second.has(distance)) return;
    const uint32_t at = atomicAdd(&state.listed, 1);
    if (at < kList) list[at] = uint64_t{place_of(x)} << 32 | static_cast<uint32_t>(id);
  });
}

using Whole = WholeRow<kRowThreads>;

__global__ void __launch_bounds__(kRowThreads) draw_from_lists(const __grid_constant__ Params p) {
  extern __shared__ uint64_t memory[];
  pdl_launch_dependents();
  const int index = p.first_row + static_cast<int>(blockIdx.x);
  if (!p.is_drawn(blockIdx.x)) {
    if (threadIdx.x > 0) return;
    pdl_wait();
    p.ids[index] = __ldcg(p.best + index * p.best_stride);
    p.chosen[index] = __ldcg(p.stats + index * p.stats_stride);
    return;
  }
  pdl_wait();
  const Row row = p.row(blockIdx.x);
  const RowState& state = p.states[blockIdx.x];
  Plan plan = loaded(&state.plan);
  const Mass likely = loaded(&state.likely);
  const auto listed = static_cast<int>(__ldcg(&state.listed));
  int id = __ldcg(p.best + index * p.best_stride);
  const bool lacks = listed > 0 && row.is_short() && listed < row.draw.top_k && plan.ranges[0].last < kBins - 1;
  if (lacks || listed > kList) {
    if (lacks) plan.ranges[0].last = kBins - 1;
    id = drawn(row, likely, Whole(row, plan, state, *reinterpret_cast<Whole::Memory*>(memory)));
  } else if (listed > 0) {  // an infinite largest logit leaves no candidates
    if (static_cast<int>(threadIdx.x) >= SortedList::threads(listed, kRowThreads)) return;
    const SortedList list(row, plan, p.lists + int64_t{blockIdx.x} * kList, listed,
                          *reinterpret_cast<SortedList::Memory*>(memory));
    if (threadIdx.x < 32) id = drawn(row, likely, list);
  }
  if (threadIdx.x == 0) p.ids[index] = id, p.chosen[index] = __ldcg(p.logits + index * p.stride + id);
}

enum class Weighed : uint8_t { kNone, kSome };  // kSome: some rows are not short

void launch(const Params& p, int64_t rows, Weighed weighed, const Stream& stream) {
  const auto slices = static_cast<unsigned>((p.vocab + p.slice - 1) / p.slice), count = static_cast<unsigned>(rows);
  constexpr size_t kMemoryBytes = std::max(sizeof(SortedList::Memory), sizeof(Whole::Memory));
  static_assert(kMemoryBytes <= kLeastSharedBytes);
  launch_pdl(stream, begin_rows, dim3(count), dim3(kRowThreads), 0, p, "sample_tokens");
  if (weighed == Weighed::kSome) {
    launch_pdl(stream, count_bins, dim3(slices, count), dim3(kSliceThreads), 0, p, "sample_tokens");
  }
  launch_pdl(stream, list_candidates, dim3(slices, count), dim3(kSliceThreads), 0, p, "sample_tokens");
  launch_pdl(stream, draw_from_lists, dim3(count), dim3(kRowThreads), kMemoryBytes, p, "sample_tokens");
}

// Returns the ids per slice: four CTAs per SM, at least eight candidates per thread.
int slice_of(int vocab, int64_t rows, int num_sms) {
  constexpr int kLeast = 8 * kSliceThreads;
  const int64_t slices = std::clamp<int64_t>(kSliceBlocks * num_sms / rows, 1, (vocab + kLeast - 1) / kLeast);
  const int64_t slice = (vocab + slices - 1) / slices;
  return static_cast<int>((slice + kSliceThreads - 1) / kSliceThreads * kSliceThreads);
}

}  // namespace
}  // namespace sampling

void sample_tokens(const SampleTokensArgs& a, const OpContext& context) {
  using sampling::kList, sampling::RowState;
  check(a);
  const int64_t rows = a.logits.dim(0);
  if (rows == 0) return;
  const Stream& stream = stream_of(context);
  HR_REQUIRE(a.vocab <= kMostVocab, ErrorCode::kInvalidArgument, "sample_tokens: ", a.vocab,
             " logits, expected at most ", kMostVocab);
  constexpr int64_t kRowBytes = sizeof(RowState) + kList * sizeof(uint64_t);
  const int64_t at_once = std::min({rows, static_cast<int64_t>(stream.scratch_bytes) / kRowBytes, int64_t{65535}});
  auto* states = static_cast<RowState*>(stream.scratch);
  sampling::Params p{.logits = static_cast<const float*>(a.logits.data()),
                     .stats = static_cast<const float*>(a.stats.data()),
                     .best = static_cast<const int32_t*>(a.best.data()),
                     .draws = static_cast<const TokenDraw*>(a.draws.data()),
                     .stride = a.logits.stride(0),
                     .best_stride = a.best.stride(0),
                     .stats_stride = a.stats.stride(0),
                     .vocab = a.vocab,
                     .excluded = a.excluded_id.value_or(-1),
                     .slice = sampling::slice_of(a.vocab, at_once, stream.num_sms),
                     .first_row = 0,
                     .states = states,
                     .lists = reinterpret_cast<uint64_t*>(states + at_once),
                     .ids = static_cast<int32_t*>(a.ids.data()),
                     .chosen = static_cast<float*>(a.chosen.data())};
  const bool all_short = !a.on_host.empty() && std::ranges::all_of(a.on_host, [&a](const TokenDraw& draw) {
    return !(draw.temperature > 0) || sampling::is_short(draw, a.vocab);
  });
  const auto weighed = all_short ? sampling::Weighed::kNone : sampling::Weighed::kSome;
  for (int64_t first = 0; first < rows; first += at_once) {
    p.first_row = static_cast<int>(first);
    launch(p, std::min(at_once, rows - first), weighed, stream);
  }
}

}  // namespace headrace::cuda
