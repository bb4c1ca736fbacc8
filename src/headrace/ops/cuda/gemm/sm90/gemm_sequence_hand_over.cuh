// How a step's results reach the blocks that read them as the next step's x: as values that say by themselves that they
// are there. So no block waits until all others can see its stores (the MEMBAR of a release, 1.1 us a step).
//
// The memory is all ones until values come, four neighbours of a row at a time. Such a word is written by one access of
// 8 bytes, relaxed and at the device's scope. The upper half of a word that has come is never all ones, since
// conversions to 16 bits make one NaN only, 0x7fff. Words are brought by cp.async, which is a weak access and may bring
// old ones for long; what has not come with it is read by accesses like those that write, of which the memory model
// says that they get all of a word or nothing (PTX, "single-copy atomicity"; a vector is read as its elements, in any
// order). Of a weak access it does not say so: that one gets whole words, too, rests on the hardware, where 16 bytes
// are read at once (so is ld.relaxed.b128, which promises it, by the same load).
//
// There are two generations of this memory. A launch writes values into one and ones into the other, which the launch
// before has used and nobody reads any more. Which is which tells the highest bit of the counter of meetings: a launch
// flips it an odd number of times, and nobody flips it before all blocks have read it.
#pragma once
#include "headrace/ops/cuda/arch/shared_vec.cuh"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence.cuh"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_hand_over.h"

namespace headrace::cuda::gemm_sequence {

template <class T>
__device__ inline uint32_t bits_of(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  } else {
    return __half_as_ushort(__float2half_rn(value));
  }
}

// Two words that lie side by side, when both have come.
__device__ inline uint4 wait_for_words(const void* from) {
  uint4 words;
  do {
    uint64_t first, second;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(from) : "memory");
    words = {static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32), static_cast<uint32_t>(second),
             static_cast<uint32_t>(second >> 32)};
  } while (words.y == ~0u || words.w == ~0u);
  return words;
}
__device__ inline void write_word(void* to, uint32_t low, uint32_t high) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(low | uint64_t{high} << 32) : "memory");
}

// By all threads that multiply, of all blocks.
__device__ inline void forget_values(char* values) {
  for (int i = blockIdx.x * kConsumers + threadIdx.x; i < HandOver::kBytes / 16; i += gridDim.x * kConsumers) {
    reinterpret_cast<uint4*>(values)[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
  }
}

}  // namespace headrace::cuda::gemm_sequence
