#include "headrace/ops/norm_rotary.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const NormRotaryArgs& a) {
  check(a.rotation_of(a.q));
  check(a.rotation_of(a.k));
  check_dtype("norm_rotary: k", a.k, a.q.dtype());
  HR_REQUIRE(a.k.dim(2) == a.q.dim(2), ErrorCode::kInvalidArgument, "norm_rotary: k has heads of ", a.k.dim(2),
             ", expected those of q, ", a.q.dim(2));
  HR_REQUIRE(static_cast<bool>(a.q_weight) == static_cast<bool>(a.k_weight), ErrorCode::kInvalidArgument,
             "norm_rotary: one of q and k has a weight, expected both or none");
  if (!a.q_weight) return;
  check(a.norm_of(a.q, a.q_weight));
  check(a.norm_of(a.k, a.k_weight));
}

}  // namespace headrace
