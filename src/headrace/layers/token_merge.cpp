#include "headrace/layers/token_merge.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "headrace/base/error.h"

namespace headrace {
namespace {

void check(const TokenMerge& m, const TensorView& table, const TensorView& x) {
  const int64_t tokens = x.dim(0);
  const auto require = [](const TensorView& view, DType dtype, const Shape& shape, const char* name) {
    HR_REQUIRE(view.dtype() == dtype && view.shape() == shape, ErrorCode::kInvalidArgument, "token merge: ", name,
               " is ", name_of(view.dtype()), " ", view.shape(), ", expected ", name_of(dtype), " ", shape);
  };
  require(m.mask, DType::kU8, {tokens}, "mask");
  HR_REQUIRE(m.ids.rank() == 2, ErrorCode::kInvalidArgument, "token merge: ids have ", m.ids.rank(),
             " dimensions, expected 2");
  require(m.ids, DType::kI64, {tokens, m.ids.dim(1)}, "ids");
  require(m.probs, DType::kF32, {tokens, m.ids.dim(1)}, "probs");
  require(m.residual, DType::kF32, {tokens}, "residual");
  HR_REQUIRE(table.dim(1) == x.dim(1), ErrorCode::kInvalidArgument, "token merge: the table is ", table.dim(1),
             " wide, expected ", x.dim(1));
}

}  // namespace

// Source: Diffulex, token merge of the DMax strategy.
void merge_tokens(const TokenMerge& m, const TensorView& table, const TensorView& x) {
  check(m, table, x);
  const int64_t k = m.ids.dim(1), hidden = x.dim(1);
  std::vector<double> sum(static_cast<size_t>(hidden));
  double parts = 0;  // lengths of the summands
  const auto add = [&](int64_t token, int64_t id, double weight) {
    HR_REQUIRE(id >= 0 && id < table.dim(0), ErrorCode::kInvalidArgument, "token merge: row ", token, " names id ", id,
               ", expected 0 to ", table.dim(0) - 1);
    const TensorView row = table.select(id);
    double squares = 0;
    for (int64_t d = 0; d < hidden; ++d) {
      const double part = weight * element_as_double(row, d);
      sum[static_cast<size_t>(d)] += part;
      squares += part * part;
    }
    parts += std::sqrt(squares);
  };
  for (int64_t t = 0; t < x.dim(0); ++t) {
    if (element_as_double(m.mask, t) == 0) continue;
    sum.assign(sum.size(), 0);
    parts = 0;
    for (int64_t j = 0; j < k; ++j) {
      add(t, static_cast<int64_t>(element_as_double(m.ids, t * k + j)), element_as_double(m.probs, t * k + j));
    }
    add(t, m.mask_token_id, element_as_double(m.residual, t));
    const double length = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
    const double scale = m.length == TokenMerge::Length::kAsSummed ? 1 : parts / std::max(length, 1e-12);
    const TensorView row = x.select(t);
    for (int64_t d = 0; d < hidden; ++d) set_element(row, d, scale * sum[static_cast<size_t>(d)]);
  }
}

}  // namespace headrace
