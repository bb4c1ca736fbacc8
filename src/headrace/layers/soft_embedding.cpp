#include "headrace/layers/soft_embedding.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "headrace/core/parallel.h"

namespace headrace {
namespace {

// sum += weight * row
void add_row(const TensorView& row, float weight, std::vector<float>& sum) {
  if (row.dtype() == DType::kBF16) {
    const auto* from = static_cast<const BF16*>(row.data());
    for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * static_cast<float>(from[d]);
    return;
  }
  const auto* from = static_cast<const float*>(row.data());
  for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * from[d];
}

// Returns the indices of marked tokens; `count`: the rows of logits, which must match.
std::vector<int64_t> marked_rows(const TensorView& mask, int64_t count) {
  std::vector<int64_t> rows;
  for (int64_t t = 0; t < mask.dim(0); ++t) {
    if (element_as_double(mask, t) != 0) rows.push_back(t);
  }
  HR_REQUIRE(static_cast<int64_t>(rows.size()) == count, ErrorCode::kInvalidArgument, "self-conditioning: ", count,
             " rows of logits for ", rows.size(), " marked rows");
  return rows;
}

void on_host(const LayerContext& context, const SoftEmbeddingArgs& a, const std::vector<int64_t>& marked) {
  const int64_t vocab = a.table.dim(0), hidden = a.table.dim(1);
  parallel_for(context.op.threads, static_cast<int64_t>(marked.size()), [&](int64_t i) {
    const auto* l = static_cast<const float*>(a.signal.logits.select(i).data());
    const float largest = *std::max_element(l, l + vocab);
    double total = 0;
    for (int64_t v = 0; v < vocab; ++v) total += std::exp(static_cast<double>(l[v] - largest));
    std::vector<float> sum(static_cast<size_t>(hidden), 0);
    for (int64_t v = 0; v < vocab; ++v) {
      const auto p = static_cast<float>(std::exp(static_cast<double>(l[v] - largest)) / total);
      if (p > 0) add_row(a.table.select(v), p, sum);
    }
    const TensorView row = a.out.select(marked[static_cast<size_t>(i)]);
    for (int64_t d = 0; d < hidden; ++d) set_element(row, d, sum[static_cast<size_t>(d)] * a.scale);
  });
}

}  // namespace

Tensor soft_embeddings(const LayerContext& context, const ForwardBatch& batch, const TensorView& table, float scale) {
  const bool on_cpu = context.on_cpu();
  HR_REQUIRE(on_cpu || (batch.soft.on_device != nullptr && batch.soft.on_device->self_conditioning),
             ErrorCode::kInvalidArgument,
             "self-conditioning: the batch lies on the host, expected one of a DeviceBatch");
  const SelfConditioning& signal = *(on_cpu ? batch.soft : *batch.soft.on_device).self_conditioning;
  const std::vector<int64_t> marked = marked_rows(batch.soft.self_conditioning->mask, signal.logits.dim(0));
  const Shape shape{batch.num_tokens(), table.dim(1)};
  Tensor out = on_cpu ? Tensor::zeros(context.dtype, shape) : context.make(shape);
  const SoftEmbeddingArgs args{signal, table, scale, out};
  check(args);
  if (on_cpu) {
    on_host(context, args, marked);
  } else {
    context.ops->soft_embedding(args, context.op);
  }
  return out;
}

}  // namespace headrace
