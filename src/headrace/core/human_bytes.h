// Sizes of memory and files as people read them.
#pragma once
#include <concepts>
#include <string>

namespace headrace {

std::string human_bytes_of(double bytes);

// "1 byte", "999 bytes", then with one decimal "51.7 kB", "3.6 MB", "458.8 GB": units of 1000, as disks and memory
// limits are sold and reported. Not for a size whose exact value says what is wrong.
template <std::integral Integer>
std::string human_bytes(Integer bytes) {
  return human_bytes_of(static_cast<double>(bytes));
}

}  // namespace headrace
