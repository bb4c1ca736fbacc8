// Texts of out-of-memory errors. Host code only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"

namespace headrace::cuda {

// Bytes of a device. total is 0 if the device does not say, for instance before it has a context.
struct MemoryLeft {
  size_t available = 0, total = 0;
};

// Returns a clause to append to an error: "; 7.0 GB of 9.0 GB are free", or "" if the total is unknown.
inline std::string said_of(const MemoryLeft& left) {
  return left.total == 0 ? "" : str("; ", human_bytes(left.available), " of ", human_bytes(left.total), " are free");
}

// Returns the error text of a failed pinned allocation. Pinned memory is host memory: another device has no more of it.
inline std::string could_not_pin(size_t bytes, std::optional<int64_t> available) {
  return str("cuda: could not pin ", human_bytes(bytes), " of the host's memory",
             available ? str("; ", human_bytes(*available), " are available") : "");
}

}  // namespace headrace::cuda
