#include "headrace/layers/token_merge.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "headrace/ops/merge_tokens.h"

namespace headrace {
namespace {

// Checks the ids of flagged rows: only these are read.
void check_ids(const TokenMerge& m, int64_t vocab) {
  const auto require = [vocab](int64_t token, int64_t id) {
    HR_REQUIRE(id >= 0 && id < vocab, ErrorCode::kInvalidArgument, "token merge: row ", token, " names id ", id,
               ", expected 0 to ", vocab - 1);
  };
  const int64_t k = m.ids.dim(1);
  for (int64_t t = 0; t < m.mask.dim(0); ++t) {
    if (element_as_double(m.mask, t) == 0) continue;
    for (int64_t j = 0; j < k; ++j) require(t, static_cast<int64_t>(element_as_double(m.ids, t * k + j)));
    require(t, m.mask_token_id);
  }
}

}  // namespace

// Source: Diffulex, token merge of the DMax strategy.
void merge_tokens(const TokenMerge& m, const TensorView& table, const TensorView& x) {
  check(MergeTokensArgs{m, table, x});
  check_ids(m, table.dim(0));
  const int64_t k = m.ids.dim(1), hidden = x.dim(1);
  std::vector<double> sum(static_cast<size_t>(hidden));
  double parts = 0;  // sum of the terms' norms
  const auto add = [&](int64_t id, double weight) {
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
      add(static_cast<int64_t>(element_as_double(m.ids, t * k + j)), element_as_double(m.probs, t * k + j));
    }
    add(m.mask_token_id, element_as_double(m.residual, t));
    const double length = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
    const double scale = m.length == TokenMerge::Length::kAsSummed ? 1 : parts / std::max(length, 1e-12);
    const TensorView row = x.select(t);
    for (int64_t d = 0; d < hidden; ++d) set_element(row, d, scale * sum[static_cast<size_t>(d)]);
  }
}

void merge_tokens(const LayerContext& context, const SoftInputs& soft, const WeightView& table, const TensorView& x) {
  if (!soft.token_merge) return;
  if (context.on_cpu()) return merge_tokens(*soft.token_merge, table, x);
  HR_REQUIRE(soft.on_device != nullptr && soft.on_device->token_merge, ErrorCode::kInvalidArgument,
             "token merge: the batch lies on the host, expected one of a DeviceBatch");
  check_ids(*soft.token_merge, table.dim(0));
  context.ops->merge_tokens({*soft.on_device->token_merge, table, x}, context.op);
}

}  // namespace headrace
