// The engine over a fake model whose next token is the sum of the two before, so that every step can be checked.
#include "headrace/engine/engine.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/refusal.h"

namespace headrace {
namespace {

constexpr int32_t kVocab = 97;

// Stateless: the answer depends on the batch's own ids, so a chunk that starts elsewhere would show.
class FakeModel final : public Model {
 public:
  FakeModel() {
    info_ = {.architecture = "fake",
             .vocab_size = kVocab,
             .context_length = 64,
             .num_layers = 1,
             .eos_ids = {96},
             .kv_groups = {{{1, 4, 4}, {0}}},
             .full_attn_layer_ids = {0},
             .dtype = DType::kF32};
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    batch.attn.validate(16);
    Tensor logits = Tensor::zeros(DType::kF32, {static_cast<int64_t>(batch.logits_rows.size()), kVocab});
    const auto ids = batch.input_ids.as<const int32_t, 1>("ids");
    const auto positions = batch.positions.as<const int32_t, 1>("positions");
    for (size_t r = 0; r < batch.logits_rows.size(); ++r) {
      const int32_t row = batch.logits_rows[r];
      set_element(logits, static_cast<int64_t>(r) * kVocab + (ids(row) + positions(row)) % kVocab, 5);
    }
    modes.push_back(batch.mode);
    for (int64_t i = 0; i < batch.num_tokens(); ++i) {
      stored_rows += batch.attn.write_slots.as<const int64_t, 1>("slots")(i) == kDoNotStore ? 0 : 1;
    }
    return logits;
  }
  mutable std::vector<ForwardMode> modes;
  mutable int64_t stored_rows = 0;

 private:
  ModelInfo info_;
};

EngineConfig config_of(int32_t pages, int32_t requests, int64_t budget) {
  return {.runner = {.num_pages = pages, .page_size = 16, .max_tokens = budget},
          .max_requests = requests,
          .max_context_len = 64};
}

std::vector<int32_t> expected_output(int32_t last, int32_t position, int32_t count) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < count; ++i) {
    last = (last + position + i) % kVocab;
    out.push_back(last);
    if (last == 96) break;
  }
  return out;
}

std::map<int64_t, std::vector<int32_t>> drain(Engine& engine) {
  std::map<int64_t, std::vector<int32_t>> outputs;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) outputs[out.sequence_id].push_back(out.token.id);
  }
  return outputs;
}

TEST(Engine, ChunkedPromptsAndDecodesShareSteps) {
  const FakeModel model;
  Engine engine(model, config_of(16, 2, 8));
  const int64_t a = engine.add({1, 2, 3}, {.max_tokens = 6, .temperature = 0});
  const int64_t b = engine.add(std::vector<int32_t>(20, 7), {.max_tokens = 4, .temperature = 0});
  const auto outputs = drain(engine);
  EXPECT_EQ(outputs.at(a), expected_output(3, 2, 6));
  EXPECT_EQ(outputs.at(b), expected_output(7, 19, 4));
  EXPECT_NE(std::ranges::find(model.modes, ForwardMode::kMixed), model.modes.end());
}

TEST(Engine, AFullPoolQueuesAndEverythingIsFreedAtTheEnd) {
  const FakeModel model;
  Engine engine(model, config_of(2, 8, 32));  // two pages: one request of 20 tokens at a time
  for (int i = 0; i < 3; ++i) engine.add(std::vector<int32_t>(10, 5), {.max_tokens = 10, .temperature = 0});
  const auto outputs = drain(engine);
  EXPECT_EQ(outputs.size(), 3u);
  EXPECT_EQ(engine.scheduler().free_pages(), 2);
  EXPECT_EQ(engine.scheduler().table().available_size(), 8);
}

TEST(Engine, ARequestThatCanNeverRunFailsAloneWithASentence) {
  const FakeModel model;
  Engine engine(model, config_of(2, 2, 32));
  const auto refusal = [&engine](std::vector<int32_t> prompt, int32_t tokens) {
    return testing_support::refusal_of([&] { engine.add(std::move(prompt), {.max_tokens = tokens}); }).sentence;
  };
  EXPECT_EQ(refusal({}, 1), "request 1: the prompt is empty");
  EXPECT_EQ(refusal(std::vector<int32_t>(64, 1), 1),
            "request 1: the prompt has 64 tokens, the context (max_model_len) holds 64 with at least one new token");
  EXPECT_EQ(refusal({1}, 40), "request 1: it needs 3 pages of 16 tokens, the pool has 2");
  EXPECT_EQ(refusal({97}, 1), "prompt: token id 97 is outside the vocabulary of 97");
  engine.add({1}, {.max_tokens = 1});
  EXPECT_EQ(drain(engine).size(), 1u);
}

TEST(Engine, TheContextLimitAndTheEndTokenFinish) {
  const FakeModel model;
  Engine engine(model, config_of(4, 1, 64));
  engine.add(std::vector<int32_t>(60, 1), {.max_tokens = 50, .temperature = 0});
  EXPECT_EQ(drain(engine).begin()->second.size(), 4u);
  engine.add({95, 95}, {.max_tokens = 50, .temperature = 0});  // 95 + 1 = the end token
  EXPECT_EQ(drain(engine).begin()->second, (std::vector<int32_t>{96}));
}

TEST(Engine, AFullContextIsToldFromAllTokensThatWereAskedFor) {
  const FakeModel model;
  Engine engine(model, config_of(4, 1, 64));
  const auto reason = [&engine](int32_t max_tokens) {
    engine.add(std::vector<int32_t>(60, 1), {.max_tokens = max_tokens, .temperature = 0});
    std::optional<FinishReason> last;
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) last = out.finish_reason;
    }
    return last;
  };
  EXPECT_EQ(reason(5), FinishReason::kContext);
  EXPECT_EQ(reason(4), FinishReason::kLength) << "the context is full too, but nothing is missing";
  EXPECT_EQ(name_of(FinishReason::kContext), "length");
}

TEST(Engine, CountsWhatItDid) {
  const FakeModel model;
  Engine engine(model, config_of(16, 2, 8));
  engine.add(std::vector<int32_t>(20, 7), {.max_tokens = 4, .temperature = 0});
  drain(engine);
  EXPECT_EQ(engine.counters().steps, 6);      // 8 + 8 + 4 rows of prompt, then one row each
  EXPECT_EQ(engine.counters().rows, 20 + 3);  // the last token never runs
  EXPECT_EQ(engine.counters().tokens, 4);
}

// A warm-up of a prompt three times as long as the context, and of a short one.
class WarmUp : public testing::Test {
 protected:
  WarmUp() {
    const WarmupScope scope(engine_.runner().metadata_source());
    engine_.add(std::vector<int32_t>(200, 7), {.max_tokens = 3, .temperature = 0});
    engine_.add({1, 2, 3}, {.max_tokens = 1});
    while (!engine_.idle()) {
      for (const StepOutput& out : engine_.step()) published_.push_back(out);
      EXPECT_EQ(engine_.scheduler().free_pages(), 4);
      EXPECT_EQ(engine_.scheduler().table().available_size(), 2);
    }
  }

  const FakeModel model_;
  Engine engine_{model_, config_of(4, 2, 32)};
  std::vector<StepOutput> published_;
};

TEST_F(WarmUp, AcceptsOverLongPromptsAndRunsThemInFull) {
  EXPECT_EQ(model_.modes.size(), 7u + 2u + 1u);  // 200 rows in chunks of 32, two single rows, the short prompt
  EXPECT_EQ(model_.modes[7], ForwardMode::kDecode);
  EXPECT_THROW(engine_.add(std::vector<int32_t>(200, 7), {}), Error) << "the warm-up is over";
}

TEST_F(WarmUp, StoresNothing) {
  EXPECT_EQ(model_.stored_rows, 0);
  engine_.add({1, 2, 3}, {.max_tokens = 1});
  drain(engine_);
  EXPECT_EQ(model_.stored_rows, 3) << "rows of a request are stored";
}

TEST_F(WarmUp, PublishesNothing) { EXPECT_TRUE(published_.empty()); }

TEST_F(WarmUp, CountsNothing) {
  EXPECT_EQ(engine_.counters().steps, 0);
  EXPECT_EQ(engine_.counters().rows, 0);
  EXPECT_EQ(engine_.counters().tokens, 0);
}

TEST_F(WarmUp, DoesNotMixWithRequests) {
  AttnMetadataSource& source = engine_.runner().metadata_source();
  const int64_t real = engine_.add({1}, {.max_tokens = 1});
  source.set_warming_up();
  EXPECT_THROW(engine_.add({1}, {}), Error);
  engine_.abort(real);
  const int64_t warm = engine_.add({1}, {});
  source.reset_warming_up();
  EXPECT_THROW(engine_.add({1}, {}), Error);
  engine_.abort(warm);
  EXPECT_TRUE(engine_.idle());
  engine_.add({1}, {.max_tokens = 1});
}

TEST(Engine, ScoreRunsTheSequenceOnceAndForgetsIt) {
  const FakeModel model;
  Engine engine(model, config_of(4, 1, 64));
  const std::vector<float> scores = engine.score({3, 3, 4});  // 3 + 0 = 3, 3 + 1 = 4: both as the model says
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_NEAR(scores[0], 5 - std::log(std::exp(5.0) + 96), 1e-5);
  EXPECT_EQ(scores[0], scores[1]);
  EXPECT_EQ(engine.scheduler().free_pages(), 4);
}

RC_GTEST_PROP(Engine, OutputsDoNotDependOnWhatElseRunsAndNothingLeaks, ()) {
  const FakeModel model;
  const auto budget = *rc::gen::inRange<int64_t>(1, 40);
  Engine engine(model, config_of(*rc::gen::inRange(4, 20), *rc::gen::inRange(1, 5), budget));
  const int32_t pages = engine.scheduler().free_pages(), rows = engine.scheduler().table().available_size();
  std::map<int64_t, std::vector<int32_t>> want, got;
  std::vector<int64_t> aborted;
  for (const int32_t length : *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(1, 30))) {
    const int64_t id =
        engine.add(std::vector<int32_t>(static_cast<size_t>(length), length), {.max_tokens = 5, .temperature = 0});
    want[id] = expected_output(length, length - 1, 5);
    if (length % 7 == 0) aborted.push_back(id);
    for (const StepOutput& out : engine.step()) got[out.sequence_id].push_back(out.token.id);
    if (length % 7 == 0) engine.abort(id);
  }
  for (const auto& [id, tokens] : drain(engine)) got[id].insert(got[id].end(), tokens.begin(), tokens.end());
  for (const int64_t id : aborted) want.erase(id), got.erase(id);
  RC_ASSERT(got == want);
  RC_ASSERT(engine.scheduler().free_pages() == pages);
  RC_ASSERT(engine.scheduler().table().available_size() == rows);
}

// A device's statistics are of the model's distribution.
TEST(ScheduledStep, IsReadOnTheHostForGuidanceCandidatesAndScoresOfWhatFiltersLeave) {
  Sequence s{.params = {.temperature = 0.7f}, .scores_of = ScoresOf::kFiltered};
  EXPECT_FALSE((ScheduledStep{.sequence = &s, .plan = {}}.device_reads()));
  s.scores_of = ScoresOf::kModel;
  s.params.end_of_text = SamplingParams::EndOfText::kBanned, s.params.decoding.copy_penalty = 1;
  EXPECT_TRUE((ScheduledStep{.sequence = &s, .plan = {}}.device_reads()));
  EXPECT_FALSE((ScheduledStep{.sequence = &s, .plan = {.num_candidates = 1}}.device_reads()));
  s.params.decoding.cfg_scale = 1;
  EXPECT_FALSE((ScheduledStep{.sequence = &s, .plan = {}}.device_reads()));
}

}  // namespace
}  // namespace headrace
