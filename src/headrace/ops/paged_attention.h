// Attention of a ragged batch over the paged cache and the batch's own new keys.
#pragma once
#include <optional>
#include <span>

#include "headrace/batch/attention_type.h"
#include "headrace/batch/device_metadata.h"
#include "headrace/cache/kv_pool.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// How K and V tiles are shared between the query heads of one kv head.
enum class HeadGrouping : uint8_t {
  kGrouped,  // one pass over K and V serves all query heads of the group
  kPerHead,  // a pass per query head
};

// out[t, h] = sum_j softmax_j(mask(cap(scale * q[t, h] . k[j, h / group]))) v[j, h / group], over the keys that
// the request's span, folded by `type`, and the window show to row t. cap(s) = logit_cap * tanh(s / logit_cap).
// Softmax and sums are float32 or wider. A row that sees no key yields zeros and a log-sum-exp of -inf.
// k and v of the pool count times its scales. New ones count as stored in the pool and read back, wherever they are
// read from: of an 8-bit pool, divided by the scale, rounded and multiplied again.
// Source: Vaswani et al. 2017, eq. 1; soft cap as in the Gemma 2 report.
struct PagedAttentionArgs {
  TensorView q = {};      // [num_tokens, num_heads, head_dim] float32, bfloat16 or float16
  TensorView k_new = {};  // [num_tokens, num_kv_heads, head_dim], or null: new keys are read from the pool
  TensorView v_new = {};  // [num_tokens, num_kv_heads, v_head_dim]; null exactly when k_new is
  KVLayerView kv = {};    // null when no span has a context and k_new is given
  std::span<const KeySpan> spans = {};
  const DeviceMetadata* on_device = nullptr;  // not owned: spans where a device's kernel reads them; null on a CPU
  TensorView page_table = {};                 // int32 [rows, pages]: pages of the pool, which is not checked here
  float scale = 1;
  float logit_cap = 0;         // 0: none
  int32_t window = kNoWindow;  // keys that a row sees at most, its own included
  AttentionType type = AttentionType::kDecoder;
  enum class Keys : uint8_t {
    kSequence,  // the cache and the new rows
    kEncoder,   // cross-attention: [0, encoder_len) of the span's encoder pages; no mask, no window
  };
  Keys keys = Keys::kSequence;
  HeadGrouping grouping = HeadGrouping::kGrouped;
  TensorView out = {};  // [num_tokens, num_heads, v_head_dim], dtype of q; written in full
  TensorView lse = {};  // float32 [num_tokens, num_heads]: natural log of the sum of exp(scores); or null

  // The pool's dtype, or without a pool that of the new keys: what keys count as rounded to.
  DType key_dtype() const { return kv ? kv.k.dtype() : k_new.dtype(); }
  int64_t num_kv_heads() const { return kv ? kv.num_kv_heads() : k_new.dim(1); }
};

// Error kInvalidArgument when shapes, dtypes or scales disagree, heads are no multiple of kv heads, the window is not
// positive, or a span needs keys that are not there.
void check(const PagedAttentionArgs& args);

}  // namespace headrace
