// A weighted radix search: logits become integers of the same order, and eight passes of four bits each find the one on
// which a number of candidates, or a weight of them, is reached. Up to three searches: the last of the top k, the last
// of top p, the token. Weights are integers too, so that sums do not depend on the order of adding and a row's token
// does not depend on how the row is cut.
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/primitives/launch.cuh"
#include "headrace/kernels/sample_tokens.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kPerThread = 16, kSlice = kThreads * kPerThread;
constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits, kPasses = 32 / kDigitBits;
constexpr double kUnit = 0x1p44;  // of weights: a vocabulary of 2^19 fits 64 bits

// A set of candidates.
struct Mass {
  uint64_t weight = 0;
  uint32_t count = 0;

  __device__ Mass& operator+=(const Mass& other) {
    weight += other.weight;
    count += other.count;
    return *this;
  }
};

__device__ inline Mass over_warp(Mass m) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    m.weight += __shfl_xor_sync(0xffffffffu, m.weight, distance);
    m.count += __shfl_xor_sync(0xffffffffu, m.count, distance);
  }
  return m;
}

// What a search looks for: the first candidate with which `above` fulfils the condition.
struct Search {
  enum class Until : uint8_t { kNothing, kCount, kWeight, kMoreWeight } until = Until::kNothing;
  uint32_t key = 0;  // the digits that are known, then zeros
  Mass above;        // candidates before all those that share them
  double target = 0;

  __device__ bool reached(const Mass& mass) const {
    switch (until) {
      case Until::kCount: return static_cast<double>(mass.count) >= target;
      case Until::kWeight: return static_cast<double>(mass.weight) >= target;
      default: return static_cast<double>(mass.weight) > target;
    }
  }
};

struct RowState {
  Search search[2];  // the even and the odd passes
  Mass all;          // every candidate
  Mass kept;         // the beginning of the order that is left
  Mass likely;       // candidates with a share of min_p of the first one's weight
};

enum class Stage : uint8_t { kTopK, kTopP, kToken };

struct Params {
  const float *logits, *stats;
  const int32_t* best;
  const TokenDraw* draws;
  int64_t stride, best_stride, stats_stride;
  int vocab, excluded, slices, pass;
  Stage stage;
  Mass* parts;  // [rows, slices, kDigits]
  RowState* states;
  int32_t* ids;
  float* chosen;

  __device__ float logit(int row, int id) const { return logits[row * stride + id] + 0.0f; }  // no negative zero
  __device__ uint64_t weight(int row, float logit) const {
    const double shifted = static_cast<double>(logit) - static_cast<double>(stats[row * stats_stride]);
    const double weight = exp(shifted / static_cast<double>(draws[row].temperature));
    return weight > 0 ? __double2ull_rn(fmin(weight, 1.0) * kUnit) : 0;  // NaN: the host sees it in log_sum
  }
  __device__ Mass* parts_of(int row, int slice) const { return parts + (int64_t{row} * slices + slice) * kDigits; }
};

__device__ inline uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float logit_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// The sums of each digit over the slices; for threads below kDigits. Others get nothing.
__device__ inline Mass over_slices(const Params& p, int row) {
  Mass sum;
  if (threadIdx.x >= kDigits) return sum;
  for (int s = 0; s < p.slices; ++s) sum += p.parts_of(row, s)[threadIdx.x];
  return sum;
}

// Adds the digit that pass `pass` counted: the highest with which the condition is fulfilled, or the last that has any.
__device__ Search with_digit(Search search, const Mass* of_digit, int pass) {
  int digit = kDigits - 1, last = digit;
  Mass above = search.above, above_last = above;
  for (; digit >= 0; --digit) {
    Mass with = above;
    with += of_digit[digit];
    if (of_digit[digit].count > 0) {
      last = digit, above_last = above;
      if (search.reached(with)) break;
    }
    above = with;
  }
  search.key |= static_cast<uint32_t>(last) << (32 - kDigitBits * (pass + 1));
  search.above = above_last;
  return search;
}

// Of each row's slice: its whole mass in place 0, that of the likely ones in place 1.
__global__ void __launch_bounds__(kThreads) weigh(const __grid_constant__ Params p) {
  __shared__ Mass of_warp[2][kWarps];
  const int row = blockIdx.y;
  const TokenDraw& draw = p.draws[row];
  if (draw.temperature <= 0) return;
  const auto least = __double2ull_ru(static_cast<double>(draw.min_p) * kUnit);
  Mass all, likely;
  for (int i = 0; i < kPerThread; ++i) {
    const int id = blockIdx.x * kSlice + i * kThreads + static_cast<int>(threadIdx.x);
    if (id >= p.vocab || id == p.excluded) continue;
    const Mass one{p.weight(row, p.logit(row, id)), 1};
    all += one;
    if (one.weight >= least) likely += one;
  }
  all = over_warp(all), likely = over_warp(likely);
  if (threadIdx.x % 32 == 0) of_warp[0][threadIdx.x / 32] = all, of_warp[1][threadIdx.x / 32] = likely;
  __syncthreads();
  if (threadIdx.x >= 2) return;
  Mass sum;
  for (const Mass& part : of_warp[threadIdx.x]) sum += part;
  p.parts_of(row, static_cast<int>(blockIdx.x))[threadIdx.x] = sum;
}

__global__ void __launch_bounds__(32) keep_all(const __grid_constant__ Params p) {
  const int row = blockIdx.x;
  if (p.draws[row].temperature <= 0 || threadIdx.x >= 2) return;
  const Mass sum = over_slices(p, row);
  (threadIdx.x == 0 ? p.states[row].kept : p.states[row].likely) = sum;
  if (threadIdx.x == 0) p.states[row].all = sum;
}

// Whether the row has such a search, and its target.
__device__ Search begin(const Params& p, int row) {
  const TokenDraw& draw = p.draws[row];
  const RowState& state = p.states[row];
  Search search;
  const auto kept = static_cast<double>(state.kept.weight);
  if (draw.temperature <= 0) return search;
  if (p.stage == Stage::kTopK && draw.top_k > 0 && static_cast<uint32_t>(draw.top_k) < state.kept.count) {
    search.until = Search::Until::kCount, search.target = draw.top_k;
  } else if (p.stage == Stage::kTopP && draw.top_p < 1) {
    const Mass& of = draw.top_p_of == TopPOf::kAll ? state.all : state.kept;
    search.until = Search::Until::kWeight,
    search.target = static_cast<double>(draw.top_p) * static_cast<double>(of.weight);
  } else if (p.stage == Stage::kToken) {
    search.until = Search::Until::kMoreWeight, search.target = draw.uniform * kept;
  }
  return search;
}

// The search as it stands before pass p.pass; every thread of the block calls it. `of_digit` is the block's.
__device__ Search before_pass(const Params& p, int row, Mass* of_digit) {
  if (p.pass == 0) return begin(p, row);
  const Search before = p.states[row].search[(p.pass - 1) % 2];
  if (before.until == Search::Until::kNothing) return before;
  const Mass sum = over_slices(p, row);
  if (threadIdx.x < kDigits) of_digit[threadIdx.x] = sum;
  __syncthreads();
  return with_digit(before, of_digit, p.pass - 1);
}

// Sums, digit by digit, the candidates that share the digits known before this pass.
__global__ void __launch_bounds__(kThreads) count_digits(const __grid_constant__ Params p, Mass* to) {
  __shared__ Mass of_digit[kDigits], of_warp[kWarps][kDigits];
  const int row = blockIdx.y, shift = 32 - kDigitBits * (p.pass + 1);
  const Search search = before_pass(p, row, of_digit);
  if (blockIdx.x == 0 && threadIdx.x == 0) p.states[row].search[p.pass % 2] = search;
  if (search.until == Search::Until::kNothing) return;
  Mass sums[kDigits];
  for (int i = 0; i < kPerThread; ++i) {
    const int id = blockIdx.x * kSlice + i * kThreads + static_cast<int>(threadIdx.x);
    const bool there = id < p.vocab && id != p.excluded;
    const float logit = there ? p.logit(row, id) : 0;
    const uint32_t key = key_of(logit);
    const bool counts = there && (p.pass == 0 || (key ^ search.key) >> (shift + kDigitBits) == 0);
    if (!__any_sync(0xffffffffu, counts)) continue;
    const uint64_t weight = counts ? p.weight(row, logit) : 0;
    const uint32_t digit = key >> shift & (kDigits - 1);
#pragma unroll
    for (uint32_t d = 0; d < kDigits; ++d) {
      sums[d].count += counts && digit == d ? 1 : 0;
      sums[d].weight += digit == d ? weight : 0;
    }
  }
#pragma unroll
  for (int d = 0; d < kDigits; ++d) {
    const Mass sum = over_warp(sums[d]);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32][d] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= kDigits) return;
  Mass sum;
  for (int w = 0; w < kWarps; ++w) sum += of_warp[w][threadIdx.x];
  to[(int64_t{row} * p.slices + blockIdx.x) * kDigits + threadIdx.x] = sum;
}

// How many of the equal candidates at the end of a search belong to it: `needed` more of their weight, at least one.
__device__ inline uint32_t equals_for(double needed, uint64_t weight, uint32_t there) {
  const double count = weight > 0 ? ceil(needed / static_cast<double>(weight)) : 1;
  return static_cast<uint32_t>(fmin(fmax(count, 1.0), static_cast<double>(there)));
}

// The place of the `rank`th id, from 0, with this key.
__device__ int find_equal(const Params& p, int row, uint32_t key, uint32_t rank) {
  __shared__ int found;
  __shared__ uint32_t of_warp[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, digit = static_cast<int>(key % kDigits);
  int slice = 0;
  for (; slice + 1 < p.slices && rank >= p.parts_of(row, slice)[digit].count; ++slice) {
    rank -= p.parts_of(row, slice)[digit].count;
  }
  if (threadIdx.x == 0) found = 0;
  uint32_t before = 0;
  for (int i = 0; i < kPerThread; ++i) {
    const int id = slice * kSlice + i * kThreads + static_cast<int>(threadIdx.x);
    const bool equal = id < p.vocab && id != p.excluded && key_of(p.logit(row, id)) == key;
    const unsigned votes = __ballot_sync(0xffffffffu, equal);
    if (lane == 0) of_warp[warp] = static_cast<uint32_t>(__popc(votes));
    __syncthreads();
    uint32_t at = before + static_cast<uint32_t>(__popc(votes & ((1u << lane) - 1)));
    for (int w = 0; w < kWarps; ++w) {
      at += w < warp ? of_warp[w] : 0;
      before += of_warp[w];
    }
    if (equal && at == rank) found = id;
    __syncthreads();
  }
  return found;
}

// After the last pass: what is kept, or the token.
__global__ void __launch_bounds__(kThreads) finish(const __grid_constant__ Params p) {
  __shared__ Mass of_digit[kDigits];
  const int row = blockIdx.x;
  RowState& state = p.states[row];
  const TokenDraw& draw = p.draws[row];
  const bool token = p.stage == Stage::kToken;
  if (draw.temperature <= 0) {
    const int id = p.best[row * p.best_stride];
    if (token && threadIdx.x == 0) p.ids[row] = id, p.chosen[row] = p.logits[row * p.stride + id];
    return;
  }
  const Search search = before_pass(p, row, of_digit);
  if (search.until == Search::Until::kNothing) return;
  const uint64_t weight = p.weight(row, logit_of(search.key));
  const uint32_t there = of_digit[search.key % kDigits].count;
  const double needed =
      search.target -
      static_cast<double>(search.until == Search::Until::kCount ? search.above.count : search.above.weight);
  if (token) {
    const double rank = weight > 0 ? floor(needed / static_cast<double>(weight)) : 0;
    const auto last = static_cast<double>(min(there, max(state.kept.count - search.above.count, 1u)) - 1);
    const int id = find_equal(p, row, search.key, static_cast<uint32_t>(fmin(fmax(rank, 0.0), last)));
    if (threadIdx.x == 0) p.ids[row] = id, p.chosen[row] = p.logits[row * p.stride + id];
    return;
  }
  if (threadIdx.x != 0) return;
  const uint32_t equals = equals_for(needed, search.until == Search::Until::kCount ? 1 : weight, there);
  Mass kept = search.above;
  kept += {equals * weight, equals};
  if (kept.count < state.kept.count) state.kept = kept;
}

// Of two beginnings of the order the shorter one is left.
__global__ void __launch_bounds__(32) cut_unlikely(const __grid_constant__ Params p) {
  RowState& state = p.states[blockIdx.x];
  if (p.draws[blockIdx.x].temperature <= 0 || threadIdx.x != 0) return;
  if (state.likely.count > 0 && state.likely.count < state.kept.count) state.kept = state.likely;
}

void search(Params p, Stage stage, Mass* const (&parts)[2], unsigned rows, cudaStream_t stream) {
  p.stage = stage;
  const dim3 grid(static_cast<unsigned>(p.slices), rows);
  for (p.pass = 0; p.pass < kPasses; ++p.pass) {  // reads what the pass before wrote
    p.parts = parts[(p.pass + 1) % 2];
    count_digits<<<grid, kThreads, 0, stream>>>(p, parts[p.pass % 2]);
    check_launch("sample_tokens");
  }
  p.parts = parts[(kPasses + 1) % 2];
  finish<<<rows, kThreads, 0, stream>>>(p);
  check_launch("sample_tokens");
}

}  // namespace

void sample_tokens(const SampleTokensArgs& a, const OpContext& context) {
  check(a);
  const int64_t rows = a.logits.dim(0);
  if (rows == 0) return;
  const Stream& stream = stream_of(context);
  const int slices = (a.vocab + kSlice - 1) / kSlice;
  const int64_t parts = rows * slices * kDigits,
                bytes = parts * 2 * static_cast<int64_t>(sizeof(Mass)) + rows * static_cast<int64_t>(sizeof(RowState));
  HR_REQUIRE(static_cast<size_t>(bytes) <= stream.scratch_bytes && rows <= 65535 && a.vocab < 1 << 19,
             ErrorCode::kInvalidArgument, "sample_tokens: ", rows, " rows of ", a.vocab,
             " logits, expected at most 65535 of 524287 that the device's scratch memory holds");
  auto* states = static_cast<RowState*>(stream.scratch);
  auto* memory = reinterpret_cast<Mass*>(states + rows);
  Mass* const halves[] = {memory, memory + parts};
  Params p{.logits = static_cast<const float*>(a.logits.data()),
           .stats = static_cast<const float*>(a.stats.data()),
           .best = static_cast<const int32_t*>(a.best.data()),
           .draws = static_cast<const TokenDraw*>(a.draws.data()),
           .stride = a.logits.stride(0),
           .best_stride = a.best.stride(0),
           .stats_stride = a.stats.stride(0),
           .vocab = a.vocab,
           .excluded = a.excluded_id.value_or(-1),
           .slices = slices,
           .parts = memory,
           .states = states,
           .ids = static_cast<int32_t*>(a.ids.data()),
           .chosen = static_cast<float*>(a.chosen.data())};
  const auto count = static_cast<unsigned>(rows);
  weigh<<<dim3(static_cast<unsigned>(slices), count), kThreads, 0, stream.handle>>>(p);
  check_launch("sample_tokens");
  keep_all<<<count, 32, 0, stream.handle>>>(p);
  check_launch("sample_tokens");
  if (a.top_k == SampleTokensArgs::Limits::kSome) search(p, Stage::kTopK, halves, count, stream.handle);
  if (a.top_p == SampleTokensArgs::Limits::kSome) search(p, Stage::kTopP, halves, count, stream.handle);
  cut_unlikely<<<count, 32, 0, stream.handle>>>(p);
  check_launch("sample_tokens");
  search(p, Stage::kToken, halves, count, stream.handle);
}

}  // namespace headrace::cuda
