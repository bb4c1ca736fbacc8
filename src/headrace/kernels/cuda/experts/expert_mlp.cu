// Slots are sorted by expert, unless they are few, then two grouped products, then the weighted sum of a token's
// results. As many tokens at a time as the stream's scratch holds.
#include "headrace/kernels/cuda/experts/expert_sum.h"
#include "headrace/kernels/cuda/experts/experts_at_once_sm90.h"
#include "headrace/kernels/cuda/experts/grouped_matmul.h"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/primitives/launch.cuh"
#include "headrace/kernels/cuda/primitives/vector.cuh"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;
// So few rarely choose an expert twice, and a sort costs more than to read its weights again, from the L2.
constexpr int64_t kUnsortedTokens = 4;

template <class T>
__global__ void __launch_bounds__(kThreads) sum_rows(const __grid_constant__ ExpertSum p) {
  wait_for_previous();
  let_next_start();
  for (int d = threadIdx.x; d < p.hidden; d += kThreads) p.write<T>(static_cast<int>(blockIdx.x), d);
}

// The same sums, eight channels at a time.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_pieces(const __grid_constant__ ExpertSum p) {
  wait_for_previous();
  let_next_start();
  const int d = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * kPiece;
  if (d < p.hidden) p.write_piece<T>(static_cast<int>(blockIdx.y), d, [&](int slot) { return p.choice(slot); });
}

bool sums_in_pieces(const TensorView& results, const ExpertMLPArgs& a) {
  return in_pieces(results) && in_pieces(a.y) && (!a.residual || in_pieces(a.residual));
}

ExpertSum sum_of(const TensorView& results, const ExpertMLPArgs& a) {
  return {.results = Rows(results),
          .weights = static_cast<const float*>(a.weights.data()),
          .experts = static_cast<const int32_t*>(a.experts.data()),
          .residual = Rows(a.residual),
          .y = Rows(a.y),
          .tokens = static_cast<int>(a.y.dim(0)),
          .hidden = static_cast<int>(a.y.dim(1)),
          .k = static_cast<int>(a.experts.dim(1))};
}

void weighted_sum(const ExpertSum& p, bool pieces, const Stream& stream) {
  const auto tokens = static_cast<unsigned>(p.tokens), of_block = static_cast<unsigned>(kThreads * kPiece);
  const dim3 grid = pieces ? dim3((static_cast<unsigned>(p.hidden) + of_block - 1) / of_block, tokens) : dim3(tokens);
  for_type(p.results.type, [&]<class T>(T) {
    launch_early(stream, pieces ? sum_pieces<T> : sum_rows<T>, grid, dim3(kThreads), 0, p, "expert_mlp: weighted sum");
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

// Of one token's slots, at most, tiles and rounding up left out.
int64_t bytes_per_token(const ExpertMLPArgs& a) {
  const int64_t slot =
      (a.intermediate + a.x.dim(1)) * size_of(a.x.dtype()) + 4 + static_cast<int64_t>(sizeof(ExpertTile));
  return a.experts.dim(1) * slot;
}

enum class Kernel : uint8_t { kPlain, kTensorCores, kSm90 };

// Of both products: `in` of one is `out` of the other.
Kernel kernel_of(const GroupedMatmul& gate_up, const Stream& stream) {
  if (grouped_sm90_supports(gate_up, stream)) return Kernel::kSm90;
  return grouped_supports(gate_up) && gate_up.out % 8 == 0 ? Kernel::kTensorCores : Kernel::kPlain;
}

// Larger tiles pay from some rows per expert on.
int32_t tile_rows_of(Kernel kernel, int64_t slots, int64_t experts) {
  const int64_t rows = slots / experts;
  switch (kernel) {
    case Kernel::kSm90: return rows < 48 ? kFewRowsSm90 : kManyRowsSm90;
    case Kernel::kTensorCores: return rows < 32 ? kFewTileRows : kManyTileRows;
    default: return kFewTileRows;
  }
}

void multiply(const GroupedMatmul& product, Kernel kernel, const Stream& stream) {
  switch (kernel) {
    case Kernel::kSm90: return grouped_matmul_sm90(product, stream);
    case Kernel::kTensorCores: return grouped_matmul(product, stream);
    default: return plain_grouped_matmul(product, stream);
  }
}

// Of all slots of `a`, with room in the stream's scratch.
ExpertGroups groups_of(const ExpertMLPArgs& a, Kernel kernel, Scratch& scratch) {
  const int64_t tokens = a.x.dim(0), slots = tokens * a.experts.dim(1);
  ExpertGroups groups{.experts = static_cast<const int32_t*>(a.experts.data()),
                      .slots = static_cast<int32_t>(slots),
                      .num_experts = static_cast<int32_t>(a.addresses.dim(0)),
                      .tile_rows = tile_rows_of(kernel, slots, a.addresses.dim(0))};
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

void run(const ExpertMLPArgs& a, const Stream& stream) {
  const int64_t k = a.experts.dim(1), hidden = a.x.dim(1), slots = a.x.dim(0) * k;
  const DType type = a.x.dtype();
  Scratch scratch{static_cast<char*>(stream.scratch)};
  GroupedMatmul gate_up{.x = Rows(a.x),
                        .k = static_cast<int32_t>(k),
                        .addresses = static_cast<const int64_t*>(a.addresses.data()),
                        .weight_type = a.weight_type,
                        .activation = a.activation,
                        .in = static_cast<int32_t>(hidden),
                        .out = static_cast<int32_t>(a.intermediate)};
  const Kernel kernel = kernel_of(gate_up, stream);
  gate_up.groups = groups_of(a, kernel, scratch);
  const TensorView inner(scratch.take(slots * a.intermediate * size_of(type)), type, {slots, a.intermediate});
  const TensorView results(scratch.take(slots * hidden * size_of(type)), type, {slots, hidden});
  gate_up.y = Rows(inner);
  GroupedMatmul down = gate_up;
  down.x = Rows(inner), down.k = 0, down.of = GroupedMatmul::Of::kDown, down.y = Rows(results);
  std::swap(down.in, down.out);
  const ExpertSum sum = sum_of(results, a);
  const bool pieces = sums_in_pieces(results, a);
  if (pieces && kernel == Kernel::kSm90 && experts_at_once_supports(gate_up, sum)) {
    return experts_at_once(gate_up, down, sum, stream);
  }
  if (gate_up.groups.of == ExpertGroups::Tiles::kSorted) group_slots(gate_up.groups, stream);
  multiply(gate_up, kernel, stream);
  multiply(down, kernel, stream);
  weighted_sum(sum, pieces, stream);
}

}  // namespace

void expert_mlp(const ExpertMLPArgs& a, const OpContext& context) {
  check(a);
  const Stream& stream = stream_of(context);
  constexpr int64_t kKept = int64_t{1} << 20;  // for rounding up, and what the tiles of rarely chosen experts take
  const int64_t room = static_cast<int64_t>(stream.scratch_bytes) - kKept;
  const int64_t step = std::min<int64_t>(room / bytes_per_token(a), 65535 / a.experts.dim(1));  // a grid's second side
  HR_REQUIRE(step >= 1, ErrorCode::kUnsupported, "expert_mlp: one token takes ", bytes_per_token(a), " bytes of the ",
             room, " that the device's scratch memory has");
  for (int64_t begin = 0; begin < a.x.dim(0); begin += step) {
    const int64_t end = std::min(a.x.dim(0), begin + step);
    ExpertMLPArgs part = a;
    part.x = a.x.slice(begin, end), part.experts = a.experts.slice(begin, end);
    part.weights = a.weights.slice(begin, end), part.y = a.y.slice(begin, end);
    if (a.residual) part.residual = a.residual.slice(begin, end);
    run(part, stream);
  }
}

}  // namespace headrace::cuda
