// A decode step of Gated DeltaNet in one kernel: convolution, SiLU, L2 norms, gates, recurrence and gated norm.
//
// A block of 16 warps works for one value head of one request. It asks for its 64 KiB of state before anything else,
// computes the 384 channels that it needs while they come, and reads and writes every state once. The value heads that
// share a key head need the same channels of the convolution's state: they form a cluster, and its first block alone
// moves that state on, after all of them have read it.
#include "headrace/kernels/cuda/element.cuh"
#include "headrace/kernels/cuda/gdn_rows.cuh"
#include "headrace/kernels/cuda/launch.cuh"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/stream.h"
#include "headrace/kernels/cuda/vector.cuh"

namespace headrace::cuda {
namespace {

constexpr int kWidth = 4;  // of the convolution
constexpr int kMaxCluster = 8;
constexpr int kThreads = HeadToken::kThreads, kLaneRows = HeadToken::kRows;

// Before sm_90 there are no clusters, and supports() refuses.
// The order of reads before writes is all that the cluster needs: what a thread read is in its registers.
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

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
  DeviceMetadata batch;
};

// One channel's window: the stored inputs, then the token's.
template <class T>
struct Window {
  T x[kWidth];
  float4 weight;

  __device__ void load(const Params& p, int64_t token, int read, int channel) {
    weight = load4(static_cast<const T*>(p.conv_weight) + channel * kWidth);
    x[kWidth - 1] = static_cast<const T*>(p.x.data)[p.x.at(token) + channel];
    const T* const kept = states(p, read, channel);
#pragma unroll
    for (int j = 0; j < kWidth - 1; ++j) x[j] = read == kNoState ? T(0.0f) : kept[j];
  }
  __device__ float convolved() const {
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

// What a value head's block keeps in shared memory.
struct Shared {
  HeadToken token;
  float y[kHeadDim];
  float weight[kHeadDim], gate[kHeadDim];  // of the norm; silu(gate)
};

// By a warp, whose halves do the same: out = rms_norm(y) * weight * silu(gate), or y as it is. Sums and products are
// those of norm_pieces in rms_norm.cu, so that the bits are.
template <class T>
__device__ void write_output(const Params& p, const Shared& shared, int64_t token, int head, int lane) {
  constexpr int kLanes = kHeadDim / kPiece;
  const int first = lane % kLanes * kPiece;
  Piece<T> y;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    y.v[i] = static_cast<float>(static_cast<T>(shared.y[first + i]));
    sum = fmaf(y.v[i], y.v[i], sum);
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (p.gate.data != nullptr) {
    const float scale = rsqrtf(sum / kHeadDim + p.eps);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) y.v[i] = y.v[i] * (scale * shared.weight[first + i]) * shared.gate[first + i];
  }
  if (lane < kLanes) y.store(row_of<T>(p.out, token, head) + first);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) step_heads(const Params p) {
  __shared__ Shared shared;
  const int head = blockIdx.x, request = blockIdx.y, group = p.v_heads / p.k_heads, key_head = head / group;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  wait_for_previous();
  let_next_start();
  const int64_t token = p.batch.spans[request].q_off;
  const StateSlots slots = p.batch.state_slots[request];
  const int warp_row = warp * kLaneRows * kWarpRows;
  StateRows<kLaneRows> state;
  state.load(slots.read == kNoState ? nullptr : p.state + slots.read * p.slot_stride + head * p.head_stride, warp_row,
             lane);

  const int part = threadIdx.x / kHeadDim, within = threadIdx.x % kHeadDim;
  const int channel = (part == 0   ? key_head
                       : part == 1 ? p.k_heads + key_head
                                   : 2 * p.k_heads + head) *
                          kHeadDim +
                      within;
  Window<T> window;
  if (part < 3) {
    window.load(p, token, slots.read, channel);
    shared.token.value(static_cast<int>(threadIdx.x)) = window.convolved();
  } else {
    if (p.gate.data != nullptr) {
      shared.weight[within] =
          load(p.norm_weight, p.norm_weight_type, within) + 0.0f;  // as the norm that adds an offset
      shared.gate[within] = silu_of<T>(static_cast<float>(row_of<T>(p.gate, token, head)[within]));
    }
    if (within == 0) {
      const float a = static_cast<float>(static_cast<const T*>(p.a.data)[p.a.at(token) + head]);
      const float b = static_cast<float>(static_cast<const T*>(p.b.data)[p.b.at(token) + head]);
      shared.token.decay = expf(gdn_log_decay(a, p.a_log[head], p.dt_bias[head]));
      shared.token.beta = gdn_beta(b);
    }
  }
  cluster_arrive();  // this block has read what the cluster shares
  __syncthreads();

  const TokenFactors factors = shared.token.factors(lane);
  shared.token.move(state, factors, warp_row, lane);
  if (slots.write != kNoState) {
    state.save(p.state + slots.write * p.slot_stride + head * p.head_stride, warp_row, lane);
  }
  float y[kLaneRows];
  shared.token.outputs(state, factors, lane, y);
#pragma unroll
  for (int r = 0; r < kLaneRows; ++r) {
    if (lane % kRowLanes == 0) shared.y[warp_row + kWarpRows * r + lane / kRowLanes] = y[r];
  }
  __syncthreads();
  if (warp == kThreads / 32 - 1) write_output<T>(p, shared, token, head, lane);
  cluster_wait();
  if (part < 3 && slots.write != kNoState && (part == 2 || head % group == 0)) window.save(p, slots.write, channel);
}

template <class T>
void launch(const Params& p, int requests, const Stream& stream) {
  launch_early(stream, step_heads<T>, dim3(static_cast<unsigned>(p.v_heads), static_cast<unsigned>(requests)),
               dim3(kThreads), 0, p, "launching gdn_step", static_cast<unsigned>(p.v_heads / p.k_heads));
}

// Other sizes, mixed dtypes and rows that the ops do not take in pieces run op by op.
bool supports(const GDNStepArgs& a, const OpContext& context) {
  const DType type = a.x.dtype();
  const int64_t group = a.state.dim(1) / a.num_k_heads;
  const auto aligned = [](const TensorView& t, size_t bytes) {
    return reinterpret_cast<uintptr_t>(t.data()) % bytes == 0;
  };
  return stream_of(context).arch >= 90 && a.state.dim(2) == kHeadDim && a.state.dim(3) == kHeadDim &&
         group <= kMaxCluster && a.conv_weight.dim(1) == kWidth && a.conv_weight.dtype() == type &&
         a.conv_state.dtype() == type && a.a.dtype() == type && a.conv_weight.stride(0) == kWidth &&
         a.conv_state.stride(1) == kWidth - 1 && a.state.stride(2) == kHeadDim && a.state.stride(1) % 4 == 0 &&
         a.state.stride(0) % 4 == 0 && aligned(a.state, 16) && aligned(a.conv_weight, 16) && in_pieces(a.x) &&
         in_pieces(a.out) && (!a.norm || in_pieces(a.norm.gate));
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
                 .batch = *a.on_device};
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
