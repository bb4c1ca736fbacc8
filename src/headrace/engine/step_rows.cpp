#include "headrace/engine/step_rows.h"

#include <algorithm>
#include <cmath>

namespace headrace {

int32_t rows_of_step(int32_t rows, double seconds, int32_t least, int32_t most) {
  const double wanted = std::round(rows / seconds * kStepSeconds / kRowsMultiple) * kRowsMultiple;
  const auto chosen = static_cast<int32_t>(std::min<double>(wanted, most));
  return std::clamp(std::max(chosen, kRowsMultiple), least, most);
}

}  // namespace headrace
