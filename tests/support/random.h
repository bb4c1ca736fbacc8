// Deterministic random tensors: the same seed gives the same values on every machine and standard library.
#pragma once
#include <initializer_list>

#include "headrace/core/tensor.h"

namespace headrace::testing_support {

// SplitMix64: small, seeded, good enough for test data.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  double uniform();          // [0, 1)
  double normal();           // mean 0, variance 1 (Box-Muller)
  int64_t below(int64_t n);  // [0, n)

 private:
  uint64_t state_;
};

template <class T>
T pick(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.below(static_cast<int64_t>(values.size()))];
}
int32_t between(Random& random, int32_t first, int32_t last);  // both may come
bool one_in(Random& random, int64_t n);                        // true once in n times

// N(0, scale^2), rounded to `dtype`.
Tensor random_tensor(Random& random, DType dtype, const Shape& shape, double scale = 1);
// Sets every element (floats only) to NaN, to catch reads of what must not be read.
void poison(const TensorView& view);
Tensor copy_of(const TensorView& view);  // dense copy on the CPU

}  // namespace headrace::testing_support
