// Prefetches spread between other work: rows of the tile after this one, in small steps. For kernel sources only:
// internal linkage in every build of a source.
#pragma once
#include <stdint.h>

namespace headrace::cpu {
namespace {

// Walks over rows of memory, 128 bytes at a step: first those of `row`, then those of `second`. Any address is allowed:
// a prefetch never faults.
struct ReadAhead {
  const char* const* row = nullptr;
  const char* const* second = nullptr;
  long offset = 0, bytes = 0, second_offset = 0, second_bytes = 0;  // of each row, and its size
  long num_rows = 0, index = 0, at = 0;

  [[gnu::always_inline]] void step() {
    if (index == num_rows) return;
    const auto address = reinterpret_cast<uintptr_t>(row[index]) + static_cast<uintptr_t>(offset + at);
    __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 3);
    __builtin_prefetch(reinterpret_cast<const void*>(address + 64), 0, 3);
    at += 128;
    if (at < bytes) return;
    at = 0;
    if (++index < num_rows || second == nullptr) return;
    row = second;
    offset = second_offset;
    bytes = second_bytes;
    second = nullptr;
    index = 0;
  }
};

}  // namespace
}  // namespace headrace::cpu
