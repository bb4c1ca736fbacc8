// What a step brings of the texts of requests with a penalty, against all of them.
#include "headrace/engine/token_occurrence.h"
#include "headrace/core/device_runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "headrace/ops/reference/reference_ops.h"
#include "support/all_close.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr int32_t kVocab = 90, kMask = 89;

struct Text {
  std::vector<int32_t> tokens;
  int32_t num_final = 0;
};

void expect_penalised(const TensorView& logits, int64_t row, const std::vector<int32_t>& tokens, float penalty) {
  const std::set<int32_t> occurred(tokens.begin(), tokens.end());
  for (int32_t id = 0; id < kVocab; ++id) {
    if (id == kMask) continue;  // never chosen
    const float logit = static_cast<const float*>(logits.select(row).data())[id];
    EXPECT_EQ(logit, occurred.contains(id) ? 1 / penalty : 1) << "token " << id << ", row " << row;
  }
}

Tensor ones(int64_t rows) {
  Tensor logits(DType::kF32, {rows, kVocab});
  std::fill_n(logits.data_as<float>(), rows * kVocab, 1.0f);
  return logits;
}

// Texts come and go, grow by tokens or blocks, are decided in any order, and take tokens back.
TEST(TokenOccurrence, AreThoseOfEachTextAsItIsNow) {
  Random random(3);
  TokenOccurrence seen(reference::ops(), {}, cpu_runtime(), kVocab);
  std::map<int64_t, Text> texts;
  const auto below = [&random](int64_t n) { return static_cast<int32_t>(random.below(n)); };
  int64_t next_name = 1;
  for (int step = 0; step < 300; ++step) {
    if (texts.size() < 5 && below(3) == 0) texts[next_name++].tokens = {below(kMask), below(kMask)};
    if (!texts.empty() && below(6) == 0) texts.erase(texts.begin());
    for (auto& [name, text] : texts) {
      std::vector<int32_t>& tokens = text.tokens;
      for (int i = below(4); i > 0; --i) tokens.push_back(below(2) == 0 ? kMask : below(kMask));
      for (size_t at = static_cast<size_t>(text.num_final); at < tokens.size(); ++at) {
        if (tokens[at] == kMask && below(3) == 0) tokens[at] = below(kMask);
        if (tokens[at] != kMask && below(20) == 0) tokens[at] = below(kMask);  // replaced
        if (tokens[at] != kMask && below(30) == 0) tokens[at] = kMask;         // taken back
      }
      if (below(25) == 0 && std::ssize(tokens) > text.num_final) tokens.pop_back();
      while (text.num_final < std::ssize(tokens) && tokens[static_cast<size_t>(text.num_final)] != kMask &&
             below(3) > 0) {
        ++text.num_final;
      }
    }
    std::vector<PenalizedRows> rows;
    int64_t count = 0;
    for (const auto& [name, text] : texts) {
      if (below(4) == 0) continue;  // not in this step
      const int64_t many = 1 + below(3);
      rows.push_back({name, text.tokens, text.num_final, 2 + static_cast<float>(name), count, many});
      count += many + below(2);  // a row of nobody between them
    }
    if (rows.empty()) continue;
    const Tensor logits = ones(count + 1);
    seen.penalize(logits, rows, kMask);
    for (const PenalizedRows& one : rows) {
      for (int64_t r = one.first; r < one.first + one.count; ++r) {
        expect_penalised(logits, r, texts.at(one.text).tokens, one.penalty);
      }
    }
    expect_penalised(logits, count, {}, 1);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace headrace::testing_support
