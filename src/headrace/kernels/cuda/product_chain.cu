// A chain of products of at most 8 rows as one kernel, bound by the bytes of all of its weights.
//
// A block to each multiprocessor, an equal share of every product's rows to each block. Four warps bring the weights
// of all steps through a ring of shared memory, and do not stop where steps end. Eight warps multiply, each an eighth
// of every slice of the sum (matmul_parts.cuh); between two steps the blocks meet, since x is what all of them have
// written. A lane of a warp multiplies with the same elements of x in every tile: it keeps copies of its own.
#include "headrace/kernels/cuda/launch.cuh"
#include "headrace/kernels/cuda/matmul.h"
#include "headrace/kernels/cuda/product_chain.cuh"

namespace headrace::cuda {
namespace {

using namespace chain;  // NOLINT: the kernel's own names

template <class T>
struct Multiplier {
  static constexpr int kOutputs = Output::kGroupRows * ChainPlan::kMostRows / kConsumers;  // of a thread and a group
  const Params& p;
  const Shared shared;
  Ring ring{p.plan.slots};
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  __device__ int first_k(int slice) const { return slice * ChainPlan::kSliceLen + warp * kPartLen + lane % 4 * 8; }
  // This lane's pieces of one row of x, and of the norm's weight, which the rows share.
  __device__ uint4* x_piece(int slice, int chunk) const {
    return reinterpret_cast<uint4*>(shared.x) + ((slice * kChunks + chunk) * kWarps + warp) * 4 * p.rows + lane;
  }
  __device__ uint4* norm_piece(int slice, int chunk) const {
    return reinterpret_cast<uint4*>(shared.norm()) + ((slice * kChunks + chunk) * kWarps + warp) * 4 + lane % 4;
  }
  __device__ bool has_row() const { return lane / 4 < p.rows; }

  __device__ void fetch_norm(const Step& step) const {
    if (step.norm_weight == nullptr || lane >= 4 || Share(step).empty()) return;
    for (int slice = 0; slice < step.slices; ++slice) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int k = first_k(slice) + c * kChunkLen;
        const bool inside = k < step.in;
        copy16(shared_address(norm_piece(slice, c)), static_cast<const T*>(step.norm_weight) + (inside ? k : 0),
               inside);
      }
    }
  }
  // Past the caches of this multiprocessor: other blocks have just written it. Zeros behind the end.
  __device__ void fetch_x(const Step& step, int slice, int to) const {
    if (has_row()) {
      const T* const from = static_cast<const T*>(step.x.data) + step.x.at(lane / 4);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int k = first_k(slice) + c * kChunkLen;
        const bool inside = k < step.in;
        copy16(shared_address(x_piece(to, c)), from + (inside ? k : 0), inside);
      }
    }
  }
  __device__ float sum_of_squares(const Step& step) const {
    float sums[kChunks] = {};
#pragma unroll 1
    for (int slice = 0; slice < step.slices && has_row(); ++slice) {
      uint4 pieces[kChunks];  // all of them asked for before the first is used
#pragma unroll
      for (int c = 0; c < kChunks; ++c) pieces[c] = *x_piece(slice, c);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        for (const uint32_t word : {pieces[c].x, pieces[c].y, pieces[c].z, pieces[c].w}) {
          const float2 v = unpack2<T>(word);
          sums[c] = fmaf(v.x, v.x, fmaf(v.y, v.y, sums[c]));
        }
      }
    }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }
  __device__ void normalise(const Step& step) const {
    const float mine = sum_of_squares(step);
    if (lane % 4 == 0) shared.squares()[warp * ChainPlan::kMostRows + lane / 4] = mine;
    named_barrier<1, kConsumers>();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared.squares()[w * ChainPlan::kMostRows + lane / 4];
    if (!has_row()) return;
    const float scale = rsqrtf(sum / static_cast<float>(step.in) + step.eps);
#pragma unroll 1
    for (int slice = 0; slice < step.slices; ++slice) {
      uint4 pieces[kChunks], factors[kChunks];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) pieces[c] = *x_piece(slice, c), factors[c] = *norm_piece(slice, c);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint32_t factor_words[] = {factors[c].x, factors[c].y, factors[c].z, factors[c].w};
        uint32_t* const words[] = {&pieces[c].x, &pieces[c].y, &pieces[c].z, &pieces[c].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 v = unpack2<T>(*words[j]), f = unpack2<T>(factor_words[j]);
          *words[j] = pack2<T>(v.x * scale * (f.x + step.weight_offset), v.y * scale * (f.y + step.weight_offset));
        }
        *x_piece(slice, c) = pieces[c];
      }
    }
  }

  // The tile whose weights come next: 16 rows by this warp's part of a slice. Two chains of products, since each waits
  // for the one before.
  __device__ float4 multiply_tile(int in, bool two, int slice, const uint4 (&x)[kChunks]) {
    const int offset = lane / 4 * ChainPlan::kSlotPitch + warp * kPartLen * 2 + lane % 4 * 16;
    uint4 low[kChunks], high[kChunks];
    const auto take = [&](uint4(&pieces)[kChunks]) {
      barrier_wait(shared.full(ring.slot), ring.phase);
      const char* const from = shared.slot(ring.slot) + offset;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const bool inside = first_k(slice) + c * kChunkLen < in;
        pieces[c] = inside ? *reinterpret_cast<const uint4*>(from + c * kChunkLen * 2) : uint4{};
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.empty(ring.slot));
      ring.next();
    };
    take(low);
    if (two) {
      take(high);
    } else {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) high[c] = low[c];  // rows that nobody writes
    }
    float parts[2][4] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) multiply_chunk<T>(parts[c % 2], low[c], high[c], x[c]);
    return {parts[0][0] + parts[1][0], parts[0][1] + parts[1][1], parts[0][2] + parts[1][2], parts[0][3] + parts[1][3]};
  }

  __device__ float total(const Output& out, int tile_row) const {
    // Of the four sums of a lane: two rows of x, of a row of the lower slot and of the upper.
    const int lane_of = tile_row % 8 * 4 + out.row / 2, sum_of = tile_row / 8 * 2 + out.row % 2;
    const float4* const parts = shared.parts + out.tile * kWarps * 32 + lane_of;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += reinterpret_cast<const float*>(parts + w * 32)[sum_of];
    return sum;
  }
  __device__ void write(const Step& step, const Output& out, uint32_t residual) const {
    float sum = total(out, out.tile_row);
    if (step.combined) sum = silu(sum) * total(out, out.tile_row + ChainPlan::kSlotRows);
    const Place place(step, out.unit);
    const Result& result = step.products[place.product].result;
    if (result.bias != nullptr) sum += load(result.bias, result.bias_type, place.row);
    if (result.residual.data != nullptr) sum += load(&residual, result.residual.type, 0);
    result.y.set(out.row, 0, place.row, sum);
  }

  // x's slices as they are needed: all of them are here, or the next are under way.
  struct Slices {
    int held, next = 0, left = 0;  // next: to be fetched; left: fetches to come
    bool whole;
  };
  __device__ Slices begin_x(const Step& step) const {
    Slices x{.held = p.plan.slices, .whole = step.slices <= p.plan.slices};
    const int now = min(step.slices, x.held);
#pragma unroll 1
    for (; x.next < now; ++x.next) {
      fetch_x(step, x.next, x.next);
      commit_copies();
    }
    const Share share(step);
    const int units = ChainPlan::kGroupTiles * step.tile_units();
    for (int unit = share.begin; unit < share.end; unit += units) x.left += step.slices;
    x.left -= now;
    if (x.whole) {
      wait_copies<0>();
      __syncwarp();  // four lanes fetched the norm's weight for all
    }
    return x;
  }

  __device__ void run_step(const Step& step) {
    if (Share(step).empty()) return;
    Slices held = begin_x(step);
    if (step.norm_weight != nullptr) normalise(step);
    int at = 0;
    for_groups(step, [&](int begin, int end) {
      uint32_t residuals[kOutputs] = {};
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        const Output out(step, begin, threadIdx.x + i * kConsumers);
        const Rows& from = step.products[0].result.residual;  // of one product alone: a unit is its row
        if (from.data == nullptr || out.row >= p.rows || !out.wanted(step, end)) continue;
        residuals[i] = fresh_bits(from, out.row, out.unit);
      }
      for (int slice = 0; slice < step.slices; ++slice) {
        if (!held.whole) wait_copies<1>();
        uint4 x[kChunks];
#pragma unroll
        for (int c = 0; c < kChunks; ++c) x[c] = has_row() ? *x_piece(at, c) : uint4{};
        float4* sums = shared.parts + threadIdx.x;
#pragma unroll 1
        for (int unit = begin; unit < end; unit += step.tile_units(), sums += kConsumers) {
          float4 sum = multiply_tile(step.in, slot_rows(step, unit, end, 1) > 0, slice, x);
          if (slice > 0) {
            const float4 before = *sums;
            sum = {before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w};
          }
          *sums = sum;
        }
        if (!held.whole) {
          if (held.next == step.slices) held.next = 0;
          if (held.left-- > 0) fetch_x(step, held.next++, at);
          commit_copies();
        }
        if (++at == (held.whole ? step.slices : held.held)) at = 0;
      }
      named_barrier<1, kConsumers>();
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        const Output out(step, begin, threadIdx.x + i * kConsumers);
        if (out.row < p.rows && out.wanted(step, end)) write(step, out, residuals[i]);
      }
      named_barrier<1, kConsumers>();
    });
  }

  __device__ void run() {
    Meeting meeting{p.barrier, 0};
    for (int s = 0; s < p.num_steps; ++s) {
      fetch_norm(p.steps[s]);  // a constant, so it waits for nobody
      if (s == 0) {
        wait_for_previous();
        if (threadIdx.x == 0) meeting.before = Meeting::read(p.barrier);
      } else {
        if (threadIdx.x == 0) meeting.wait();
        named_barrier<1, kConsumers>();
      }
      run_step(p.steps[s]);
      if (s + 1 < p.num_steps && threadIdx.x == 0) meeting.arrive();  // its block has written all
    }
  }
};

// Registers of 12 warps, so that the small kernels between two chains find room beside a block.
template <class T>
__global__ void __maxnreg__(96) run_chain(const __grid_constant__ Params given) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char base[];
  // Parameters that are indexed come from memory line by line, when they are needed: all of them at once, and early.
  __shared__ __align__(16) uint32_t copy[sizeof(Params) / 4];
  for (unsigned i = threadIdx.x; i < sizeof(Params) / 4; i += kThreads) {
    copy[i] = reinterpret_cast<const uint32_t*>(&given)[i];
  }
  __syncthreads();
  const Params& p = *reinterpret_cast<const Params*>(copy);
  const Shared shared(p, base);
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.plan.slots; ++i) barrier_init(shared.full(i), 1), barrier_init(shared.empty(i), kWarps);
    fence_barrier_init();
  }
  __syncthreads();
  let_next_start();
  if (threadIdx.x >= kConsumers) {
    bring_weights(p, shared);
  } else {
    Multiplier<T>{p, shared}.run();
  }
#endif
}

Step step_of(const FusedLinearArgs& a, int blocks) {
  Step step{.x = Rows(a.x),
            .norm_weight = a.norm_weight.data(),
            .eps = a.eps,
            .weight_offset = a.norm_form == WeightForm::kPlusOne ? 1.0f : 0.0f,
            .products = {},
            .in = static_cast<int>(a.x.dim(1)),
            .slices = ChainPlan::slices_of(a.x.dim(1)),
            .units = 0,
            .units_more = 0,
            .combined = a.combine == FusedLinearArgs::Combine::kSiluMul};
  for (int i = 0; i < a.num_products; ++i) {
    const FusedLinearArgs::Product& product = a.products[static_cast<size_t>(i)];
    if (!step.combined || i == 0) step.units += static_cast<int>(product.weight.dim(0));
    step.products[i] = {.weight = static_cast<const char*>(product.weight.data()),
                        .row_bytes = product.weight.stride(0) * 2,
                        .end_row = step.units,
                        .result = {.y = Rows(product.y),
                                   .residual = Rows(a.residual),
                                   .bias = product.bias.data(),
                                   .bias_type = product.bias.dtype()}};
  }
  step.units_more = step.units % blocks;
  step.units /= blocks;
  return step;
}

ChainPlan plan_of(const std::vector<FusedLinearArgs>& chain) {
  ChainStep steps[ProductChain::kMost] = {};
  int count = 0;
  for (const FusedLinearArgs& a : chain) {
    steps[count++] = {.in = a.x.dim(1), .normed = a.norm_weight.data() != nullptr};
  }
  return plan_chain(static_cast<int>(chain[0].x.dim(0)), steps, count);
}

}  // namespace

bool ProductChain::supports(const FusedLinearArgs& a, const Stream& stream) {
  return stream.arch >= 90 && a.x.dim(0) <= ChainPlan::kMostRows && few_rows_supports(a) &&
         (!a.norm_weight ||
          (a.norm_weight.dtype() == a.x.dtype() && reinterpret_cast<uintptr_t>(a.norm_weight.data()) % 16 == 0)) &&
         plan_of({a}).slots > 0;
}

bool ProductChain::pays(const FusedLinearArgs& a) {
  int64_t bytes = 0;
  bool as_x = true;
  for (int i = 0; i < a.num_products; ++i) {
    const FusedLinearArgs::Product& product = a.products[static_cast<size_t>(i)];
    bytes += product.weight.bytes();
    as_x = as_x && (!product.y || product.y.dtype() == a.x.dtype());
  }
  return chain_pays(bytes, as_x);
}

void ProductChain::add(const FusedLinearArgs& a, const Stream& stream) {
  const std::lock_guard lock(mutex_);
  const bool fits = waiting_.empty() || (waiting_.size() < kMost && waiting_[0].x.dim(0) == a.x.dim(0) &&
                                         waiting_[0].x.dtype() == a.x.dtype());
  if (!fits) launch_waiting(stream);
  waiting_.push_back(a);
  if (plan_of(waiting_).slots > 0) return;
  waiting_.pop_back();
  launch_waiting(stream);
  waiting_.push_back(a);
}

void ProductChain::launch(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (!waiting_.empty()) launch_waiting(stream);
}

void launch_waiting(const Stream& stream) { stream.chain->launch(stream); }

void ProductChain::launch_waiting(const Stream& stream) {
  Params p{.steps = {},
           .num_steps = static_cast<int>(waiting_.size()),
           .rows = static_cast<int>(waiting_[0].x.dim(0)),
           .plan = plan_of(waiting_),
           .barrier = stream.counters + Stream::kCounters};
  for (size_t i = 0; i < waiting_.size(); ++i) p.steps[i] = step_of(waiting_[i], stream.num_sms);
  void (*const kernel)(Params) = waiting_[0].x.dtype() == DType::kBF16 ? run_chain<__nv_bfloat16> : run_chain<__half>;
  waiting_.clear();  // also where the launch fails: its error is told once
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ChainPlan::kSharedBytes),
             "product_chain: asking for shared memory");
  launch_early(stream, kernel, dim3(static_cast<unsigned>(stream.num_sms)), dim3(kThreads),
               static_cast<size_t>(p.plan.shared_bytes(p.rows)), p, "product_chain", 1,
               p.num_steps > 1 ? GridRuns::kAtOnce : GridRuns::kInAnyOrder);
}

}  // namespace headrace::cuda
