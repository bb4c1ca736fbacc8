// The gated delta rule token by token for heads of 128 x 128: a block of 16 warps for one head of one request, the
// state in registers from the first token to the last, the next token's inputs on their way while one is worked on.
#include "headrace/kernels/cuda/gated_delta_rule.cuh"
#include "headrace/kernels/cuda/gdn_rows.cuh"

namespace headrace::cuda {
namespace {

template <class T>
struct TokenInputs {
  float4 q, k;
  float v, a, b;

  __device__ void load(const GDNParams& p, int64_t token, int head, int row, int lane) {
    const int key_head = head / (p.v_heads / p.k_heads);
    const T* const x = static_cast<const T*>(p.qkv.data) + token * p.qkv.token_stride;
    q = load4(x + key_head * kHeadDim + 4 * lane);
    k = load4(x + (p.k_heads + key_head) * kHeadDim + 4 * lane);
    v = static_cast<float>(x[2 * p.k_heads * kHeadDim + head * kHeadDim + row]);
    a = static_cast<float>(static_cast<const T*>(p.a.data)[p.a.at(token) + head]);
    b = static_cast<float>(static_cast<const T*>(p.b.data)[p.b.at(token) + head]);
  }
};

template <class T>
__global__ void __launch_bounds__(kHeadThreads) recur_heads(const GDNParams p) {
  const int head = blockIdx.x, request = blockIdx.y;
  const KeySpan span = p.batch.spans[request];
  if (!p.has(span)) return;
  const StateSlots slots = p.batch.state_slots[request];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * kWarpRows + lane / 4;
  const float a_log = p.a_log[head], dt_bias = p.dt_bias[head];
  TokenInputs<T> now, next;
  now.load(p, span.q_off, head, row, lane);
  WarpState state;
  state.load(p.state_of(slots.read, head), warp, lane);
  int snapshot = p.first_snapshot(request);
  for (int t = 0; t < span.q_len; ++t) {
    next.load(p, span.q_off + min(t + 1, span.q_len - 1), head, row, lane);
    const float decay = expf(gdn_log_decay(now.a, a_log, dt_bias));
    const float y = state.step(now.q, now.k, now.v, decay, gdn_beta(now.b), lane);
    if (lane % 4 == 0) p.out.set(span.q_off + t, head, row, y);
    for (; snapshot < p.snapshots && p.batch.snapshots[snapshot].request == request &&
           p.batch.snapshots[snapshot].num_tokens == t + 1;
         ++snapshot) {
      state.save(p.state_of(p.batch.snapshots[snapshot].slot, head), warp, lane);
    }
    now = next;
  }
  if (slots.write != kNoState) state.save(p.state_of(slots.write, head), warp, lane);
}

bool aligned(const TensorView& x, int64_t elements) {
  return reinterpret_cast<uintptr_t>(x.data()) % 16 == 0 && x.stride(0) % elements == 0;
}

}  // namespace

bool gdn_recurrence_supports(const GatedDeltaRuleArgs& a) {
  return a.head_k_dim() == kHeadDim && a.head_v_dim() == kHeadDim && a.a.dtype() == a.qkv.dtype() &&
         a.state.stride(2) == kHeadDim && a.state.stride(1) % 4 == 0 && a.state.stride(0) % 4 == 0 &&
         aligned(a.qkv, 4) && reinterpret_cast<uintptr_t>(a.state.data()) % 16 == 0;
}

void gdn_recurrence(const GDNParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.v_heads), static_cast<unsigned>(p.requests));
  switch (p.qkv.type) {
    case DType::kBF16: recur_heads<__nv_bfloat16><<<grid, kHeadThreads, 0, stream>>>(p); break;
    case DType::kF16: recur_heads<__half><<<grid, kHeadThreads, 0, stream>>>(p); break;
    default: recur_heads<float><<<grid, kHeadThreads, 0, stream>>>(p); break;
  }
  check_launch("gated_delta_rule, token by token");
}

}  // namespace headrace::cuda
