// The one comparison of the tests.
#pragma once
#include <gtest/gtest.h>

#include "headrace/core/tensor.h"

namespace headrace::testing_support {

// |got - want| <= abs + rel * |want|
struct Tolerance {
  double abs = 0, rel = 0;
};

// Passes where got == want, or want is finite and |got - want| <= abs + rel * |want|. So a NaN on either side
// fails, and so does a finite value against an infinity. Reports how many differ and the worst element.
testing::AssertionResult all_close(const TensorView& got, const TensorView& want, Tolerance tolerance);

// Same dtype, shape and bits.
testing::AssertionResult bit_equal(const TensorView& got, const TensorView& want);

}  // namespace headrace::testing_support
