// The scores of published loops that rank tokens by what temperature and filters leave: by hand, and against the shares
// of tools/golden/make_filter_golden.py.
#include "headrace/sampling/filtered_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "headrace/core/error.h"
#include "headrace/weights/config_file.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

// Probabilities 0.1, 0.4, 0.2, 0.3.
const std::vector<float> kRow = {std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(3.0f)};

double entropy_of(const std::vector<double>& shares) {
  double sum = 0;
  for (const double p : shares) sum -= p * std::log(p);
  return sum;
}

void expect_scores(const FilteredScores& got, double confidence, double margin, double entropy) {
  EXPECT_NEAR(got.confidence, confidence, 1e-6);
  EXPECT_NEAR(got.margin, margin, 1e-6);
  EXPECT_NEAR(got.entropy, entropy, 1e-6);
}

TEST(FilteredScores, TopKOfOneLeavesNoDoubt) {
  expect_scores(filtered_scores(kRow, {}, {.temperature = 0.7f, .top_k = 1}, 1), 1, 1, 0);
  expect_scores(filtered_scores(kRow, {}, {.temperature = 0, .top_k = 1}, 1), 1, 1, 0);
}

TEST(FilteredScores, ATemperatureHeatsTheDistribution) {
  // At a half, weights are squared: 1, 16, 4 and 9 of 30.
  const double entropy = entropy_of({1 / 30.0, 16 / 30.0, 4 / 30.0, 9 / 30.0});
  expect_scores(filtered_scores(kRow, {}, {.temperature = 0.5f}, 1), 16 / 30.0, 7 / 30.0, entropy);
  expect_scores(filtered_scores(kRow, {}, {.temperature = 0.5f}, 2), 4 / 30.0, 7 / 30.0, entropy);
}

TEST(FilteredScores, TopPKeepsTheTokenWithWhichItIsReached) {
  // 0.4, then 0.7: the second of them reaches 0.6.
  expect_scores(filtered_scores(kRow, {}, {.temperature = 1, .top_p = 0.6f}, 3), 3 / 7.0, 1 / 7.0,
                entropy_of({4 / 7.0, 3 / 7.0}));
  expect_scores(filtered_scores(kRow, {}, {.temperature = 1, .top_p = 0.3f}, 1), 1, 1, 0);
}

TEST(FilteredScores, FiltersStandWithoutATemperature) {
  expect_scores(filtered_scores(kRow, {}, {.temperature = 0, .top_p = 0.6f}, 1), 4 / 7.0, 1 / 7.0,
                entropy_of({4 / 7.0, 3 / 7.0}));
}

TEST(FilteredScores, MinPIsAShareOfTheLargest) {
  expect_scores(filtered_scores(kRow, {}, {.temperature = 1, .min_p = 0.45f}, 1), 4 / 9.0, 1 / 9.0,
                entropy_of({4 / 9.0, 3 / 9.0, 2 / 9.0}));
}

TEST(FilteredScores, TheExcludedIdHasNoShareAndABannedOneNeither) {
  std::vector<float> row = kRow;
  row[3] = -INFINITY;
  expect_scores(filtered_scores(row, 1, {.temperature = 1}, 2), 2 / 3.0, 1 / 3.0, entropy_of({2 / 3.0, 1 / 3.0}));
}

// Each token that is left has its share, in either order of the filters.
TEST(FilteredScores, AreOfWhatTheFiltersOfTheFamilyLeave) {
  const JsonValue file = read_json_file(testing_support::golden_folder("filters.json"));
  for (const JsonValue& entry : file.as_array()) {
    std::vector<float> logits;
    for (const JsonValue& value : entry.at("logits").as_array()) logits.push_back(static_cast<float>(value.as_float()));
    TokenDraw draw{.temperature = static_cast<float>(entry.at("temperature").as_float()),
                   .top_p = static_cast<float>(entry.at("top_p").as_float()),
                   .top_k = static_cast<int32_t>(entry.at("top_k").as_int())};
    for (const char* order : {"llada2", "dream"}) {
      SCOPED_TRACE(str(order, ", top_k ", draw.top_k, ", top_p ", draw.top_p));
      draw.top_p_of = order == std::string("dream") ? TopPOf::kAll : TopPOf::kTopK;
      std::vector<double> shares;
      for (const JsonValue& token : entry.at(order).as_array()) shares.push_back(token.as_array()[1].as_float());
      const double margin = shares[0] - (shares.size() > 1 ? shares[1] : 0);
      for (size_t i = 0; i < shares.size(); ++i) {
        const auto id = static_cast<int32_t>(entry.at(order).as_array()[i].as_array()[0].as_int());
        expect_scores(filtered_scores(logits, {}, draw, id), shares[i], margin, entropy_of(shares));
      }
    }
  }
}

}  // namespace
}  // namespace headrace
