// Prefetches spread between other work: rows of the tile after this one, in small steps. For kernel sources only:
// internal linkage in every build of a source.
#pragma once
#include <stdint.h>

namespace headrace::cpu {
namespace {

// Any address is allowed: a prefetch never faults. Asking for the second-level cache matters: EPYC tracks few misses of
// its first level at a time, and loads of the work in between wait behind them (decode attention took twice as long; on
// a Xeon with AMX a tenth longer).
[[gnu::always_inline]] inline void read_ahead(const char* address) { __builtin_prefetch(address, 0, 2); }

// Walks over rows of memory, 128 bytes at a step: first those of `row`, then those of `second`.
struct ReadAhead {
  const char* const* row = nullptr;
  const char* const* second = nullptr;
  long offset = 0, bytes = 0, second_offset = 0, second_bytes = 0;  // of each row, and its size
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
