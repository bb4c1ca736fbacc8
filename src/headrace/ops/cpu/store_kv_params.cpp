#include "headrace/ops/cpu/params.h"
#include "headrace/ops/cpu/store_kv.h"

namespace headrace::cpu {
namespace {

StoreRows store_rows_of(const TensorView& from, const TensorView& pool, float scale, const TensorView& token_scales) {
  return {.from = from.data(),
          .pool = pool.data(),
          .from_token_stride = from.stride(0),
          .from_head_stride = from.stride(1),
          .page_stride = pool.stride(0),
          .head_stride = pool.stride(1),
          .slot_stride = pool.stride(2),
          .dim = pool.dim(3),
          .scale = scale,
          .token_scales = token_scales_of(token_scales)};
}

}  // namespace

StoreKVParams params_of(const StoreKVArgs& a, const OpContext& context) {
  return {.k = store_rows_of(a.k, a.kv.k, a.kv.k_scale, a.kv.k_token_scales),
          .v = store_rows_of(a.v, a.kv.v, a.kv.v_scale, a.kv.v_token_scales),
          .slots = static_cast<const long*>(a.slots.data()),
          .num_tokens = a.k.dim(0),
          .num_heads = a.kv.num_kv_heads(),
          .page_size = a.kv.page_size(),
          .from_type = float_type(a.k),
          .pool_type = pool_type(a.kv.k),
          .threads = context.threads};
}

}  // namespace headrace::cpu
