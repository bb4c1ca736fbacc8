#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/reference/element.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {

void store_kv(const StoreKVArgs& a, const OpContext&) {
  check(a);
  const auto slots = a.slots.as<const int64_t, 1>("slots");
  for (int64_t t = 0; t < a.k.dim(0); ++t) {
    if (slots(t) == kDoNotStore) continue;
    const int64_t page = slots(t) / a.kv.page_size(), at = slots(t) % a.kv.page_size();
    for (int64_t h = 0; h < a.kv.num_kv_heads(); ++h) {
      for (int64_t d = 0; d < a.kv.head_dim(); ++d) set(a.kv.k, get(a.k, t, h, d) / a.kv.k_scale, page, h, at, d);
      for (int64_t d = 0; d < a.kv.v_head_dim(); ++d) set(a.kv.v, get(a.v, t, h, d) / a.kv.v_scale, page, h, at, d);
    }
  }
}

}  // namespace headrace::reference
