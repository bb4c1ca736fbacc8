// Test parameter: the name of a CPU kernel set, of a CUDA one, or "reference". A test of a set that this machine cannot
// run is skipped by name.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/device_mirror.h"

namespace headrace::testing_support {

class KernelSetTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const cpu::KernelSet& set : cpu::kernel_sets()) {
      if (set.ops->name == GetParam() && set.runs_here()) ops_ = set.ops;
    }
    if (GetParam() == "reference") ops_ = &reference::ops();
    if (GetParam().starts_with("cuda")) ops_ = mirrored_cuda_ops(GetParam());
    if (ops_ == nullptr) GTEST_SKIP() << "kernel set '" << GetParam() << "' is not built or does not run here";
  }
  const OpSet& ops() const { return *ops_; }

 private:
  const OpSet* ops_ = nullptr;  // not owned
};

#define HR_INSTANTIATE_KERNEL_SETS(Fixture)                                                                       \
  INSTANTIATE_TEST_SUITE_P(                                                                                       \
      Sets, Fixture, testing::Values("portable", "avx2", "avx512", "avx512bf16", "amx", "cuda", "cuda_baseline"), \
      [](const auto& set) { return set.param; })

// For ops whose launches are sized by key spans.
#define HR_INSTANTIATE_RECORDED_SET(Fixture)                                                               \
  INSTANTIATE_TEST_SUITE_P(Recorded, Fixture, testing::Values(std::string(testing_support::kRecordedSet)), \
                           [](const auto& set) { return set.param; })

}  // namespace headrace::testing_support
