// Rows of an int8 pool, by the formula of store_kv.h. Slow, for reference ops only.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "headrace/ops/reference/element.h"

namespace headrace::reference {

// How the row rows[token, head, :] is stored.
struct Int8Row {
  float scale = 0, inverse = 0;  // value = code * scale, code = value * inverse before rounding

  Int8Row(const TensorView& rows, int64_t token, int64_t head) {
    float amax = 0;
    bool finite = true;
    for (int64_t d = 0; d < rows.dim(2); ++d) {
      const float magnitude = std::abs(static_cast<float>(get(rows, token, head, d)));
      finite = finite && std::isfinite(magnitude);
      amax = std::max(amax, magnitude);
    }
    if (!finite) {
      scale = std::numeric_limits<float>::quiet_NaN();
    } else if (amax >= 0x1p-100f) {
      scale = amax / 127;
      inverse = 127 / amax;
    }
  }
  double code(double value) const {
    return inverse == 0 ? 0 : std::nearbyint(static_cast<float>(value) * inverse);  // ties to even
  }
};

}  // namespace headrace::reference
