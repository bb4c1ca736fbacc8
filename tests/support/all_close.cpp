#include "support/all_close.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace headrace::testing_support {

testing::AssertionResult all_close(const TensorView& got, const TensorView& want, Tolerance tolerance) {
  if (!(got.shape() == want.shape())) {
    return testing::AssertionFailure() << "shapes differ: got " << got.shape() << ", want " << want.shape();
  }
  int64_t worst = 0, failures = 0;
  double worst_error = -1;
  for (int64_t i = 0; i < want.numel(); ++i) {
    const double g = element_as_double(got, i), w = element_as_double(want, i);
    const double allowed = tolerance.abs + tolerance.rel * std::abs(w);
    if (g == w || (std::isfinite(w) && std::abs(g - w) <= allowed)) continue;
    ++failures;
    const double error = std::isfinite(g - w) ? std::abs(g - w) : std::numeric_limits<double>::infinity();
    if (error > worst_error) {
      worst = i;
      worst_error = error;
    }
  }
  if (failures == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << failures << " of " << want.numel() << " differ (shape " << want.shape()
                                     << "), worst at " << worst << ": got " << element_as_double(got, worst)
                                     << ", want " << element_as_double(want, worst);
}

testing::AssertionResult bit_equal(const TensorView& got, const TensorView& want) {
  if (got.dtype() != want.dtype() || !(got.shape() == want.shape())) {
    return testing::AssertionFailure() << "got " << name_of(got.dtype()) << got.shape() << ", want "
                                       << name_of(want.dtype()) << want.shape();
  }
  const bool dense = want.bytes() > 0 && got.is_contiguous() && want.is_contiguous();
  if (dense && std::memcmp(got.data(), want.data(), static_cast<size_t>(want.bytes())) == 0) {
    return testing::AssertionSuccess();
  }
  for (int64_t i = 0; i < want.numel(); ++i) {
    const double g = element_as_double(got, i), w = element_as_double(want, i);
    if (std::bit_cast<uint64_t>(g) != std::bit_cast<uint64_t>(w)) {
      return testing::AssertionFailure() << "element " << i << " of " << want.shape() << ": got " << g << ", want "
                                         << w;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace headrace::testing_support
