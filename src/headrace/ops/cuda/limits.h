// Sizes that no CUDA kernel goes beyond.
#pragma once

namespace headrace::cuda {

inline constexpr int kMostHeadDim = 512;          // of attention
inline constexpr int kMostGDNKeyDim = 256;        // of the gated delta rule
inline constexpr int kMostConvWidth = 17;         // taps of a causal convolution
inline constexpr int kMostExperts = 2048;         // that a router chooses among
inline constexpr int kMostVocab = (1 << 19) - 1;  // ids that a token is drawn from

// Shared memory that a block may have, and that a multiprocessor has for its blocks and 1 KiB for each, on the least of
// the devices that run sm_80's code: 8.6 and 8.9. An 8.0 allows a block 163 KiB, a 9.0 227.
inline constexpr int kLeastSharedBytes = 99 << 10, kLeastSharedBytesOfSM = 100 << 10;

}  // namespace headrace::cuda
