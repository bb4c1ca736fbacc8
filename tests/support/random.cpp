#include "support/random.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

namespace headrace::testing_support {

uint64_t Random::next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Random::normal() {
  const double u = 1 - uniform(), v = uniform();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

int64_t Random::below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }

int32_t between(Random& random, int32_t first, int32_t last) {
  return first + static_cast<int32_t>(random.below(int64_t{last} - first + 1));
}

bool one_in(Random& random, int64_t n) { return random.below(n) == 0; }

Tensor random_tensor(Random& random, DType dtype, const Shape& shape, double scale) {
  Tensor tensor(dtype, shape);
  for (int64_t i = 0; i < tensor.numel(); ++i) set_element(tensor, i, random.normal() * scale);
  return tensor;
}

void poison(const TensorView& view) {
  for (int64_t i = 0; i < view.numel(); ++i) set_element(view, i, std::numeric_limits<double>::quiet_NaN());
}

Tensor copy_of(const TensorView& view) {
  Tensor copy(view.dtype(), view.shape());
  if (view.is_contiguous() && view.numel() > 0) {
    std::memcpy(copy.data(), view.data(), static_cast<size_t>(view.bytes()));
    return copy;
  }
  for (int64_t i = 0; i < view.numel(); ++i) set_element(copy, i, element_as_double(view, i));
  return copy;
}

}  // namespace headrace::testing_support
