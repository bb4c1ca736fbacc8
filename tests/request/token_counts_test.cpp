#include "headrace/request/token_counts.h"

#include <gtest/gtest.h>

#include <map>

#include "support/random.h"

namespace headrace {
namespace {

constexpr int32_t kMask = 89;

std::map<int32_t, int32_t> counts_of(const TokenCounts& counts) {
  std::map<int32_t, int32_t> all;
  for (size_t i = 0; i < counts.ids().size(); ++i) all[counts.ids()[i]] = counts.counts()[i];
  EXPECT_EQ(all.size(), counts.ids().size()) << "an id stands twice";
  return all;
}

std::map<int32_t, int32_t> counted(const std::vector<int32_t>& tokens, std::optional<int32_t> open_id) {
  std::map<int32_t, int32_t> all;
  for (const int32_t id : tokens) {
    if (id != open_id) ++all[id];
  }
  return all;
}

TEST(TokenCounts, OfATextThatGrowsByTokensAreThoseOfAllOfIt) {
  testing_support::Random random(5);
  TokenCounts counts;
  std::vector<int32_t> tokens;
  for (int step = 0; step < 200; ++step) {
    tokens.push_back(static_cast<int32_t>(random.below(30)));
    counts.update(tokens, static_cast<int32_t>(tokens.size()), {});
    ASSERT_EQ(counts_of(counts), counted(tokens, {}));
  }
}

// Positions are decided in any order, replaced, taken back and cut off.
TEST(TokenCounts, AreThoseOfTheTextAsItIsNow) {
  testing_support::Random random(3);
  for (const std::optional<int32_t> open_id : {std::optional(kMask), std::optional<int32_t>()}) {
    TokenCounts counts;
    std::vector<int32_t> tokens;
    const auto below = [&random](int64_t n) { return static_cast<int32_t>(random.below(n)); };
    int32_t num_final = 0;
    for (int step = 0; step < 2000; ++step) {
      for (int32_t i = below(3); i > 0; --i) tokens.push_back(below(2) == 0 ? kMask : below(12));
      for (size_t at = static_cast<size_t>(num_final); at < tokens.size(); ++at) {
        if (below(3) == 0) tokens[at] = below(8) == 0 ? kMask : below(12);
      }
      if (std::ssize(tokens) > num_final && below(5) == 0) tokens.pop_back();
      while (num_final < std::ssize(tokens) && below(3) > 0) ++num_final;
      if (below(200) == 0) tokens.clear(), num_final = 0;
      counts.update(tokens, num_final, open_id);
      ASSERT_EQ(counts_of(counts), counted(tokens, open_id)) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace headrace
