// Selects the CPU kernels: ISA variants in order of preference, any of which can be requested by name.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "headrace/ops/op_set.h"

namespace headrace::cpu {

struct KernelSet {
  const OpSet* ops;     // ops->name is the set's name
  bool (*runs_here)();  // true if this processor and operating system support it
};

// Returns the variants of this build, best first. "portable" is always among them and runs everywhere.
std::span<const KernelSet> kernel_sets();

// Returns the names of all variants for this processor family, best first. A build may contain fewer (HEADRACE_ISAS).
std::span<const std::string_view> known_kernel_sets();

// Returns the best variant that runs here, or the one named `name`. Throws Error kUnsupported if `name` is unknown, not
// built or not supported by this machine; the message says which, and lists the variants that run.
const OpSet& select_kernel_set(std::optional<std::string_view> name = std::nullopt);

}  // namespace headrace::cpu
