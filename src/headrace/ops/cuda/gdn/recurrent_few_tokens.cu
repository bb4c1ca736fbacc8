// Gated delta rule for requests of few tokens and heads of 128 x 128. A CTA of 16 warps handles one head of one
// request, and loads its 64 KiB of state first: the state's memory traffic takes the time, not the chain of tokens.
#include "headrace/ops/cuda/gdn/gated_delta_rule.cuh"
#include "headrace/ops/cuda/gdn/gdn_rows.cuh"

namespace headrace::cuda {
namespace {

constexpr int kThreads = HeadToken::kThreads, kRows = HeadToken::kRows;

// A thread's share of a token: one of the 384 values of q, k and v; one thread has the gates instead.
template <class T>
struct Share {
  T value, a, b;

  __device__ void load(const GDNParams& p, int64_t token, int head) {
    const int i = static_cast<int>(threadIdx.x), part = i / kHeadDim, key_head = head / (p.v_heads / p.k_heads);
    if (part < 3) {
      const int of = part == 0 ? key_head : part == 1 ? p.k_heads + key_head : 2 * p.k_heads + head;
      value = static_cast<const T*>(p.qkv.data)[p.qkv.at(token) + of * kHeadDim + i % kHeadDim];
    } else if (i == 3 * kHeadDim) {
      a = static_cast<const T*>(p.a.data)[p.a.at(token) + head];
      b = static_cast<const T*>(p.b.data)[p.b.at(token) + head];
    }
  }
  __device__ void store(const GDNParams& p, HeadToken& to, int head) const {
    const int i = static_cast<int>(threadIdx.x);
    if (i < 3 * kHeadDim) {
      to.value(i) = static_cast<float>(value);
    } else if (i == 3 * kHeadDim) {
      to.decay = expf(gdn_log_decay(static_cast<float>(a), p.a_log[head], p.dt_bias[head]));
      to.beta = gdn_beta(static_cast<float>(b));
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, 2) recur_heads(const __grid_constant__ GDNParams p) {
  __shared__ HeadToken tokens[2];  // double buffer: one is in use while the next token is written
  const int head = blockIdx.x, request = blockIdx.y;
  const KeySpan span = p.batch.spans[request];
  if (!p.has(span)) return;
  const StateSlots slots = p.batch.state_slots[request];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp * kRows * kWarpRows;
  StateRows<kRows> state;
  state.load(p.state_of(slots.read, head), warp_row, lane);
  Share<T> share;
  share.load(p, span.q_off, head);
  int snapshot = p.first_snapshot(request);
  for (int t = 0; t < span.q_len; ++t) {
    HeadToken& token = tokens[t % 2];
    share.store(p, token, head);
    __syncthreads();
    if (t + 1 < span.q_len) share.load(p, span.q_off + t + 1, head);
    const TokenFactors factors = token.factors(lane);
    token.move(state, factors, warp_row, lane);
    for (; snapshot < p.snapshots && p.batch.snapshots[snapshot].request == request &&
           p.batch.snapshots[snapshot].num_tokens == t + 1;
         ++snapshot) {
      state.save(p.state_of(p.batch.snapshots[snapshot].slot, head), warp_row, lane);
    }
    if (t + 1 == span.q_len && slots.write != kNoState) state.save(p.state_of(slots.write, head), warp_row, lane);
    float y[kRows];
    token.outputs(state, factors, lane, y);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (lane % kRowLanes == 0) p.out.set(span.q_off + t, head, warp_row + kWarpRows * r + lane / kRowLanes, y[r]);
    }
  }
}

}  // namespace

void gdn_recurrent_few_tokens(const GDNParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.v_heads), static_cast<unsigned>(p.requests));
  switch (p.qkv.type) {
    case DType::kBF16: recur_heads<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(p); break;
    case DType::kF16: recur_heads<__half><<<grid, kThreads, 0, stream>>>(p); break;
    default: recur_heads<float><<<grid, kThreads, 0, stream>>>(p); break;
  }
  check_launch("gated_delta_rule, few tokens");
}

}  // namespace headrace::cuda
