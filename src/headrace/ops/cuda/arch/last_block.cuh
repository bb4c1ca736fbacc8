// Which of several blocks ends last.
#pragma once
#include <cstdint>

namespace headrace::cuda {

// Counts a block in; whether `others` were counted before it, which leaves the counter at zero. By one thread behind a
// barrier of its block's: what the block wrote is released, and what the others wrote is there for the last one.
__device__ inline bool comes_last(uint32_t* counter, unsigned others) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(others) : "memory");
  return before == others;
}

}  // namespace headrace::cuda
