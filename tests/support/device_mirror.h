// A device's kernels behind host tensors, so that every op test written for the CPU runs on them unchanged.
#pragma once
#include <array>
#include <string_view>

#include "headrace/ops/op_set.h"

namespace headrace::testing_support {

inline constexpr std::array<std::string_view, 2> kCudaSets = {"cuda", "cuda_baseline"};
// "cuda", called as in a graph that serves any split of its tokens among requests: true lengths stand on the device
// alone. Of attention, convolution and gated delta rule without snapshots; the other ops are those of "cuda".
inline constexpr std::string_view kRecordedSet = "cuda_recorded";
// Attention of "cuda", called as in a graph for short contexts and few rows of a request: by the lengths that choose
// its kernels no row sees more than one key, whatever it sees. The other ops are those of kRecordedSet.
inline constexpr std::string_view kRecordedShortSet = "cuda_recorded_short";

// The CUDA ops of that set, each of which copies its host arguments to device 0, runs, and copies back what it wrote.
// Attention runs three times, with the plan of its work in scratch, made for the batch, and left by an earlier layer:
// Error kInternal unless all have the same bits. Null when this machine has no device that the CUDA part runs on.
// Contexts given to them need no stream.
const OpSet* mirrored_cuda_ops(std::string_view set = kCudaSets[0]);

}  // namespace headrace::testing_support
