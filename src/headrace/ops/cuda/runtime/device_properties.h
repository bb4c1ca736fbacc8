// Properties of a device from which heuristics choose kernels. Plain C++, so that CPU-only builds compile and test
// them.
#pragma once
#include <cstdint>

namespace headrace::cuda {

// Scratch memory of a stream. Sized for the partial results of split-KV attention and split-K GEMM, and for the WY
// factors of 32k tokens of Gated DeltaNet.
inline constexpr int64_t kScratchBytes = int64_t{320} << 20;
// Counters of a stream that a kernel may use. They are zero between kernels.
inline constexpr int64_t kStreamCounters = 256;

struct DeviceProperties {
  int arch = 0;     // 90 for sm_90
  int num_sms = 0;  // streaming multiprocessors
  // Shared memory that a CTA may request, static included, and that an SM has for its CTAs and 1 KiB of each.
  int64_t shared_bytes_of_block = 0, shared_bytes_of_sm = 0;
  int64_t scratch_bytes = 0;
};

inline constexpr DeviceProperties kH200{.arch = 90,
                                        .num_sms = 132,
                                        .shared_bytes_of_block = int64_t{227} << 10,
                                        .shared_bytes_of_sm = int64_t{228} << 10,
                                        .scratch_bytes = kScratchBytes};

}  // namespace headrace::cuda
