// Fixed split-K order of batch-invariant mode: K is cut into kSegments splits; element k belongs to split
// k / kPartLen % kSegments. gemm_common.cuh says how kernels add them.
#pragma once

namespace headrace::cuda {

constexpr int kSegments = 16, kPartLen = 64, kPassLen = kSegments * kPartLen;
constexpr int kChunkLen = 32;  // elements of K that four lanes load at once, 16 bytes each

}  // namespace headrace::cuda
