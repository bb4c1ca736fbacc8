// Attention of a ragged batch over the paged KV cache and the batch's new keys.
#pragma once
#include <optional>
#include <span>

#include "headrace/batch/attn_metadata.h"
#include "headrace/batch/key_span.h"
#include "headrace/cache/kv_pool.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// Sharing of K and V tiles between the query heads of one KV head.
enum class HeadGrouping : uint8_t {
  kGrouped,  // one pass over K and V serves all query heads of the group
  kPerHead,  // one pass over K and V per query head
};

// out[t, h] = sum_j softmax_j(mask(cap(scale * q[t, h] . k[j, h / group]))) v[j, h / group]
// The sum runs over the keys that the request's span, folded by `type`, and the window make visible to row t. cap(s) =
// logit_cap * tanh(s / logit_cap). Softmax and sums are float32 or wider. A row that sees no key yields zeros and a
// log-sum-exp of -inf.
// Keys and values of the pool are multiplied by the pool's scales. New keys and values count as stored in the pool and
// read back, whether they are read from k_new or the pool: for an FP8 pool, divided by the scale, rounded and
// multiplied again; for an int8 pool, quantised with a scale of their own as store_kv does.
// Source: Vaswani et al. 2017, eq. 1; soft cap as in the Gemma 2 report.
struct PagedAttentionArgs {
  TensorView q = {};      // [num_tokens, num_heads, head_dim] float32, bfloat16 or float16
  TensorView k_new = {};  // [num_tokens, num_kv_heads, head_dim], or null: new keys are read from the pool
  TensorView v_new = {};  // [num_tokens, num_kv_heads, v_head_dim]; null exactly when k_new is
  KVLayerView kv = {};    // null when no span has a context and k_new is given
  std::span<const KeySpan> spans = {};
  const DeviceMetadata* on_device = nullptr;  // not owned: device copy of spans; null on a CPU
  TensorView page_table = {};                 // int32 [rows, pages]: pages of the pool, not checked here
  float scale = 1;
  float logit_cap = 0;         // 0: none
  int32_t window = kNoWindow;  // most keys that a row sees, its own included
  AttentionType type = AttentionType::kDecoder;
  enum class Keys : uint8_t {
    kSequence,  // the cache and the new keys
    kEncoder,   // cross-attention: [0, encoder_len) of the span's encoder pages; no mask, no window
  };
  Keys keys = Keys::kSequence;
  HeadGrouping grouping = HeadGrouping::kGrouped;
  TensorView out = {};  // [num_tokens, num_heads, v_head_dim], dtype of q; written in full
  TensorView lse = {};  // float32 [num_tokens, num_heads]: natural log of the sum of exp(scores); or null

  // Returns the dtype to which keys count as rounded: the pool's, or without a pool that of k_new.
  DType key_dtype() const { return kv ? kv.k.dtype() : k_new.dtype(); }
  int64_t num_kv_heads() const { return kv ? kv.num_kv_heads() : k_new.dim(1); }
};

// Throws Error kInvalidArgument if shapes, dtypes or scales disagree, heads are not a multiple of kv heads, the window
// is not positive, or a span needs keys that are not given.
void check(const PagedAttentionArgs& args);

}  // namespace headrace
