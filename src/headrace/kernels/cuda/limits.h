// Sizes that no CUDA kernel goes beyond.
#pragma once

namespace headrace::cuda {

inline constexpr int kMostHeadDim = 512;    // of attention
inline constexpr int kMostGDNKeyDim = 256;  // of the gated delta rule
inline constexpr int kMostConvWidth = 17;   // taps of a causal convolution

}  // namespace headrace::cuda
