#include "headrace/kernels/supported_heads.h"

#include <gtest/gtest.h>

#include "support/refusal.h"

namespace headrace {
namespace {

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
