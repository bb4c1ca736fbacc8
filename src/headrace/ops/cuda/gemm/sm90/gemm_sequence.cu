// GEMM sequence: consecutive GEMMs of M <= 4 in one persistent kernel, bound by the bytes of all of their weights.
//
// There is one CTA per SM, and each takes an equal share of every weight's rows. K is cut into slices; two consumer
// warpgroups multiply every other slice each. Each has a producer warp, which loads the weights of all steps through a
// pipeline in shared memory and does not stop between steps. A grid barrier separates two steps, since x is what all
// CTAs have written. If possible, CTAs hand x over with the flag in the data (gemm_sequence_hand_over.h).
//
// Weights are the A operand of WGMMA, as they lie in memory: its 64 rows are four rows of each of two TMA boxes, at
// eight chunks of 64 elements of K. B has the rows of x at the same eight chunks. Of all chunk-by-chunk products only
// the eight that belong together count, and the rest is wasted. The tensor cores have time for that, and a warp needs
// next to no instructions. The sums of eight chunks by two warpgroups are the sixteen K splits of gemm_common.cuh, so a
// row has the bits of batch-invariant mode.
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/tensor_map.h"
#include "headrace/ops/cuda/gemm/gemm.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_input.cuh"

namespace headrace::cuda {
namespace {

using namespace gemm_sequence;  // NOLINT: the kernel's own names

template <class T>
struct Multiplier {
  using Sums = float[kColumns][4];
  static constexpr int kPartFloats = GemmSequencePlan::kPartFloats;
  Steps& p;
  const Shared shared;
  const int team;
  Ring ring{p, shared, team};
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;  // of the warpgroup
  Input<T> input{p, shared, team, warp, lane};
  Meeting meeting{p.barrier};

  static __device__ uint32_t uniform(uint32_t v) { return __shfl_sync(0xffffffffu, v, 0); }
  // Takes a pipeline slot for each tile and waits for the next while one is multiplied. The code is straight-line: only
  // then does the compiler let MMAs with so many accumulators overlap other instructions.
  template <int kTiles>
  __device__ void multiply_slice(Sums (&sums)[kTiles], uint32_t x_slice) {
    const uint32_t x = uniform(operand_low(x_slice, 0));
    uint32_t empty[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint32_t w = uniform(operand_low(ring.slot(), 0));
      empty[tile] = ring.empty();
      barrier_wait(ring.full(), ring.phase);
      ring.next();
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < GemmSequencePlan::kChunkLen / 16; ++k) {
        wgmma_shared<T>(sums[tile], operand(w + k * 2), operand(x + k * 2), Add::kYes);
      }
      wgmma_commit();
      if (tile == 0) continue;
      wgmma_wait<1>();
      if (lane == 0) barrier_arrive(empty[tile - 1]);
    }
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(empty[kTiles - 1]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) hold(sums[tile]);
  }

  // A warp has sums of four weight rows at four chunks. A thread's two rows belong to two chunks; of its columns those
  // count that stand for the same chunk, and eight columns are two chunks. Splits are numbered as in gemm_common.cuh:
  // first the chunks of even slices.
  __device__ void store_parts(int tile, int first_slice, const Sums& sums) const {
    const bool upper = warp % 2 != 0, odd = lane >= 16;  // chunks 4 to 7; the odd ones
    int row = lane % 4 * 2;                              // this row of x and the next one
    if ((row >= kColumns) != odd) return;
    row %= kColumns;
    const int part = first_slice * GemmSequencePlan::kSliceChunks + (upper ? 4 : 0) + (odd ? 1 : 0);
    float* const to = shared.parts + part * kPartFloats + (tile * 2 + warp / 2) * kUnitRows + lane / 4 % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float low = upper ? sums[2][i] : sums[0][i], high = upper ? sums[3][i + 2] : sums[1][i + 2];
      to[GemmSequencePlan::row_at(row + i)] = low, to[2 * kPartFloats + GemmSequencePlan::row_at(row + i)] = high;
    }
  }
  __device__ float total(int row, int at) const {
    const float* const part = shared.parts + GemmSequencePlan::row_at(row) + at;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kSegments; ++s) sum += part[s * kPartFloats];
    return sum;
  }
  __device__ float value_of(const Step& step, const Output& out, uint32_t residual) const {
    const Result& result = step.products[out.product].result;
    const int of_first = out.at + out.at / kUnitRows * kUnitRows;  // SwiGLU: units of both weights alternate
    float sum = step.combined ? silu_for(result.y.type, total(out.row, of_first)) * total(out.row, of_first + kUnitRows)
                              : total(out.row, out.at);
    if (result.bias != nullptr) sum += load(result.bias, result.bias_type, out.column);
    if (result.residual.data != nullptr) sum += load(&residual, result.residual.type, 0);
    return sum;
  }
  // Writes the next step's x: four lanes hold four neighbours, all of which exist.
  __device__ void hand_over(const Rows& x, const Output& out, float value) const {
    const uint32_t bits = bits_of<T>(value);
    const uint32_t pair = bits | __shfl_down_sync(0xffffffffu, bits, 1) << 16;
    const uint32_t next_pair = __shfl_down_sync(0xffffffffu, pair, 2);
    if (!out.wanted || out.at % kUnitRows != 0) return;
    write_word(static_cast<T*>(x.data) + x.at(out.row) + out.column, pair, next_pair);
  }
  __device__ void write(const Step& step, const Output& out, uint32_t residual) const {
    const float value = out.wanted ? value_of(step, out, residual) : 0.0f;
    if (step.hands_over) hand_over((&step + 1)->x, out, value);
    if (out.wanted) step.products[out.product].result.y.set(out.row, 0, out.column, value);
  }

  template <int kTiles>
  __device__ void multiply_group(const Step& step, Slices& x) {
    Sums sums[kTiles] = {};
    const int slices = GemmSequencePlan::team_slices(step.slices, x.first_slice);
    for (int i = 0; i < slices; ++i) {
      multiply_slice(sums, x.whole ? input.slice(i, x.first_slice) : input.take(step, x));
    }
    named_barrier<kGroupMultiplied, kConsumers>();  // the previous group's sums are read
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) store_parts(tile, x.first_slice, sums[tile]);
    if (x.whole) x.first_slice = (x.first_slice + 1) % kTeams;
  }
  // One thread calls it once x is here, so that no thread waits for it.
  __device__ void begin_step(int s) {
    atomicExch(shared.step, s);
    if (s == 0) open_hand_over();
    const bool last = s + 1 == p.num_steps;
    if (!last && p.steps[s + 1].after == After::kEarlierSeen) __threadfence();  // for what is older than this step
  }
  // Selects the generation of this launch's values by the barrier's highest bit at the start, which was read before the
  // first step's x was loaded.
  __device__ void open_hand_over() {
    const int64_t mine = meeting.before >> 31 != 0 ? HandOver::kBytes : 0;
    *shared.other_values = p.exchange + (HandOver::kBytes - mine);
    for (int s = 1; s < p.num_steps; ++s) {
      if (p.steps[s].handed) p.steps[s].x.data = static_cast<char*>(p.steps[s].x.data) + mine;
    }
  }
  // Signals the other CTAs about step s. If x is handed over, the signal only says when to load it. This CTA then
  // signals when it has its last sums; its values are written when the others load them. After an earlier signal they
  // would load twice. If x is not handed over, the signal follows the writes.
  enum class Has : uint8_t { kSums, kWritten };
  __device__ void tell(int s, Has has) const {
    if (threadIdx.x != 0 || s + 1 == p.num_steps) return;
    const After after = p.steps[s + 1].after;
    if ((after == After::kSeen) == (has == Has::kWritten)) meeting.arrive(after);
  }
  __device__ void run_step(int s) {
    const Step& step = p.steps[s];
    const Share share(step);
    const bool empty = share.empty();
    Slices x = empty ? Slices{} : input.begin(step);
    if (threadIdx.x == 0) begin_step(s);
    if (s > 0 && s + 1 == p.num_steps) forget_values(*shared.other_values);
    if (empty) return tell(s, Has::kSums);
    for_groups(step, [&](int begin, int end) {
      const Output out(p, step, begin, end);
      const Rows& from = step.products[0].result.residual;  // only a single GEMM has a residual
      const uint32_t residual = out.wanted && from.data != nullptr ? fresh_bits(from, out.row, out.column) : 0;
      switch (step.tiles(end - begin)) {
        case 1: multiply_group<1>(step, x); break;
        case 2: multiply_group<2>(step, x); break;
        default: multiply_group<3>(step, x);
      }
      named_barrier<kGroupSummed, kConsumers>();
      if (end == share.end) tell(s, Has::kSums);
      write(step, out, residual);
    });
    named_barrier<kStepDone, kConsumers>();
  }

  __device__ void run() {
    for (int s = 0; s < p.num_steps; ++s) {
      input.fetch_norm(p.steps[s]);  // a constant: no wait needed
      if (s == 0) {
        pdl_wait();
        if (threadIdx.x == 0) meeting.begin();
      } else {
        if (threadIdx.x == 0) meeting.wait(p.steps[s].after);
        named_barrier<kStepMay, kConsumers>();
      }
      run_step(s);
      tell(s, Has::kWritten);
    }
    const bool even_meetings = p.num_steps % 2 != 0;  // hand-over needs an odd number of barriers in a launch
    if (p.num_steps > 1 && even_meetings && threadIdx.x == 0) meeting.arrive(After::kAsked);
  }
};

constexpr unsigned kStepsPieces = (sizeof(Steps) + 15) / 16;
static_assert(kStepsPieces <= kThreads && offsetof(Params, steps) % 16 == 0 &&
              sizeof(Params) >= offsetof(Params, steps) + kStepsPieces * 16);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Loads 16 bytes of a kernel's parameters by an ordinary load, because the constant cache serves lanes that read
// different words one by one. Parameters lie in a window of global memory (PTX, "generic addressing").
__device__ inline uint4 load_parameter(const void* from, unsigned piece) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(static_cast<const char*>(from) + piece * 16));
  return x;
}
// Prefetches the TMA descriptors of the first step's weights; the producer warps call it.
__device__ inline void prefetch_maps(const Params& given) {
  const unsigned product = threadIdx.x % 32;
  if (product < FusedLinearArgs::kMaxProducts && given.steps.steps[0].products[product].rows > 0) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&given.weights[0][product]) : "memory");
  }
}
// Initialises the mbarriers of a warpgroup's pipeline with one warp, a slot for each lane.
__device__ inline void init_barriers(const Steps& p, const Shared& shared, int team) {
  static_assert(GemmSequencePlan::kMostSlots <= 32);
  const int slot = static_cast<int>(threadIdx.x) % 32;
  if (slot < p.plan.slots) {
    Ring ring(p, shared, team);
    ring.next_slot = slot;
    barrier_init(ring.full(), 1), barrier_init(ring.empty(), kTeamThreads / 32);
  }
  fence_barrier_init();
}

#endif

// Register limit of the 10 warps, so that the small kernels between two sequences find room beside a CTA.
template <class T>
__global__ void __maxnreg__(104) gemm_sequence_kernel(const __grid_constant__ Params given) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char base[];
  // No data streams while a sequence begins, so all that it needs first comes in one trip to memory. Indexed parameters
  // would come line by line when they are needed, so all of them are copied.
  __shared__ uint4 copy[kStepsPieces];
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (warp >= kConsumers / 32) prefetch_maps(given);
  if (threadIdx.x < kStepsPieces) copy[threadIdx.x] = load_parameter(&given.steps, threadIdx.x);
  const Shared shared(given.steps, base);
  if (threadIdx.x == 0) *shared.step = 0;
  if (warp < kTeams) init_barriers(given.steps, shared, warp);
  __syncthreads();
  pdl_launch_dependents();
  Steps& p = *reinterpret_cast<Steps*>(copy);
  if (warp >= kConsumers / 32) {
    if (threadIdx.x % 32 == 0) bring_weights(given, p, shared, warp - kConsumers / 32);
  } else {
    Multiplier<T>{p, shared, warp / 4}.run();
  }
#endif
}

// Returns a step whose x is not handed over.
Step step_of(const FusedLinearArgs& a, int blocks) {
  Step step{.x = Rows(a.x),
            .norm_weight = a.norm_weight.data(),
            .eps = a.eps,
            .weight_offset = a.norm_form == WeightForm::kPlusOne ? 1.0f : 0.0f,
            .products = {},
            .in = static_cast<int>(a.x.dim(1)),
            .slices = GemmSequencePlan::slices_of(a.x.dim(1)),
            .units = 0,
            .units_more = 0,
            .combined = a.combine == FusedLinearArgs::Combine::kSiluMul,
            .whole_chunks = a.x.dim(1) % GemmSequencePlan::kChunkLen == 0,
            .handed = false,
            .hands_over = false,
            .after = After::kSeen};
  for (int i = 0; i < a.num_products; ++i) {
    const FusedLinearArgs::Product& product = a.products[static_cast<size_t>(i)];
    const auto rows = static_cast<int>(product.weight.dim(0));
    if (!step.combined || i == 0) step.units += (rows + kUnitRows - 1) / kUnitRows;
    step.products[i] = {.rows = rows,
                        .end_unit = step.units,
                        .result = {.y = Rows(product.y),
                                   .residual = Rows(a.residual),
                                   .bias = product.bias.data(),
                                   .bias_type = product.bias.dtype()}};
  }
  step.units_more = step.units % blocks;
  step.units /= blocks;
  return step;
}

// Makes step `to` get x from the step before, in the first generation.
void hand_over(const HandOver::Step& place, size_t to, Steps& steps) {
  Step& step = steps.steps[to];
  step.x.data = steps.exchange + place.x_at;
  step.x.token_stride = step.in;
  step.after = place.after;
  step.handed = steps.steps[to - 1].hands_over = true;
}

// A TMA box has a unit's rows, of a slice if rows are whole chunks, else of one chunk.
CUtensorMap map_of_weight(const TensorView& weight) {
  constexpr const char* kOp = "gemm_sequence";
  return weight.dim(1) % GemmSequencePlan::kChunkLen == 0
             ? map_of_chunks(weight, kUnitRows, GemmSequencePlan::kSliceChunks, kOp)
             : map_of_rows(weight, kUnitRows, kOp);
}

GemmSequencePlan plan_of(std::span<const FusedLinearArgs> calls) {
  GemmSequenceStep steps[kMostSequenceSteps] = {};
  int count = 0;
  for (const FusedLinearArgs& a : calls) {
    steps[count++] = {.in = a.x.dim(1), .normed = a.norm_weight.data() != nullptr};
  }
  return plan_gemm_sequence(static_cast<int>(calls[0].x.dim(0)), steps, count);
}

}  // namespace

bool fit_one_sequence(std::span<const FusedLinearArgs> calls, const Stream& stream) {
  if (calls.size() > 1 && stream.grid_barrier == GridBarrier::kNone) return false;
  return calls.size() <= kMostSequenceSteps && calls.back().x.dim(0) == calls[0].x.dim(0) &&
         calls.back().x.dtype() == calls[0].x.dtype() && plan_of(calls).slots > 0;
}

void run_gemm_sequence(std::span<const FusedLinearArgs> calls, const Stream& stream) {
  Params p{.weights = {},
           .steps = {.steps = {},
                     .num_steps = static_cast<int>(calls.size()),
                     .rows = static_cast<int>(calls[0].x.dim(0)),
                     .plan = plan_of(calls),
                     .barrier = stream.counters + Stream::kCounters,
                     .exchange = static_cast<char*>(stream.hand_over)}};
  const HandOver exchange = plan_hand_over(calls);
  for (size_t i = 0; i < calls.size(); ++i) {
    p.steps.steps[i] = step_of(calls[i], stream.num_sms);
    if (exchange.steps[i].x_at != HandOver::kNotHanded) hand_over(exchange.steps[i], i, p.steps);
    for (size_t j = 0; j < static_cast<size_t>(calls[i].num_products); ++j) {
      p.weights[i][j] = map_of_weight(calls[i].products[j].weight);
    }
  }
  void (*const kernel)(Params) =
      calls[0].x.dtype() == DType::kBF16 ? gemm_sequence_kernel<__nv_bfloat16> : gemm_sequence_kernel<__half>;
  // CTAs that wait at a grid barrier must all be resident. They are: one stream of a process has the device's grid
  // barrier, and what else runs on the device ends by itself: work of other streams, and work queued before a sequence.
  // Work queued after it begins only when all of its CTAs have called pdl_launch_dependents(). Beside another process
  // two sequences could each hold a part of the device forever. There the launch is cooperative, which takes 2 us
  // longer after a kernel that leaves some SMs free.
  const bool as_a_whole = p.steps.num_steps > 1 && stream.grid_barrier == GridBarrier::kCooperative;
  launch_pdl(stream, kernel, dim3(static_cast<unsigned>(stream.num_sms)), dim3(kThreads),
             static_cast<size_t>(p.steps.plan.shared_bytes()), p, "gemm_sequence",
             {.runs = as_a_whole ? GridRuns::kAtOnce : GridRuns::kInAnyOrder});
}

}  // namespace headrace::cuda
