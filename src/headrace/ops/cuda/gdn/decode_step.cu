// A decode step of Gated DeltaNet in one kernel: convolution, SiLU, L2 norms, gates, recurrence and gated norm.
//
// One CTA handles a value head of a request. With few requests, 2 or 4 CTAs split the rows of its state, so that an SM
// waits for 32 or 16 KiB of state instead of 64. While the state is loading, each CTA computes the channels of q and k
// itself, and its own channels of v. Every state is read and written once. A row's arithmetic does not depend on the
// split, so the bits do not either.
//
// The CTAs of all value heads of a key head form a cluster, because they use the same channels of the convolution's
// state. The cluster's first CTA alone updates that state, after all CTAs have read it. The first CTA of a head
// collects the head's outputs and computes their norm.
#include "headrace/ops/cuda/arch/cluster.cuh"
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/arch/mma_sm80.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/gdn/gdn_plan.h"
#include "headrace/ops/cuda/gdn/gdn_rows.cuh"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kWidth = 4;  // taps of the convolution

// Sizes with kBlocks CTAs per head.
template <int kBlocks>
struct Split {
  static constexpr int kWarps = kBlocks == 1 ? 16 : 32 / kBlocks, kThreads = kWarps * 32;
  static constexpr int kRows = kHeadDim / kBlocks, kLaneRows = kRows / (kWarps * kWarpRows);
  static constexpr int kChannels = 2 * kHeadDim + kRows;                  // q, k and the CTA's part of v
  static constexpr int kWindows = (kChannels + kThreads - 1) / kThreads;  // per thread
  static_assert(kThreads >= kHeadDim && kBlocks <= kMostGDNCluster);
};

// Signals that this thread has loaded the cluster's shared inputs into registers. A no-op before sm_90, which has no
// clusters: the kernel is not launched there.
__device__ inline void arrive_having_read() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  cluster_wait_acquire();
#endif
}

// Outputs of a head in the shared memory of its first CTA, sent by all CTAs of the head. Each store signals its bytes
// to an mbarrier; a cluster barrier would also wait for the stores of the state.
struct HeadOutputs {
  float y[kHeadDim];
  uint64_t barrier;

#if __CUDA_ARCH__ >= 900
  // Called by the whole CTA. No CTA may send before all have called it.
  __device__ void open(bool is_first) {
    if (is_first && threadIdx.x == 0) {
      barrier_init(shared_address(&barrier), 1);
      fence_barrier_init();
    }
    cluster_arrive_release();
  }
  __device__ void send_to(unsigned block, int row, float x) const {
    send(address_in(shared_address(&y[row]), block), address_in(shared_address(&barrier), block), x);
  }
  // Called by a warp of the first CTA. Bytes may arrive before the expect_tx that counts them.
  __device__ void wait(int lane) const {
    if (lane == 0) barrier_expect(shared_address(&barrier), sizeof(y));
    barrier_wait_sent(shared_address(&barrier), 0);
  }
#else
  __device__ void open(bool) {}
  __device__ void send_to(unsigned, int, float) const {}
  __device__ void wait(int) const {}
#endif
};

__device__ inline void prefetch_line(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory"); }

struct Params {
  Rows x, a, b, gate, out;
  const void *conv_weight, *norm_weight;
  void* conv_state;
  DType norm_weight_type;
  const float *a_log, *dt_bias;
  float* state;
  int64_t conv_slot_stride, slot_stride, head_stride;
  int k_heads, v_heads;
  float eps;
  const StateSlots* slots;
};

// Convolution window of one channel: the stored inputs, then the token's.
template <class T>
struct Window {
  T x[kWidth];
  Bits4<T> weights;

  __device__ void load_weights(const Params& p, int channel) {
    weights = load_bits4(static_cast<const T*>(p.conv_weight) + channel * kWidth);
  }
  __device__ void load(const Params& p, int64_t token, int read, int channel) {
    x[kWidth - 1] = static_cast<const T*>(p.x.data)[p.x.at(token) + channel];
    const T* const kept = states(p, read, channel);
#pragma unroll
    for (int j = 0; j < kWidth - 1; ++j) x[j] = read == kNoState ? T(0.0f) : kept[j];
  }
  __device__ float convolved() const {
    const float4 weight = floats<T>(weights);
    float sum = fmaf(weight.x, static_cast<float>(x[0]), 0.0f);
    sum = fmaf(weight.y, static_cast<float>(x[1]), sum);
    sum = fmaf(weight.z, static_cast<float>(x[2]), sum);
    sum = fmaf(weight.w, static_cast<float>(x[3]), sum);
    return static_cast<float>(static_cast<T>(silu_of<T>(sum)));
  }
  __device__ void save(const Params& p, int write, int channel) const {
    T* const kept = states(p, write, channel);
#pragma unroll
    for (int j = 0; j < kWidth - 1; ++j) kept[j] = x[j + 1];
  }
  static __device__ T* states(const Params& p, int slot, int channel) {
    return static_cast<T*>(p.conv_state) + slot * p.conv_slot_stride + channel * (kWidth - 1);
  }
};

// Shared memory of a CTA.
struct Shared {
  HeadToken token;
  HeadOutputs outputs;
  float weight[kHeadDim], gate[kHeadDim];  // weight of the norm; silu(gate)
};

// Writes out = rms_norm(y) * weight * silu(gate), or y itself without a gate. Called by one warp; its halves do the
// same work. The order of operations is that of norm_pieces in rms_norm.cu, so the bits agree.
template <class T>
__device__ void write_output(const Params& p, const Shared& shared, int64_t token, int head, int lane) {
  constexpr int kLanes = kHeadDim / kVec8;
  const int first = lane % kLanes * kVec8;
  Vec8<T> y;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    y.v[i] = static_cast<float>(static_cast<T>(shared.outputs.y[first + i]));
    sum = fmaf(y.v[i], y.v[i], sum);
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (p.gate.data != nullptr) {
    const float scale = rsqrtf(sum / kHeadDim + p.eps);
#pragma unroll
    for (int i = 0; i < kVec8; ++i) y.v[i] = y.v[i] * (scale * shared.weight[first + i]) * shared.gate[first + i];
  }
  if (lane < kLanes) y.store(row_of<T>(p.out, token, head) + first);
}

// Work of a CTA.
template <int kBlocks>
struct Place {
  using S = Split<kBlocks>;
  int request, head, part, group, key_head;
  StateSlots slots;

  // Slots may be read before pdl_wait(): DeviceMetadata guarantees that they precede the step's first kernel.
  __device__ explicit Place(const Params& p)
      : request(blockIdx.y),
        head(blockIdx.x / kBlocks),
        part(blockIdx.x % kBlocks),
        group(p.v_heads / p.k_heads),
        key_head(head / group),
        slots(p.slots[request]) {}

  __device__ int first_row() const { return part * S::kRows; }
  __device__ bool is_first() const { return part == 0; }  // of the head's CTAs
  __device__ unsigned first_of_head() const { return head % group * kBlocks; }
  __device__ float* state(const Params& p, int slot) const {
    return p.state + slot * p.slot_stride + head * p.head_stride;
  }
  // Index in the head's q, k, v, and channel number, of the i-th channel that this CTA convolves.
  __device__ int value(int i) const { return i < 2 * kHeadDim ? i : i + first_row(); }
  __device__ int channel(const Params& p, int i) const {
    const int of_head = value(i) % kHeadDim;
    const int block = i < kHeadDim ? key_head : i < 2 * kHeadDim ? p.k_heads + key_head : 2 * p.k_heads + head;
    return block * kHeadDim + of_head;
  }
  // Returns true if this CTA writes the channel's convolution state.
  __device__ bool saves(int i) const { return i >= 2 * kHeadDim || (head % group == 0 && part == 0); }
};

// Calls f(window, i) for each channel of this thread.
template <class S, class F>
__device__ inline void for_windows(const F& f) {
#pragma unroll
  for (int w = 0; w < S::kWindows; ++w) {
    const int i = threadIdx.x + w * S::kThreads;
    if (i < S::kChannels) f(w, i);
  }
}

// Prefetches the states into L2 while the previous kernel runs. That kernel may write them, so nothing is read here.
template <class T, int kBlocks>
__device__ inline void prefetch_states(const Params& p, const Place<kBlocks>& place) {
  using S = Split<kBlocks>;
  if (place.slots.read == kNoState) return;
  constexpr int kLine = 128, kRowBytes = kHeadDim * 4, kLines = S::kRows * kRowBytes / kLine;
  const char* const rows =
      reinterpret_cast<const char*>(place.state(p, place.slots.read)) + place.first_row() * kRowBytes;
  for (int i = threadIdx.x; i < kLines; i += S::kThreads) prefetch_line(rows + i * kLine);
  for (int i = threadIdx.x; i < S::kChannels; i += S::kThreads) {
    if (i % 8 == 0) prefetch_line(Window<T>::states(p, place.slots.read, place.channel(p, i)));
  }
}

template <class T, int kBlocks>
__global__ void __launch_bounds__(Split<kBlocks>::kThreads, kBlocks == 1 ? 2 : 768 / Split<kBlocks>::kThreads)
    step_heads(const __grid_constant__ Params p) {
  using S = Split<kBlocks>;
  __shared__ Shared shared;
  const Place<kBlocks> place(p);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, of_norm = threadIdx.x - (S::kThreads - kHeadDim);
  const bool gates = threadIdx.x == S::kThreads - 1, norms = of_norm >= 0 && place.is_first() && p.gate.data != nullptr;
  if (kBlocks > 1) shared.outputs.open(place.is_first());
  // With one CTA per head, CTAs run in several waves and load early enough.
  if (kBlocks > 1) prefetch_states<T>(p, place);
  Window<T> windows[S::kWindows];
  for_windows<S>([&](int w, int i) { windows[w].load_weights(p, place.channel(p, i)); });
  const float weight = norms ? load(p.norm_weight, p.norm_weight_type, of_norm) + 0.0f : 0;  // as in rms_norm
  const float a_log = gates ? p.a_log[place.head] : 0, dt_bias = gates ? p.dt_bias[place.head] : 0;
  pdl_wait();
  pdl_launch_dependents();
  const int64_t token = place.request;  // one token per request
  const int warp_row = place.first_row() + warp * S::kLaneRows * kWarpRows;
  StateRows<S::kLaneRows> state;
  state.load(place.slots.read == kNoState ? nullptr : place.state(p, place.slots.read), warp_row, lane);
  for_windows<S>([&](int w, int i) { windows[w].load(p, token, place.slots.read, place.channel(p, i)); });
  if (norms) {
    shared.weight[of_norm] = weight;
    shared.gate[of_norm] = silu_of<T>(static_cast<float>(row_of<T>(p.gate, token, place.head)[of_norm]));
  }
  if (gates) {
    const float a = static_cast<float>(static_cast<const T*>(p.a.data)[p.a.at(token) + place.head]);
    const float b = static_cast<float>(static_cast<const T*>(p.b.data)[p.b.at(token) + place.head]);
    shared.token.decay = expf(gdn_log_decay(a, a_log, dt_bias));
    shared.token.beta = gdn_beta(b);
  }
  for_windows<S>([&](int w, int i) { shared.token.value(place.value(i)) = windows[w].convolved(); });
  if (kBlocks > 1) wait_for_cluster();  // all CTAs have started
  arrive_having_read();                 // signals that the cluster's shared inputs are read
  __syncthreads();

  const TokenFactors factors = shared.token.factors(lane);
  shared.token.move(state, factors, warp_row, lane);
  if (place.slots.write != kNoState) state.save(place.state(p, place.slots.write), warp_row, lane);
  float y[S::kLaneRows];
  shared.token.outputs(state, factors, lane, y);
#pragma unroll
  for (int r = 0; r < S::kLaneRows; ++r) {
    if (lane % kRowLanes != 0) continue;
    const int row = warp_row + kWarpRows * r + lane / kRowLanes;
    if (kBlocks > 1) shared.outputs.send_to(place.first_of_head(), row, y[r]);
    if (kBlocks == 1) shared.outputs.y[row] = y[r];
  }
  if (kBlocks == 1) __syncthreads();
  if (place.is_first() && warp == S::kWarps - 1) {
    if (kBlocks > 1) shared.outputs.wait(lane);
    write_output<T>(p, shared, token, place.head, lane);
  }
  wait_for_cluster();
  if (place.slots.write == kNoState) return;
  for_windows<S>([&](int w, int i) {
    if (place.saves(i)) windows[w].save(p, place.slots.write, place.channel(p, i));
  });
}

template <class T>
void launch(const Params& p, int requests, const Stream& stream) {
  const int group = p.v_heads / p.k_heads;
  const auto with = [&]<int kBlocks>(std::integral_constant<int, kBlocks>) {
    launch_pdl(stream, step_heads<T, kBlocks>,
               dim3(static_cast<unsigned>(p.v_heads * kBlocks), static_cast<unsigned>(requests)),
               dim3(Split<kBlocks>::kThreads), 0, p, "launching gdn_step",
               {.cluster = static_cast<unsigned>(group * kBlocks)});
  };
  switch (gdn_step_blocks(requests * p.v_heads, group, stream.num_sms)) {
    case 4: return with(std::integral_constant<int, 4>());
    case 2: return with(std::integral_constant<int, 2>());
    default: return with(std::integral_constant<int, 1>());
  }
}

// Returns true if the fused kernel supports the sizes, dtypes and alignments; otherwise the separate ops run.
bool supports(const GDNStepArgs& a, const OpContext& context) {
  const DType type = a.x.dtype();
  const int64_t group = a.state.dim(1) / a.num_k_heads;
  const auto aligned = [](const TensorView& t, size_t bytes) {
    return reinterpret_cast<uintptr_t>(t.data()) % bytes == 0;
  };
  return stream_of(context).arch >= 90 && a.state.dim(2) == kHeadDim && a.state.dim(3) == kHeadDim &&
         group <= kMostGDNCluster && a.conv_weight.dim(1) == kWidth && a.conv_weight.dtype() == type &&
         a.conv_state.dtype() == type && a.a.dtype() == type && a.conv_weight.stride(0) == kWidth &&
         a.conv_state.stride(1) == kWidth - 1 && a.state.stride(2) == kHeadDim && a.state.stride(1) % 4 == 0 &&
         a.state.stride(0) % 4 == 0 && aligned(a.state, 16) && aligned(a.conv_weight, 16) && is_vec8(a.x) &&
         is_vec8(a.out) && (!a.norm || is_vec8(a.norm.gate));
}

}  // namespace

bool gdn_step(const GDNStepArgs& a, const OpContext& context) {
  check(a);
  if (!supports(a, context)) return false;
  if (a.out.numel() == 0) return true;
  const Params p{.x = Rows(a.x),
                 .a = Rows(a.a),
                 .b = Rows(a.b),
                 .gate = Rows(a.norm.gate),
                 .out = Rows(a.out),
                 .conv_weight = a.conv_weight.data(),
                 .norm_weight = a.norm ? a.norm.weight.data() : nullptr,
                 .conv_state = a.conv_state.data(),
                 .norm_weight_type = a.norm ? a.norm.weight.dtype() : DType::kF32,
                 .a_log = static_cast<const float*>(a.a_log.data()),
                 .dt_bias = static_cast<const float*>(a.dt_bias.data()),
                 .state = static_cast<float*>(a.state.data()),
                 .conv_slot_stride = a.conv_state.stride(0),
                 .slot_stride = a.state.stride(0),
                 .head_stride = a.state.stride(1),
                 .k_heads = a.num_k_heads,
                 .v_heads = static_cast<int>(a.state.dim(1)),
                 .eps = a.norm.eps,
                 .slots = a.on_device->state_slots};
  const int requests = static_cast<int>(a.spans.size());
  const Stream& stream = stream_of(context);
  switch (a.x.dtype()) {
    case DType::kBF16: launch<__nv_bfloat16>(p, requests, stream); break;
    case DType::kF16: launch<__half>(p, requests, stream); break;
    default: launch<float>(p, requests, stream); break;
  }
  return true;
}

}  // namespace headrace::cuda
