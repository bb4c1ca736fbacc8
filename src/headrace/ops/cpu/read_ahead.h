// Software prefetch of the next tile's rows, in small steps between other work. For kernel sources only: internal
// linkage in every variant.
#pragma once
#include <stdint.h>

namespace headrace::cpu {
namespace {

// Prefetches to the second-level cache. Any address is allowed, because a prefetch never faults. The level matters:
// EPYC tracks few first-level misses, and other loads wait behind them. With first-level prefetches decode attention
// took twice as long there, and a tenth longer on a Xeon with AMX.
[[gnu::always_inline]] inline void read_ahead(const char* address) { __builtin_prefetch(address, 0, 2); }

// Prefetches rows of memory, 128 bytes per step: first those of `row`, then those of `second`.
struct ReadAhead {
  const char* const* row = nullptr;
  const char* const* second = nullptr;
  long offset = 0, bytes = 0, second_offset = 0, second_bytes = 0;  // byte offset and size of each row
  long num_rows = 0, index = 0, at = 0;

  [[gnu::always_inline]] void step() {
    if (index == num_rows) return;
    const char* const address =
        reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(row[index]) + static_cast<uintptr_t>(offset + at));
    read_ahead(address);
    read_ahead(address + 64);
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
