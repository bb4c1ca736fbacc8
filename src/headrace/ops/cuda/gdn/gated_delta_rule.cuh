// Parameters and entry points shared by the gated delta rule kernels.
#pragma once
#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

struct GDNParams {
  Rows qkv, a, b, out;
  const float *a_log, *dt_bias;
  float* state;
  int64_t slot_stride, head_stride, row_stride;
  int k_heads, v_heads, dk, dv, requests, snapshots;
  int min_len, max_len;  // bounds on q_len; another kernel processes the other requests
  DeviceMetadata batch;

  __device__ bool has(const KeySpan& span) const {
    return span.q_len > 0 && span.q_len >= min_len && span.q_len <= max_len;
  }
  __device__ float* state_of(int slot, int head) const {
    return slot == kNoState ? nullptr : state + slot * slot_stride + head * head_stride;
  }
  // Returns the index of the first snapshot of `request` or of a later one. Snapshots are sorted by request.
  __device__ int first_snapshot(int request) const {
    int low = 0, high = snapshots;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (batch.snapshots[middle].request < request) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

inline GDNParams params_of(const GatedDeltaRuleArgs& a) {
  return {.qkv = Rows(a.qkv),
          .a = Rows(a.a),
          .b = Rows(a.b),
          .out = Rows(a.out),
          .a_log = static_cast<const float*>(a.a_log.data()),
          .dt_bias = static_cast<const float*>(a.dt_bias.data()),
          .state = static_cast<float*>(a.state.data()),
          .slot_stride = a.state.stride(0),
          .head_stride = a.state.stride(1),
          .row_stride = a.state.stride(2),
          .k_heads = a.num_k_heads,
          .v_heads = static_cast<int>(a.num_v_heads()),
          .dk = static_cast<int>(a.head_k_dim()),
          .dv = static_cast<int>(a.head_v_dim()),
          .requests = static_cast<int>(a.spans.size()),
          .snapshots = static_cast<int>(a.snapshots.size()),
          .min_len = 0,
          .max_len = INT32_MAX,
          .batch = *a.on_device};
}

// Recurrence token by token, for any sizes (gated_delta_rule.cu). Throws Error kUnsupported if dk > kMostGDNKeyDim.
void gdn_simple(const GDNParams& params, cudaStream_t stream);

// Recurrence token by token, for heads of 128 x 128 and one float dtype for qkv, a and b (recurrent.cu). `tokens` is
// the number of rows of qkv; `long_requests` is an upper bound on the requests for which params.has() is true.
// gdn_recurrence throws Error kUnsupported if the tokens' factors exceed the scratch memory.
bool gdn_recurrence_supports(const GatedDeltaRuleArgs& a);
void gdn_recurrence(const GDNParams& params, int64_t tokens, int long_requests, const Stream& stream);
// Same bits for the same calls, optimised for requests of few tokens (recurrent_few_tokens.cu).
void gdn_recurrent_few_tokens(const GDNParams& params, cudaStream_t stream);

// Chunked form on tensor cores with chunks of 64 tokens: bfloat16, heads of 128 x 128, sm_90a (sm90/chunk.cu).
bool gdn_chunk_sm90_supports(const GatedDeltaRuleArgs& a, const Stream& stream);
void gdn_chunk_sm90(const GatedDeltaRuleArgs& a, const GDNParams& params, const Stream& stream);

}  // namespace headrace::cuda
