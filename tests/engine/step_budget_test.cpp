// The rows of a step: a strategy plans at most as many as it is given, whoever else runs.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/toy_diffusion_model.h"
#include "headrace/engine/engine.h"
#include "support/refusal.h"

namespace headrace {
namespace {

using testing_support::ToyDiffusionModel;
using testing_support::ToyScript;

const ToyScript kFull{.attention = DiffusionInfo::Attention::kFull};

struct Toy {
  std::string strategy;
  ToyScript script;
  bool runs_whole_texts = false;
  int32_t num_blocks = 1;
  friend void PrintTo(const Toy& toy, std::ostream* out) { *out << toy.strategy; }
};

EngineConfig budget_config(const Toy& toy, int32_t max_requests, int32_t rows) {
  EngineConfig config{
      .runner = {.num_pages = 12 * max_requests, .page_size = ToyDiffusionModel::kPageSize, .max_tokens = rows},
      .max_requests = max_requests,
      .max_context_len = 128,
      .strategy = toy.strategy};
  config.decoding.num_blocks = toy.num_blocks;
  return config;
}

SamplingParams budget_params(int32_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
}

// Plans each step for every budget, before it plans the one that runs.
class EveryBudget final : public DecodingStrategy {
 public:
  explicit EveryBudget(std::unique_ptr<DecodingStrategy> inner)
      : DecodingStrategy(inner->name(), inner->traits()), inner_(std::move(inner)) {}
  void start(Sequence& s) const override { inner_->start(s); }
  StepPlan plan(const Sequence& s, int32_t budget) const override {
    const int32_t needed = rows_needed(traits(), s);
    for (int32_t rows = 1; rows <= s.num_tokens() + 1; ++rows) {
      const StepPlan plan = inner_->plan(s, rows);
      EXPECT_LE(plan.num_rows(), rows);
      EXPECT_EQ(plan.spans.empty(), plan.num_rows() == 0) << "of " << rows << " rows";
      EXPECT_TRUE(rows < needed || !plan.spans.empty()) << rows << " rows do, " << needed << " are needed";
    }
    return inner_->plan(s, budget);
  }
  void commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const override {
    inner_->commit(s, plan, sampled);
  }

 private:
  std::unique_ptr<DecodingStrategy> inner_;
};

class StepBudget : public testing::TestWithParam<Toy> {};

TEST_P(StepBudget, APlanKeepsToEveryBudget) {
  const ToyDiffusionModel model(GetParam().script);
  const EngineConfig config = budget_config(GetParam(), 1, 256);
  const StrategyConfig decoding{.model = model.info().diffusion, .num_blocks = GetParam().num_blocks};
  for (const int32_t prompt_len : {1, 16, 33, 64}) {
    Engine engine(model, config, std::make_unique<EveryBudget>(make_strategy(GetParam().strategy, decoding)));
    engine.add(testing_support::prompt_of(prompt_len), budget_params(40));
    std::vector<int32_t> ids;
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) ids.push_back(out.token.id);
    }
    EXPECT_EQ(ids, ToyDiffusionModel::tokens(prompt_len, 40));
  }
}

// The rows of a step do for a few of them only.
TEST_P(StepBudget, ManyRequestsShareTheRowsOfAStep) {
  constexpr int32_t kRequests = 24;
  for (const int32_t rows : GetParam().runs_whole_texts ? std::vector{100, 130} : std::vector{33, 41, 100}) {
    SCOPED_TRACE(str(rows, " rows a step"));
    const ToyDiffusionModel model(GetParam().script);
    Engine engine(model, budget_config(GetParam(), kRequests, rows));
    std::map<int64_t, std::pair<int32_t, std::vector<int32_t>>> answers;
    for (int32_t i = 0; i < kRequests; ++i) {
      const int32_t prompt_len = 8 + i % 30;
      answers[engine.add(testing_support::prompt_of(prompt_len), budget_params(48))].first = prompt_len;
    }
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) answers.at(out.sequence_id).second.push_back(out.token.id);
    }
    for (const auto& [id, answer] : answers) {
      EXPECT_EQ(answer.second, ToyDiffusionModel::tokens(answer.first, 48)) << "request " << id;
    }
    for (const int64_t ran : model.rows) EXPECT_LE(ran, rows);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, StepBudget,
    testing::Values(
        Toy{"multi_bd", {}}, Toy{"multi_bd", {.logits_of = DiffusionInfo::LogitsOf::kBefore}, false, 3},
        Toy{"d2f", {.logits_of = DiffusionInfo::LogitsOf::kBefore}, true, 2}, Toy{"multi_bd_edit", {}, false, 2},
        Toy{"dmax", {}, false, 2}, Toy{"full_attention", kFull, true}, Toy{"dual_cache", kFull, true},
        Toy{"fast_dllm_v2",
            {.block_size = 32, .sub_block_size = 8, .sure_masks = 1, .logits_of = DiffusionInfo::LogitsOf::kBefore}}),
    [](const auto& toy) { return toy.param.strategy + (toy.param.num_blocks > 1 ? "_blocks" : ""); });

// Plans more rows than it is given, or none.
class Greedy final : public DecodingStrategy {
 public:
  explicit Greedy(int32_t rows) : DecodingStrategy("greedy", {.text_block = 1, .step = StepShape{}}), rows_(rows) {}
  void start(Sequence&) const override {}
  StepPlan plan(const Sequence&, int32_t) const override { return causal_step({0, rows_}, {}); }
  void commit(Sequence&, const StepPlan&, std::span<const SampledToken>) const override {}

 private:
  int32_t rows_;
};

TEST(Scheduler, ALimitOfRowsNeverGrows) {
  const Greedy greedy(9);
  Scheduler scheduler({.num_pages = 4, .max_context_len = 64, .max_tokens_per_step = 8}, greedy);
  scheduler.limit_rows(4);
  scheduler.limit_rows(6);
  Sequence sequence{.id = 3, .tokens = testing_support::prompt_of(10), .prompt_len = 10, .limit = 20};
  scheduler.add(sequence);
  const auto refusal = testing_support::refusal_of([&] { scheduler.next(); });
  EXPECT_EQ(refusal.sentence, "request 3: strategy 'greedy' planned 9 rows, expected 1 to 4");
  scheduler.release(sequence);
}

TEST(Scheduler, APlanThatDoesNotFitTheStepIsAnError) {
  for (const int32_t rows : {0, 9}) {
    const Greedy greedy(rows);
    Scheduler scheduler({.num_pages = 4, .max_context_len = 64, .max_tokens_per_step = 8}, greedy);
    Sequence sequence{.id = 3, .tokens = testing_support::prompt_of(10), .prompt_len = 10, .limit = 20};
    scheduler.add(sequence);
    const auto refusal = testing_support::refusal_of([&] { scheduler.next(); });
    EXPECT_EQ(refusal.code, ErrorCode::kInternal);
    EXPECT_EQ(refusal.sentence, str("request 3: strategy 'greedy' planned ", rows, " rows, expected 1 to 8"));
    EXPECT_EQ(scheduler.in_plan(), std::vector<int64_t>{3});
    scheduler.release(sequence);
    EXPECT_EQ(scheduler.free_pages(), 4);
  }
}

}  // namespace
}  // namespace headrace
