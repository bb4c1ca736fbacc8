#include "headrace/ops/store_kv.h"

#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/checks.h"

namespace headrace {

void check(const StoreKVArgs& a) {
  const Shape& k = a.k.shape();
  check_shape("store_kv: k", a.k, {k[0], a.kv.num_kv_heads(), a.kv.head_dim()});
  check_shape("store_kv: v", a.v, {k[0], a.kv.num_kv_heads(), a.kv.v_head_dim()});
  check_shape("store_kv: slots", a.slots, {k[0]});
  check_float("store_kv: k", a.k);
  check_dtype("store_kv: v", a.v, a.k.dtype());
  check_kv_layer("store_kv", a.kv);
  const auto slots = a.slots.as<const int64_t, 1>("store_kv: slots");
  if (a.slots.device().type != DeviceType::kCPU) return;  // the host cannot read slots in device memory
  const int64_t limit = a.kv.num_pages() * a.kv.page_size();
  for (int64_t t = 0; t < slots.dim(0); ++t) {
    HR_REQUIRE(slots(t) == kDoNotStore || (slots(t) >= 0 && slots(t) < limit), ErrorCode::kInvalidArgument,
               "store_kv: slot ", slots(t), " of token ", t, " is outside the pool of ", limit, " slots");
  }
}

}  // namespace headrace
