#include "headrace/ops/rotary_embedding.h"

#include "headrace/ops/checks.h"

namespace headrace {
namespace {

void check_sections(const RotaryEmbeddingArgs& a) {
  HR_REQUIRE(!a.has_axes() || a.sections, ErrorCode::kInvalidArgument, "rotary_embedding: positions have ",
             a.positions.dim(0), " axes and there are no sections that say which pairs turn by which");
  if (!a.sections) return;
  const RotarySections& s = *a.sections;
  HR_REQUIRE(s.fill(a.inv_freq.dim(0)), ErrorCode::kInvalidArgument, "rotary_embedding: sections are ", s.t, ", ", s.h,
             " and ", s.w, ", expected counts that add up to ", a.inv_freq.dim(0), " pairs");
}

}  // namespace

void check(const RotaryEmbeddingArgs& a) {
  check_rank("rotary_embedding: x", a.x, 3);
  check_float("rotary_embedding: x", a.x);
  check_rows_contiguous("rotary_embedding: x", a.x);
  check_shape("rotary_embedding: positions", a.positions,
              a.has_axes() ? Shape{RotarySections::kAxes, a.x.dim(0)} : Shape{a.x.dim(0)});
  check_dtype("rotary_embedding: positions", a.positions, DType::kI32);
  check_rank("rotary_embedding: inv_freq", a.inv_freq, 1);
  check_dtype("rotary_embedding: inv_freq", a.inv_freq, DType::kF32);
  HR_REQUIRE(2 * a.inv_freq.dim(0) <= a.x.dim(2), ErrorCode::kInvalidArgument,
             "rotary_embedding: ", 2 * a.inv_freq.dim(0), " rotated elements, heads have ", a.x.dim(2));
  check_sections(a);
}

}  // namespace headrace
