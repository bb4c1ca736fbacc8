// References of the dense ops: norms, rotary embedding, pointwise ops, embeddings and GEMM, in double.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "headrace/ops/reference/element.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// Source: Hendrycks & Gimpel 2016, tanh approximation.
double gelu(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))); }

TensorView as_heads(const TensorView& x) { return !x || x.rank() == 3 ? x : x.reshape({x.dim(0), 1, x.dim(1)}); }

// Row `i` of a weight, decoded if it is packed.
std::vector<double> row_of(const WeightView& weight, int64_t i) {
  std::vector<double> row(static_cast<size_t>(weight.dim(1)));
  if (const PackedMatrix* packed = weight.packed()) {
    std::vector<float> values(row.size());
    unpack_row(*packed, i, values);
    std::ranges::copy(values, row.begin());
  } else {
    for (size_t d = 0; d < row.size(); ++d) row[d] = get(weight.floats(), i, static_cast<int64_t>(d));
  }
  return row;
}

}  // namespace

void rms_norm(const RMSNormArgs& a, const OpContext&) {
  check(a);
  const TensorView x = as_heads(a.x), gate = as_heads(a.gate), out = as_heads(a.out);
  const int64_t dim = x.dim(2);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t h = 0; h < x.dim(1); ++h) {
      double sum = 0;
      for (int64_t d = 0; d < dim; ++d) sum += get(x, t, h, d) * get(x, t, h, d);
      const double factor = 1 / std::sqrt(sum / static_cast<double>(dim) + static_cast<double>(a.eps));
      for (int64_t d = 0; d < dim; ++d) {
        const double weight = get(a.weight, d) + (a.weight_form == WeightForm::kPlusOne ? 1 : 0);
        const double z = gate ? get(gate, t, h, d) : 0;
        set(out, get(x, t, h, d) * factor * weight * (gate ? z * sigmoid(z) : 1), t, h, d);
      }
    }
  }
}

void rotary_embedding(const RotaryEmbeddingArgs& a, const OpContext&) {
  check(a);
  const int64_t half = a.inv_freq.dim(0);
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double position =
          a.has_axes() ? get(a.positions, a.sections->axis_of(static_cast<int>(i)), t) : get(a.positions, t);
      // The angle is a float32 product, as in the training of the checkpoints.
      const double angle = static_cast<double>(static_cast<float>(position) * static_cast<float>(get(a.inv_freq, i)));
      const double c = std::cos(angle) * static_cast<double>(a.magnitude),
                   s = std::sin(angle) * static_cast<double>(a.magnitude);
      for (int64_t h = 0; h < a.x.dim(1); ++h) {
        const double low = get(a.x, t, h, i), high = get(a.x, t, h, i + half);
        set(a.x, low * c - high * s, t, h, i);
        set(a.x, high * c + low * s, t, h, i + half);
      }
    }
  }
}

void pointwise(const PointwiseArgs& a, const OpContext&) {
  check(a);
  for (int64_t t = 0; t < a.y.dim(0); ++t) {
    for (int64_t d = 0; d < a.y.dim(1); ++d) {
      const double x = get(a.x, t, a.x.dim(1) == 1 ? 0 : d), y = get(a.y, t, d);
      switch (a.kind) {
        case PointwiseKind::kAdd: set(a.out, x + y, t, d); break;
        case PointwiseKind::kSiluMul: set(a.out, x * sigmoid(x) * y, t, d); break;
        case PointwiseKind::kSigmoidMul: set(a.out, sigmoid(x) * y, t, d); break;
        case PointwiseKind::kMul: set(a.out, x * y, t, d); break;
        case PointwiseKind::kGeluMul: set(a.out, gelu(x) * y, t, d); break;
        case PointwiseKind::kSoftCap: set(a.out, x * std::tanh(y / x), t, d); break;
        case PointwiseKind::kDivide: set(a.out, y / x, t, d); break;
      }
    }
  }
}

void embedding(const EmbeddingArgs& a, const OpContext&) {
  check(a);
  for (int64_t t = 0; t < a.out.dim(0); ++t) {
    const std::vector<double> row = row_of(a.table, static_cast<int64_t>(get(a.ids, t)));
    for (int64_t d = 0; d < a.out.dim(1); ++d) set(a.out, row[static_cast<size_t>(d)], t, d);
  }
}

void linear(const LinearArgs& a, const OpContext&) {
  check(a);
  const PackedMatrix* const packed = a.weight.packed();
  const auto column = [packed](int64_t k) {
    if (packed == nullptr || packed->column_order == nullptr) return k;
    return int64_t{packed->column_order[k / packed->column_unit]} * packed->column_unit + k % packed->column_unit;
  };
  for (int64_t n = 0; n < a.y.dim(1); ++n) {
    const std::vector<double> row = row_of(a.weight, n);
    for (int64_t m = 0; m < a.y.dim(0); ++m) {
      double sum = a.bias ? get(a.bias, n) : 0;
      for (int64_t k = 0; k < a.x.dim(1); ++k) sum += get(a.x, m, column(k)) * row[static_cast<size_t>(k)];
      set(a.y, sum, m, n);
    }
  }
}

}  // namespace headrace::reference
