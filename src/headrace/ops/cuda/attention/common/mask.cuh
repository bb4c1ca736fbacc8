// Key axis of one request: cached keys [0, ctx), then the new keys; and what query rows see of it.
#pragma once
#include "headrace/ops/cuda/attention/attention_params.h"

namespace headrace::cuda {

struct KeyAxis {
  KeySpan span;
  int ctx = 0, page_row = 0;

  __device__ KeyAxis(const AttentionParams& p, int request) : KeyAxis(p, folded(p.spans[request], p.type)) {}
  __device__ KeyAxis(const AttentionParams& p, const KeySpan& folded_span) : span(folded_span) {
    ctx = p.encoder ? span.encoder_len : span.ctx_len;
    page_row = p.encoder ? span.encoder_page_row : span.page_row;
  }
  // Row i sees keys [first, end) of the axis, except the hole and [ctx, first_new).
  struct Row {
    int first = 0, first_new = 0, end = 0;
  };
  __device__ Row row(const AttentionParams& p, int i) const {
    if (p.encoder) return {0, 0, ctx};
    return {span.first_cached(i, p.window), ctx + span.first_new(i, p.window), ctx + span.new_keys(i)};
  }
  __device__ bool sees(const AttentionParams& p, const Row& r, int key) const {
    if (key >= r.end) return false;
    if (key >= ctx) return key >= r.first_new;
    return key >= r.first && (p.encoder || span.sees_cached(key));
  }
  // Element offsets of a key's head row in K and V. `fresh`: the offsets are into k_new and v_new, not into the pool.
  struct Place {
    int64_t k, v;
    bool fresh;
  };
  __device__ Place place(const AttentionParams& p, int kv_head, int key) const {
    if (key >= ctx && p.k_new.data != nullptr) {
      const int64_t token = span.q_off + key - ctx;
      return {token * p.k_new.page_stride + kv_head * p.k_new.head_stride,
              token * p.v_new.page_stride + kv_head * p.v_new.head_stride, true};
    }
    const int position = key < ctx ? key : span.phys0 + key - ctx;
    const int64_t page = p.page_table[page_row * p.table_stride + (position >> p.page_shift)];
    const int slot = position & ((1 << p.page_shift) - 1);
    return {page * p.k.page_stride + kv_head * p.k.head_stride + slot * p.k.slot_stride,
            page * p.v.page_stride + kv_head * p.v.head_stride + slot * p.v.slot_stride, false};
  }
};

}  // namespace headrace::cuda
