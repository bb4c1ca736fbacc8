#include "headrace/core/human_bytes.h"

#include <array>
#include <cstdio>

namespace headrace {

std::string human_bytes_of(double bytes) {
  std::array<char, 32> text{};
  if (bytes < 1000) {
    std::snprintf(text.data(), text.size(), "%.0f byte%s", bytes, bytes == 1 ? "" : "s");
    return text.data();
  }
  constexpr std::array kUnits = {"kB", "MB", "GB", "TB", "PB", "EB"};
  size_t unit = 0;
  double value = bytes / 1000;
  for (; value >= 999.95 && unit + 1 < kUnits.size(); value /= 1000) ++unit;  // avoids "1000.0 kB" for 1.0 MB
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace headrace
