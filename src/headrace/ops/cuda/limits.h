// Largest sizes that the CUDA kernels support.
#pragma once

namespace headrace::cuda {

inline constexpr int kMostHeadDim = 512;          // of attention
inline constexpr int kMostGDNKeyDim = 256;        // of the gated delta rule
inline constexpr int kMostConvWidth = 17;         // taps of a causal convolution
inline constexpr int kMostExperts = 2048;         // experts of a router
inline constexpr int kMostVocab = (1 << 19) - 1;  // vocabulary that tokens are sampled from

// Longest 16-bit row, a multiple of 8 elements, for which rms_norm adds in the order of the GEMM sequence kernel.
inline constexpr int kLongestOrderedNorm = 16384;

// Shared memory of a CTA, and of an SM for its CTAs and 1 KiB for each, on the smallest devices that run sm_80 code:
// 8.6 and 8.9. An 8.0 allows a CTA 163 KiB, a 9.0 227 KiB.
inline constexpr int kLeastSharedBytes = 99 << 10, kLeastSharedBytesOfSM = 100 << 10;

}  // namespace headrace::cuda
