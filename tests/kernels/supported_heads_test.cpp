#include "headrace/kernels/supported_heads.h"

#include <gtest/gtest.h>

#include "headrace/base/error.h"

namespace headrace {
namespace {

TEST(SupportedHeads, ALayerBeyondTheSetIsRefusedNamingWhatIsBuilt) {
  const OpSet any{.name = "any"}, small{.name = "small", .most_head_dim = 64, .most_gdn_key_dim = 32};
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

}  // namespace
}  // namespace headrace
