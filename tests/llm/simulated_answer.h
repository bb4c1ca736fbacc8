// What a simulated request must be told.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "headrace/request/sampled_token.h"
#include "headrace/request/sequence.h"
#include "headrace/request/token_constraint.h"
#include "llm/simulated_case.h"
#include "support/random.h"

namespace headrace::testing_support {

inline constexpr const char* kOfRequest = "injected into a request";  // what errors of its strategy and constraint say

// Allows about half of the tokens, by a salt and the tokens so far.
class HashConstraint final : public TokenConstraint {
 public:
  // Throws when so many tokens have come.
  HashConstraint(uint64_t salt, std::optional<int32_t> throws_at) : salt_(salt), throws_at_(throws_at) {}

  static bool allows(uint64_t salt, std::span<const int32_t> tokens, int32_t id) {
    for (const int32_t token : tokens) salt = salt * 31 + static_cast<uint64_t>(token);
    return Random(salt * 1009 + static_cast<uint64_t>(id)).next() % 2 == 0;
  }
  void fill(std::span<uint32_t> bits) override {
    if (throws_at_ && std::ssize(tokens_) >= *throws_at_) {
      has_thrown_ = true;
      throw std::runtime_error(kOfRequest);
    }
    std::ranges::fill(bits, 0);
    for (int32_t id = 0; id < std::min<int64_t>(FakeText::kVocab, 32 * std::ssize(bits)); ++id) {
      if (allows(salt_, tokens_, id)) bits[static_cast<size_t>(id / 32)] |= 1u << id % 32;
    }
  }
  void accept(int32_t id) override {
    HR_REQUIRE(allows(salt_, tokens_, id), ErrorCode::kInternal, "token ", id, " came, which is not allowed");
    tokens_.push_back(id);
  }
  bool has_thrown() const { return has_thrown_; }

 private:
  uint64_t salt_;
  std::optional<int32_t> throws_at_;
  std::vector<int32_t> tokens_;
  bool has_thrown_ = false;
};

struct Answer {
  struct Token {
    TokenLogprob token;
    std::vector<TokenLogprob> top;
  };
  std::vector<Token> tokens;
  std::vector<PromptToken> prompt;
  FinishReason reason = FinishReason::kError;
};

// The answer by the model's definition alone, where the model is causal; else that of an engine that runs the request
// alone, with room for all of it. `params` may have another seed than the arrival's.
Answer answer_of(const Case& c, const Arrival& a, const std::vector<int32_t>& prompt, const SamplingParams& params);

}  // namespace headrace::testing_support
