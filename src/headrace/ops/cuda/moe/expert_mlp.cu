// Sorts slots by expert, unless they are few, then runs two grouped GEMMs and the weighted sum of a token's results.
// For many tokens, down and the sum run on a part of the channels at a time, as many as the stream's scratch holds of
// their results: all experts' weights are read once. Only what still does not fit is split by tokens.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/moe/expert_sum.h"
#include "headrace/ops/cuda/moe/grouped_gemm.h"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;
// So few tokens rarely choose an expert twice. A sort costs more than reading its weights again from the L2.
constexpr int64_t kUnsortedTokens = 4;

template <class T>
__global__ void __launch_bounds__(kThreads) sum_rows(const __grid_constant__ ExpertSum p) {
  pdl_wait();
  pdl_launch_dependents();
  for (int d = threadIdx.x; d < p.hidden; d += kThreads) p.write<T>(static_cast<int>(blockIdx.x), d);
}

// sum_rows, eight channels at a time.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_pieces(const __grid_constant__ ExpertSum p) {
  pdl_wait();
  pdl_launch_dependents();
  const int d = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * kVec8;
  if (d < p.hidden) p.write_piece<T>(static_cast<int>(blockIdx.y), d, [&](int slot) { return p.choice(slot); });
}

bool sums_in_pieces(const TensorView& results, const ExpertMLPArgs& a) {
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

void weighted_sum(const ExpertSum& p, bool pieces, const Stream& stream) {
  const auto tokens = static_cast<unsigned>(p.tokens), of_block = static_cast<unsigned>(kThreads * kVec8);
  const dim3 grid = pieces ? dim3((static_cast<unsigned>(p.hidden) + of_block - 1) / of_block, tokens) : dim3(tokens);
  for_type(p.results.type, [&]<class T>(T) {
    launch_pdl(stream, pieces ? sum_pieces<T> : sum_rows<T>, grid, dim3(kThreads), 0, p, "expert_mlp: weighted sum");
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

void multiply(const GroupedGemm& product, ExpertKernel kernel, const Stream& stream) {
  switch (kernel) {
    case ExpertKernel::kSm90: return grouped_gemm_sm90(product, stream);
    case ExpertKernel::kTensorCores: return grouped_gemm(product, stream);
    default: return simt_grouped_gemm(product, stream);
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
    groups.of = ExpertGroups::Tiles::kOfSlots;
    return groups;
  }
  const int64_t tiles = groups.most_tiles();
  groups.num_tiles = static_cast<int32_t*>(scratch.take(4));
  groups.order = static_cast<int32_t*>(scratch.take(slots * 4));
  groups.tiles = static_cast<ExpertTile*>(scratch.take(tiles * static_cast<int64_t>(sizeof(ExpertTile))));
  return groups;
}

ExpertParts parts_of(const ExpertMLPArgs& a, bool sm90, const Stream& stream) {
  constexpr int64_t kKept = int64_t{1} << 20;  // of the scratch: for rounding up, and tiles of rarely chosen experts
  const ExpertWork work{.tokens = a.x.dim(0),
                        .chosen = a.experts.dim(1),
                        .channels = a.x.dim(1),
                        .intermediate = a.intermediate,
                        .element_bytes = size_of(a.x.dtype()),
                        .sorting_bytes = 4 + static_cast<int64_t>(sizeof(ExpertTile)),
                        .room = static_cast<int64_t>(stream.scratch_bytes) - kKept,
                        .sm90 = sm90};
  const ExpertParts parts = expert_parts(work);
  HR_REQUIRE(parts.tokens > 0 || work.tokens == 0, ErrorCode::kUnsupported, "expert_mlp: one token takes ",
             work.bytes_per_token(parts.channels), " bytes of the ", work.room,
             " that the device's scratch memory has");
  return parts;
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
  down.x = Rows(inner), down.k = 0, down.of = GroupedGemm::Of::kDown, down.y = Rows(results);
  down.in = gate_up.out, down.out = static_cast<int32_t>(channels);
  ExpertSum sum = sum_of(results, a);
  const bool pieces = sums_in_pieces(results, a);
  if (gate_up.groups.of == ExpertGroups::Tiles::kSorted) group_slots(gate_up.groups, stream);
  multiply(gate_up, kernel, stream);
  for (int64_t first = 0; first < hidden; first += channels) {
    down.first = static_cast<int32_t>(first);
    multiply(down, kernel, stream);
    sum.residual = columns_of(a.residual, first), sum.y = columns_of(a.y, first);
    weighted_sum(sum, pieces, stream);
  }
}

}  // namespace

void expert_mlp(const ExpertMLPArgs& a, const OpContext& context) {
  check(a);
  const Stream& stream = stream_of(context);
  const ExpertParts parts = parts_of(a, grouped_sm90_supports(gate_up_of(a), stream), stream);
  for (int64_t begin = 0; begin < a.x.dim(0); begin += parts.tokens) {
    const int64_t end = std::min(a.x.dim(0), begin + parts.tokens);
    ExpertMLPArgs part = a;
    part.x = a.x.slice(begin, end), part.experts = a.experts.slice(begin, end);
    part.weights = a.weights.slice(begin, end), part.y = a.y.slice(begin, end);
    if (a.residual) part.residual = a.residual.slice(begin, end);
    run(part, parts.channels, stream);
  }
}

}  // namespace headrace::cuda
