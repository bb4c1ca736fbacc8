// What is said of memory that could not be had. Host work alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "headrace/base/error.h"

namespace headrace::cuda {

// Bytes of a device; total 0 where it does not say, as before it has a context.
struct MemoryLeft {
  size_t available = 0, total = 0;
};

// To stand behind a sentence: "; 7 of 9 bytes are free", or nothing.
inline std::string said_of(const MemoryLeft& left) {
  return left.total == 0 ? "" : str("; ", left.available, " of ", left.total, " bytes are free");
}

// Pinned memory is the host's: another device has no more of it.
inline std::string could_not_pin(size_t bytes, std::optional<int64_t> available) {
  return str("cuda: could not pin ", bytes, " bytes of the host's memory",
             available ? str("; ", *available, " are available") : "");
}

}  // namespace headrace::cuda
