#include "headrace/ops/rms_norm.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const RMSNormArgs& a) {
  HR_REQUIRE(a.x.rank() == 2 || a.x.rank() == 3, ErrorCode::kInvalidArgument, "rms_norm: x has shape ", a.x.shape(),
             ", expected [tokens, dim] or [tokens, heads, dim]");
  check_float("rms_norm: x", a.x);
  check_rows_contiguous("rms_norm: x", a.x);
  check_shape("rms_norm: weight", a.weight, {a.x.dim(a.x.rank() - 1)});
  check_float("rms_norm: weight", a.weight);
  check_shape("rms_norm: out", a.out, a.x.shape());
  check_dtype("rms_norm: out", a.out, a.x.dtype());
  if (!a.gate) return;
  check_shape("rms_norm: gate", a.gate, a.x.shape());
  check_dtype("rms_norm: gate", a.gate, a.x.dtype());
}

}  // namespace headrace
