#include "headrace/ops/cpu/linear.h"
#include "headrace/ops/cpu/packed_linear.h"
#include "headrace/ops/cpu/params.h"
#include "headrace/ops/cpu/rows.h"

namespace headrace::cpu {
namespace {

// [tokens, dim] counts as one head.
Rows rows_of(const TensorView& x) {
  if (!x) return {};
  return {.data = x.data(),
          .token_stride = x.stride(0),
          .head_stride = x.rank() == 3 ? x.stride(1) : 0,
          .type = float_type(x)};
}

}  // namespace

LinearParams params_of(const LinearArgs& a, const OpContext& context) {
  return {.x = a.x.data(),
          .weight = a.weight.data(),
          .bias = a.bias.data(),
          .y = a.y.data(),
          .rows = a.x.dim(0),
          .in = a.x.dim(1),
          .out = a.weight.dim(0),
          .x_stride = a.x.stride(0),
          .weight_stride = a.weight.stride(0),
          .y_stride = a.y.stride(0),
          .x_type = float_type(a.x),
          .weight_type = float_type(a.weight),
          .bias_type = float_type(a.bias),
          .y_type = float_type(a.y),
          .sums = context.determinism == Determinism::kStrict ? LinearParams::Sums::kOneOrder
                                                              : LinearParams::Sums::kAnyOrder,
          .threads = context.threads};
}

PackedLinearParams packed_params_of(const LinearArgs& a, const OpContext& context) {
  const PackedMatrix& weight = *a.weight.packed();
  return {.format = weight.format,
          .weight = weight.data,
          .x = a.x.data(),
          .bias = a.bias.data(),
          .y = a.y.data(),
          .rows = a.x.dim(0),
          .in = weight.in,
          .out = weight.out,
          .x_stride = a.x.stride(0),
          .y_stride = a.y.stride(0),
          .column_order = weight.column_order,
          .column_unit = weight.column_unit,
          .x_type = float_type(a.x),
          .bias_type = float_type(a.bias),
          .y_type = float_type(a.y),
          .threads = context.threads};
}

RMSNormParams params_of(const RMSNormArgs& a, const OpContext& context) {
  return {.x = rows_of(a.x),
          .gate = rows_of(a.gate),
          .out = rows_of(a.out),
          .weight = a.weight.data(),
          .weight_type = float_type(a.weight),
          .tokens = a.x.dim(0),
          .heads = a.x.rank() == 3 ? a.x.dim(1) : 1,
          .dim = a.x.dim(a.x.rank() - 1),
          .eps = a.eps,
          .weight_offset = a.weight_form == WeightForm::kPlusOne ? 1.0f : 0.0f,
          .threads = context.threads};
}

RotaryEmbeddingParams params_of(const RotaryEmbeddingArgs& a, const OpContext& context) {
  return {.x = rows_of(a.x),
          .positions = static_cast<const int*>(a.positions.data()),
          .inv_freq = static_cast<const float*>(a.inv_freq.data()),
          .tokens = a.x.dim(0),
          .heads = a.x.dim(1),
          .half = a.inv_freq.dim(0),
          .magnitude = a.magnitude,
          .threads = context.threads,
          .has_axes = a.has_axes(),
          .sections = a.sections.value_or(RotarySections{}),
          .axis_stride = a.has_axes() ? a.positions.stride(0) : 0};
}

PointwiseParams params_of(const PointwiseArgs& a, const OpContext& context) {
  return {.kind = a.kind,
          .x = rows_of(a.x),
          .y = rows_of(a.y),
          .out = rows_of(a.out),
          .tokens = a.y.dim(0),
          .dim = a.y.dim(1),
          .x_dim = a.x.dim(1),
          .threads = context.threads};
}

EmbeddingParams params_of(const EmbeddingArgs& a, const OpContext& context) {
  return {.table = rows_of(a.table),
          .out = rows_of(a.out),
          .ids = static_cast<const int*>(a.ids.data()),
          .tokens = a.out.dim(0),
          .dim = a.out.dim(1),
          .threads = context.threads};
}

}  // namespace headrace::cpu
