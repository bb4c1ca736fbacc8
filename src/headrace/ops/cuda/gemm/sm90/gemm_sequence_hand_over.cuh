// Flag-in-data hand-over: a step's results reach the CTAs that read them as the next step's x, and each value says by
// itself that it has arrived. So no CTA waits until all others can see its stores (the MEMBAR of a release, 1.1 us a
// step). NCCL calls this LL.
//
// The memory is all ones until values come, four neighbours of a row in a word of 8 bytes. One relaxed 8-byte store at
// GPU scope writes a word. The upper half of a word that has come is never all ones, since conversions to 16 bits make
// one NaN only, 0x7fff.
//
// Readers load words by cp.async, a weak access that may return old words for long. They read the missing ones by
// relaxed 8-byte loads. For these the memory model guarantees all of a word or nothing (PTX, "single-copy atomicity"; a
// vector is read as its elements, in any order). It does not guarantee that for weak accesses. That cp.async gets whole
// words too rests on the hardware, which reads 16 bytes at once. ld.relaxed.b128, which promises it, uses the same
// load.
//
// There are two generations of this memory. A launch writes values into one and ones into the other, which only the
// previous launch used. The highest bit of the grid barrier's counter selects the generation. A launch flips it an odd
// number of times, and no CTA flips it before all have read it.
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

// Returns two neighbouring words; polls until both have come.
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

// Fills a generation with ones; all consumer threads of all CTAs call it.
__device__ inline void forget_values(char* values) {
  for (int i = blockIdx.x * kConsumers + threadIdx.x; i < HandOver::kBytes / 16; i += gridDim.x * kConsumers) {
    reinterpret_cast<uint4*>(values)[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
  }
}

}  // namespace headrace::cuda::gemm_sequence
