// Human-readable sizes of memory and files.
#pragma once
#include <concepts>
#include <string>

namespace headrace {

std::string human_bytes_of(double bytes);

// Formats "1 byte", "999 bytes", then one decimal: "51.7 kB", "3.6 MB", "458.8 GB". Units of 1000, as for disks and
// memory limits. Not for errors that need the exact value.
template <std::integral Integer>
std::string human_bytes(Integer bytes) {
  return human_bytes_of(static_cast<double>(bytes));
}

}  // namespace headrace
