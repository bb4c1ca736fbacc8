#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/reference/int8_row.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {
namespace {

// Writes rows[token, head, :] and its scale to a slot of an int8 pool.
void store_codes(const TensorView& rows, int64_t token, int64_t head, const TensorView& pool, const TensorView& scales,
                 int64_t page, int64_t at) {
  const Int8Row row(rows, token, head);
  for (int64_t d = 0; d < rows.dim(2); ++d) set(pool, row.code(get(rows, token, head, d)), page, head, at, d);
  set(scales, static_cast<double>(row.scale), page, head, at);
}

}  // namespace

void store_kv(const StoreKVArgs& a, const OpContext&) {
  check(a);
  const auto slots = a.slots.as<const int64_t, 1>("slots");
  for (int64_t t = 0; t < a.k.dim(0); ++t) {
    if (slots(t) == kDoNotStore) continue;
    const int64_t page = slots(t) / a.kv.page_size(), at = slots(t) % a.kv.page_size();
    for (int64_t h = 0; h < a.kv.num_kv_heads(); ++h) {
      if (a.kv.k.dtype() == DType::kI8) {
        store_codes(a.k, t, h, a.kv.k, a.kv.k_token_scales, page, at);
        store_codes(a.v, t, h, a.kv.v, a.kv.v_token_scales, page, at);
        continue;
      }
      for (int64_t d = 0; d < a.kv.head_dim(); ++d) set(a.kv.k, get(a.k, t, h, d) / a.kv.k_scale, page, h, at, d);
      for (int64_t d = 0; d < a.kv.v_head_dim(); ++d) set(a.kv.v, get(a.v, t, h, d) / a.kv.v_scale, page, h, at, d);
    }
  }
}

}  // namespace headrace::reference
