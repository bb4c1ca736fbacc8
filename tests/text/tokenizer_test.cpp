#include "headrace/text/tokenizer.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Tokenizer, RefusesAFileThatIsNoJson) { EXPECT_THROW(Tokenizer::from_json("{"), std::runtime_error); }

}  // namespace
}  // namespace headrace
