// Chooses the tokens of a step from a measured speed.
#pragma once
#include <cstdint>

namespace headrace {

inline constexpr double kStepSeconds = 0.1;    // a step of the chosen size takes about this long
inline constexpr int32_t kRowsMultiple = 256;  // the fewest rows that are measured and chosen

// Returns the rows that take about kStepSeconds if `rows` rows take `seconds` (positive): a multiple of kRowsMultiple,
// or `least` or `most`, between which it lies.
int32_t rows_of_step(int32_t rows, double seconds, int32_t least, int32_t most);

}  // namespace headrace
