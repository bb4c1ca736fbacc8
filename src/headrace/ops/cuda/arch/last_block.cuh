// Finds the last of several CTAs to finish.
#pragma once
#include <cstdint>

namespace headrace::cuda {

// Counts this CTA. Returns true if `others` CTAs were counted before it; the counter is then zero again. Call it from
// one thread after a CTA-wide barrier. It releases what the CTA wrote, and the last CTA sees what the others wrote.
__device__ inline bool comes_last(uint32_t* counter, unsigned others) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(others) : "memory");
  return before == others;
}

}  // namespace headrace::cuda
