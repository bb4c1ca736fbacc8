#include "headrace/ops/soft_embedding.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const SoftEmbeddingArgs& a) {
  const TensorView& logits = a.signal.logits;
  check_rank("self-conditioning: table", a.table, 2);
  check_float("self-conditioning: table", a.table);
  check_rows_contiguous("self-conditioning: table", a.table);
  check_rank("self-conditioning: out", a.out, 2);
  check_float("self-conditioning: out", a.out);
  check_shape("self-conditioning: out", a.out, {a.out.dim(0), a.table.dim(1)});
  check_shape("self-conditioning: mask", a.signal.mask, {a.out.dim(0)});
  check_dtype("self-conditioning: mask", a.signal.mask, DType::kU8);
  HR_REQUIRE(logits.dtype() == DType::kF32 && logits.rank() == 2 && logits.dim(1) == a.table.dim(0) &&
                 logits.is_contiguous() && a.out.is_contiguous(),
             ErrorCode::kInvalidArgument, "self-conditioning: logits are ", name_of(logits.dtype()), " ",
             logits.shape(), ", expected dense float32 [rows, ", a.table.dim(0), "]");
}

}  // namespace headrace
