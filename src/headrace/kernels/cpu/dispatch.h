// Which CPU kernels run: an ordered list of instruction sets, best first, any of which can be asked for by name.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "headrace/kernels/op_set.h"

namespace headrace::cpu {

struct KernelSet {
  const OpSet* ops;     // ops->name is the set's name
  bool (*runs_here)();  // this processor and operating system can run it
};

// Every set that is built, best first: amx, avx512bf16, avx512, avx2, portable. portable runs everywhere.
std::span<const KernelSet> kernel_sets();

// The best set that runs here, or the one asked for. Error kUnsupported when `name` is not built or does not
// run on this machine; the text names those that do.
const OpSet& select_kernel_set(std::optional<std::string_view> name = std::nullopt);

}  // namespace headrace::cpu
