// Random attention problems on one backend, in fast and in strict mode, against the oracle and against themselves.
#include "conformance/attention_checks.h"
#include "conformance/random_attention_case.h"
#include "headrace/ops/cpu/dispatch.h"
#include "support/device_mirror.h"
#include "support/fuzz.h"

namespace headrace::testing_support {
namespace {

std::vector<std::string> sets_that_run_here() {
  std::vector<std::string> names;
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (set.runs_here()) names.emplace_back(set.ops->name);
  }
  return names;
}

// On "cpu" each case runs on one of the kernel sets, by its seed.
FuzzCase fuzz_case(uint64_t seed, const FuzzArguments& arguments) {
  AttentionChecks checks{.backend = arguments.backend};
  if (arguments.backend == "cpu") {
    const std::vector<std::string> sets = sets_that_run_here();
    checks.kernel_set = sets[seed % sets.size()];
  } else {
    HR_REQUIRE(mirrored_cuda_ops(arguments.backend) != nullptr, ErrorCode::kNoDevice,
               "no CUDA device for the backend '", arguments.backend, "'");
  }
  const AttentionCase c = random_attention_case(seed, arguments.products);
  return {.summary = str(checks.kernel_set.value_or(checks.backend), ", ", summary_of(c)),
          .wrong = [c, seed, checks] { return wrong_with(c, seed, checks); }};
}

}  // namespace
}  // namespace headrace::testing_support

int main(int argc, char** argv) {
  return headrace::testing_support::fuzz_main("attention_fuzz", argc, argv, headrace::testing_support::fuzz_case);
}
