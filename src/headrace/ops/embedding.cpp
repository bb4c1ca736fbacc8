#include "headrace/ops/embedding.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const EmbeddingArgs& a) {
  const auto ids = a.ids.as<const int32_t, 1>("embedding: ids");
  check_weight("embedding: table", a.table, {a.table.dim(0), a.out.dim(1)});
  check_float("embedding: out", a.out);
  check_shape("embedding: out", a.out, {ids.dim(0), a.table.dim(1)});
  if (a.ids.device().type != DeviceType::kCPU) return;  // the host cannot read ids in device memory
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    HR_REQUIRE(ids(t) >= 0 && ids(t) < a.table.dim(0), ErrorCode::kInvalidArgument, "embedding: id ", ids(t),
               " of token ", t, " is outside the vocabulary of ", a.table.dim(0));
  }
}

}  // namespace headrace
