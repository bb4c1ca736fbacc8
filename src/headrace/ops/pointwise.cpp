#include "headrace/ops/pointwise.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const PointwiseArgs& a) {
  check_rank("pointwise: y", a.y, 2);
  for (const TensorView* t : {&a.x, &a.y, &a.out}) {
    check_float("pointwise", *t);
    check_rows_contiguous("pointwise", *t);
  }
  check_shape("pointwise: x", a.x, {a.y.dim(0), a.x.rank() == 2 && a.x.dim(1) == 1 ? 1 : a.y.dim(1)});
  check_shape("pointwise: out", a.out, a.y.shape());
}

}  // namespace headrace
