// Gated delta rule: kernel selection, and a token-by-token recurrence for any sizes. Each warp of the recurrence keeps
// a few rows of the state in registers.
#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/ops/cuda/gdn/gated_delta_rule.cuh"
#include "headrace/ops/cuda/gdn/gdn_gate.cuh"
#include "headrace/ops/cuda/limits.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4, kRows = 4;  // state rows (value dimensions) per warp
constexpr int kFewTokens = 4;         // longer requests are faster in chunked form

template <int kPerLane>
struct StateRows {
  float s[kRows][kPerLane];
  int first, lane;  // first state row of the warp

  __device__ void load(const GDNParams& p, int slot, int head) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int k = i * 32 + lane;
        const bool inside = slot != kNoState && first + r < p.dv && k < p.dk;
        s[r][i] = inside ? p.state[at(p, slot, head, r) + k] : 0.0f;
      }
    }
  }
  __device__ void save(const GDNParams& p, int slot, int head) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int k = i * 32 + lane;
        if (first + r < p.dv && k < p.dk) p.state[at(p, slot, head, r) + k] = s[r][i];
      }
    }
  }
  __device__ int64_t at(const GDNParams& p, int slot, int head, int r) const {
    return slot * p.slot_stride + head * p.head_stride + (first + r) * p.row_stride;
  }
};

// Loads q or k of a token, distributed over the lanes, normalised and multiplied by `scale`.
template <int kPerLane>
__device__ void load_unit(const GDNParams& p, int64_t token, int64_t from, float scale, int lane,
                          float (&x)[kPerLane]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int k = i * 32 + lane;
    x[i] = k < p.dk ? p.qkv.get(token, 0, from + k) : 0.0f;
    sum = fmaf(x[i], x[i], sum);
  }
  const float factor = scale * gdn_unit_factor(warp_sum(sum));
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) x[i] *= factor;
}

template <int kPerLane>
__device__ void step(const GDNParams& p, int64_t token, int head, StateRows<kPerLane>& rows) {
  const int key_head = head / (p.v_heads / p.k_heads), lane = rows.lane;
  float q[kPerLane], k[kPerLane];
  load_unit(p, token, int64_t{key_head} * p.dk, rsqrtf(static_cast<float>(p.dk)), lane, q);
  load_unit(p, token, int64_t{p.k_heads + key_head} * p.dk, 1.0f, lane, k);
  const float decay = expf(gdn_log_decay(p.a.get(token, 0, head), p.a_log[head], p.dt_bias[head]));
  const float beta = gdn_beta(p.b.get(token, 0, head));
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      rows.s[r][i] *= decay;
      dot = fmaf(rows.s[r][i], k[i], dot);
    }
    dot = warp_sum(dot);
    const int row = rows.first + r;
    const float v = row < p.dv ? p.qkv.get(token, 0, 2 * int64_t{p.k_heads} * p.dk + int64_t{head} * p.dv + row) : 0.0f;
    const float d = beta * (v - dot);
    float y = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      rows.s[r][i] = fmaf(d, k[i], rows.s[r][i]);
      y = fmaf(rows.s[r][i], q[i], y);
    }
    y = warp_sum(y);
    if (lane == 0 && row < p.dv) p.out.set(token, head, row, y);
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(kWarps * 32) recur(GDNParams p) {
  const int request = blockIdx.x, head = blockIdx.y;
  const KeySpan span = p.batch.spans[request];
  if (!p.has(span)) return;
  const StateSlots slots = p.batch.state_slots[request];
  StateRows<kPerLane> rows;
  rows.first = (static_cast<int>(blockIdx.z) * kWarps + static_cast<int>(threadIdx.x) / 32) * kRows;
  rows.lane = static_cast<int>(threadIdx.x) % 32;
  if (rows.first >= p.dv) return;
  rows.load(p, slots.read, head);
  int snapshot = p.first_snapshot(request);
  for (int t = 0; t < span.q_len; ++t) {
    step(p, span.q_off + t, head, rows);
    while (snapshot < p.snapshots && p.batch.snapshots[snapshot].request == request &&
           p.batch.snapshots[snapshot].num_tokens == t + 1) {
      rows.save(p, p.batch.snapshots[snapshot++].slot, head);
    }
  }
  if (slots.write != kNoState) rows.save(p, slots.write, head);
}

}  // namespace

void gdn_simple(const GDNParams& params, cudaStream_t stream) {
  HR_REQUIRE(params.dk <= kMostGDNKeyDim, ErrorCode::kUnsupported, "cuda gated_delta_rule: key heads of ", params.dk,
             ", expected at most ", kMostGDNKeyDim);
  const dim3 grid(static_cast<unsigned>(params.requests), static_cast<unsigned>(params.v_heads),
                  static_cast<unsigned>((params.dv + kWarps * kRows - 1) / (kWarps * kRows)));
  if (params.dk <= 32) {
    recur<1><<<grid, kWarps * 32, 0, stream>>>(params);
  } else if (params.dk <= 64) {
    recur<2><<<grid, kWarps * 32, 0, stream>>>(params);
  } else if (params.dk <= 128) {
    recur<4><<<grid, kWarps * 32, 0, stream>>>(params);
  } else {
    recur<8><<<grid, kWarps * 32, 0, stream>>>(params);
  }
  check_launch("gated_delta_rule");
}

namespace {

// Returns the requests with more than kFewTokens tokens. In a graph this is an upper bound: replays have any lengths up
// to most_rows.
int long_requests(const GatedDeltaRuleArgs& a) {
  if (const int most = a.on_device->most_rows; most > 0)
    return most > kFewTokens ? static_cast<int>(a.spans.size()) : 0;
  return static_cast<int>(std::ranges::count_if(a.spans, [](const KeySpan& s) { return s.q_len > kFewTokens; }));
}
bool any_short(const GatedDeltaRuleArgs& a) {
  return a.on_device->most_rows > 0 ||
         std::ranges::any_of(a.spans, [](const KeySpan& s) { return s.q_len > 0 && s.q_len <= kFewTokens; });
}

}  // namespace

// Kernels: the chunked form for requests of more than kFewTokens tokens, a recurrence for the others. Under
// Determinism::kStrict all requests use recurrences, so the bits do not depend on how a request is split. Each kernel
// selects its requests on the device, so a captured graph serves other lengths.
void gated_delta_rule(const GatedDeltaRuleArgs& a, const OpContext& context) {
  check(a);
  if (a.out.numel() == 0) return;
  const Stream& stream = stream_of(context);
  GDNParams params = params_of(a);
  if (!gdn_recurrence_supports(a)) return gdn_simple(params, stream.handle);
  if (const int count = long_requests(a); count > 0) {
    params.min_len = kFewTokens + 1;
    if (context.determinism == Determinism::kFast && gdn_chunk_sm90_supports(a, stream)) {
      gdn_chunk_sm90(a, params, stream);
    } else {
      gdn_recurrence(params, a.qkv.dim(0), count, stream);
    }
  }
  params.min_len = 0, params.max_len = kFewTokens;
  if (any_short(a)) gdn_recurrent_few_tokens(params, stream.handle);
}

}  // namespace headrace::cuda
