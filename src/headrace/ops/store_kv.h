// Writes new keys and values to their slots of the paged KV cache.
#pragma once
#include "headrace/cache/kv_pool.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// For every token t with slots[t] != kDoNotStore and every kv head h:
//   kv.k[slots[t] / page_size, h, slots[t] % page_size, :] = k[t, h, :] / k_scale, rounded to the pool's dtype, and
// saturated if that is float8_e4m3fn; v likewise. The quotient is rounded to float32 first, on every device. The slots
// of one call must be distinct. Inputs may be strided in their first two dimensions.
//
// A pool of int8 gets codes, and a scale beside them, kv.k_token_scales[slots[t] / page_size, h, slots[t] % page_size].
// In float32, with amax = max |k[t, h, :]|: scale = amax / 127, code = k * (127 / amax), rounded to nearest, ties to
// even. All are 0 if amax is below 2^-100. If the row holds an infinity or NaN, its codes are 0 and its scale is NaN.
struct StoreKVArgs {
  TensorView k = {};      // [num_tokens, num_kv_heads, head_dim] float32, bfloat16 or float16
  TensorView v = {};      // [num_tokens, num_kv_heads, v_head_dim], dtype of k
  TensorView slots = {};  // int64 [num_tokens]
  KVLayerView kv = {};    // written
};

// Throws Error kInvalidArgument if shapes, dtypes or scales disagree, or a slot on the CPU is outside the pool. Slots
// on a device are not checked.
void check(const StoreKVArgs& args);

}  // namespace headrace
