// Which CPU kernels run: an ordered list of instruction sets, best first, any of which can be asked for by name.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "headrace/ops/op_set.h"

namespace headrace::cpu {

struct KernelSet {
  const OpSet* ops;     // ops->name is the set's name
  bool (*runs_here)();  // this processor and operating system can run it
};

// Every set that is built in, best first. portable is always among them and runs everywhere.
std::span<const KernelSet> kernel_sets();

// The names of every set that headrace has for this processor family, best first. A build may have fewer sets
// (HEADRACE_ISAS).
std::span<const std::string_view> known_kernel_sets();

// The best set that runs here, or the one asked for. Error kUnsupported when `name` is unknown, is not built in or does
// not run on this machine; the text says which, and names the sets that do run.
const OpSet& select_kernel_set(std::optional<std::string_view> name = std::nullopt);

}  // namespace headrace::cpu
