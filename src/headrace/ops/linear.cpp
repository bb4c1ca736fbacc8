#include "headrace/ops/linear.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const LinearArgs& a) {
  check_rank("linear: x", a.x, 2);
  check_weight("linear: weight", a.weight, {a.weight.dim(0), a.x.dim(1)});
  check_shape("linear: y", a.y, {a.x.dim(0), a.weight.dim(0)});
  for (const TensorView* t : {&a.x, &a.y}) check_float("linear", *t);
  check_rows_contiguous("linear: x", a.x);
  if (!a.bias) return;
  check_shape("linear: bias", a.bias, {a.weight.dim(0)});
  check_float("linear: bias", a.bias);
}

}  // namespace headrace
