// A kernel that reads a GPU's memory and does next to nothing else: the limit of what reads keys once.
#pragma once
#include <array>

#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace::bench {

// Words of 16 bytes, at addresses that are one block's width apart. The fastest number depends on the device.
inline constexpr std::array kWordsPerThread = {4, 8, 16};

// Queues the reading of all of `memory`, whole MiB on the device, in the order of its addresses. `sum`, at least 4
// bytes there, is for what threads make of it: hardly ever written, and of no meaning. Error kInvalidArgument for
// another number of words than those above; kCuda.
void read_memory(const TensorView& memory, int words_per_thread, const TensorView& sum, const OpContext& context);

}  // namespace headrace::bench
