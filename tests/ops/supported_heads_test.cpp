#include "headrace/ops/supported_heads.h"

#include <gtest/gtest.h>

#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/device_mirror.h"
#include "support/refusal.h"

namespace headrace {
namespace {

TEST(OpSet, NoEntryOfAnyTableIsNull) {
  const auto check = [](const OpSet& ops) {
#define HR_EXPECT_ENTRY(op, Args) EXPECT_NE(ops.op, nullptr) << ops.name << ": " << #op;
    HR_OPS(HR_EXPECT_ENTRY, HR_EXPECT_ENTRY, HR_EXPECT_ENTRY)
#undef HR_EXPECT_ENTRY
  };
  check(OpSet{.name = "empty"});
  check(reference::ops());
  for (const cpu::KernelSet& set : cpu::kernel_sets()) check(*set.ops);
}

TEST(OpSet, AnOpWithoutAKernelIsRefusedByName) {
  const auto refused = testing_support::refusal_of([] { reference::ops().expert_mlp({}, {}); });
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.sentence, "op 'expert_mlp' is not built in this kernel set");
}

TEST(OpSet, AFusedOpWithoutAKernelLeavesItsArgumentsAlone) {
  EXPECT_FALSE(reference::ops().fused_linear({}, {}));
  EXPECT_FALSE(reference::ops().norm_rotary({}, {}));
}

TEST(SupportedHeads, ALayerBeyondTheSetIsRefusedNamingWhatIsBuilt) {
  const OpSet any{.name = "any"},
      small{.name = "small", .most_head_dim = 64, .most_gdn_key_dim = 32, .most_conv_width = 8};
  EXPECT_NO_THROW(require_head_dim(any, 3, 4096));
  EXPECT_NO_THROW(require_gdn_key_dim(any, 3, 4096));
  EXPECT_NO_THROW(require_head_dim(small, 3, 64));
  EXPECT_NO_THROW(require_gdn_key_dim(small, 3, 32));
  try {
    require_head_dim(small, 3, 72);
    FAIL() << "heads of 72 in a set for 64";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(e.what(), "layer 3: attention heads of 72 elements; the kernel set 'small' has sizes up to 64");
  }
  EXPECT_THROW(require_gdn_key_dim(small, 3, 40), Error);
}

// Of the side library itself, which needs no device for it.
TEST(SupportedHeads, CudaRefusesLargerOnesThanItsKernelsTake) {
  const auto loaded = testing_support::refusal_of([] { cuda_module(); });
  if (loaded.code) GTEST_SKIP() << loaded.sentence;
  for (const std::string_view name : testing_support::kCudaSets) {
    const OpSet& set = cuda_module().ops(name);
    EXPECT_NO_THROW(require_head_dim(set, 3, 512));
    EXPECT_NO_THROW(require_gdn_key_dim(set, 3, 256));
    const auto heads = testing_support::refusal_of([&set] { require_head_dim(set, 3, 520); });
    EXPECT_EQ(heads.code, ErrorCode::kUnsupported);
    EXPECT_EQ(heads.sentence,
              str("layer 3: attention heads of 520 elements; the kernel set '", name, "' has sizes up to 512"));
    const auto keys = testing_support::refusal_of([&set] { require_gdn_key_dim(set, 3, 264); });
    EXPECT_EQ(keys.code, ErrorCode::kUnsupported);
    EXPECT_EQ(keys.sentence, str("layer 3: Gated DeltaNet key heads of 264 elements; the kernel set '", name,
                                 "' has sizes up to 256"));
  }
}

TEST(SupportedHeads, ADTypeThatNoKernelHasIsRefusedNamingWhatIsBuilt) {
  const OpSet any{.name = "any"};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    EXPECT_NO_THROW(require_float(any, 3, "activations", dtype));
  }
  for (const DType dtype : {DType::kF64, DType::kI32, DType::kE4M3}) {
    const auto refused = testing_support::refusal_of([&] { require_float(any, 3, "activations", dtype); });
    EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
    EXPECT_EQ(refused.sentence, str("layer 3: activations of ", name_of(dtype),
                                    "; the kernel set 'any' has float32, bfloat16 and float16"));
  }
}

TEST(SupportedHeads, AWiderConvolutionThanTheSetHasIsRefusedNamingWhatIsBuilt) {
  const OpSet any{.name = "any"}, small{.name = "small", .most_conv_width = 8};
  EXPECT_NO_THROW(require_conv_width(any, 2, 20));
  EXPECT_NO_THROW(require_conv_width(small, 2, 8));
  const auto refused = testing_support::refusal_of([&small] { require_conv_width(small, 2, 9); });
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.sentence,
            "layer 2: a Gated DeltaNet convolution of 9 taps; the kernel set 'small' has widths up to 8");
}

TEST(SupportedHeads, MoreExpertsOrIdsThanTheSetHasAreRefusedNamingWhatIsBuilt) {
  const OpSet any{.name = "any"}, small{.name = "small", .most_experts = 16, .most_vocab = 100};
  EXPECT_NO_THROW(require_experts(any, 2, 1 << 16));
  EXPECT_NO_THROW(require_vocab(any, 1 << 20));
  EXPECT_NO_THROW(require_experts(small, 2, 16));
  EXPECT_NO_THROW(require_vocab(small, 100));
  const auto experts = testing_support::refusal_of([&small] { require_experts(small, 2, 17); });
  EXPECT_EQ(experts.code, ErrorCode::kUnsupported);
  EXPECT_EQ(experts.sentence, "layer 2: 17 experts; the kernel set 'small' chooses among up to 16");
  const auto vocab = testing_support::refusal_of([&small] { require_vocab(small, 101); });
  EXPECT_EQ(vocab.code, ErrorCode::kUnsupported);
  EXPECT_EQ(vocab.sentence, "a vocabulary of 101 ids; the kernel set 'small' draws from up to 100");
}

}  // namespace
}  // namespace headrace
