// What top-k and top-p leave of a row, in the order of the family, against tools/golden/make_filter_golden.py.
#include <gtest/gtest.h>

#include <cstring>

#include "headrace/weights/config_file.h"
#include "ops/kernel_sets.h"
#include "support/source_tree.h"

namespace headrace::testing_support {
namespace {

class Filters : public KernelSetTest {
 protected:
  int32_t drawn(const Tensor& logits, const TokenDraw& draw) const {
    const auto vocab = static_cast<int32_t>(logits.dim(1));
    const Tensor best(DType::kI32, {1}), stats(DType::kF32, {1, 4}), id(DType::kI32, {1}), chosen(DType::kF32, {1});
    ops().token_confidence({logits, vocab, {}, best, stats}, {});
    const Tensor draws(DType::kU8, {1, static_cast<int64_t>(sizeof(TokenDraw))});
    std::memcpy(draws.data(), &draw, sizeof(TokenDraw));
    ops().sample_tokens({.logits = logits,
                         .vocab = vocab,
                         .excluded_id = {},
                         .best = best,
                         .stats = stats,
                         .draws = draws,
                         .ids = id,
                         .chosen = chosen},
                        {});
    return *id.data_as<int32_t>();
  }

  // Each token that is left, just inside both ends of its share.
  void expect_shares(const Tensor& logits, TokenDraw draw, const std::vector<JsonValue>& left) const {
    double begin = 0;
    for (const JsonValue& token : left) {
      const auto id = static_cast<int32_t>(token.as_array()[0].as_int());
      const double end = begin + token.as_array()[1].as_float();
      for (const double uniform : {begin + 1e-6, end - 1e-6}) {
        draw.uniform = uniform;
        EXPECT_EQ(drawn(logits, draw), id) << "at " << uniform;
      }
      begin = end;
    }
    EXPECT_NEAR(begin, 1, 1e-9);
  }
};

TEST_P(Filters, StandInTheOrderOfTheFamily) {
  const JsonValue file = read_json_file(testing_support::golden_folder("filters.json"));
  for (const JsonValue& entry : file.as_array()) {
    const auto& values = entry.at("logits").as_array();
    const Tensor logits(DType::kF32, {1, static_cast<int64_t>(values.size())});
    for (size_t i = 0; i < values.size(); ++i) logits.data_as<float>()[i] = static_cast<float>(values[i].as_float());
    TokenDraw draw{.temperature = static_cast<float>(entry.at("temperature").as_float()),
                   .top_p = static_cast<float>(entry.at("top_p").as_float()),
                   .top_k = static_cast<int32_t>(entry.at("top_k").as_int())};
    SCOPED_TRACE(str("top_k ", draw.top_k, ", top_p ", draw.top_p));
    expect_shares(logits, draw, entry.at("llada2").as_array());
    draw.top_p_of = TopPOf::kAll;
    expect_shares(logits, draw, entry.at("dream").as_array());
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, Filters, testing::Values("reference", "portable", "cuda"),
                         [](const auto& set) { return set.param; });

}  // namespace
}  // namespace headrace::testing_support
