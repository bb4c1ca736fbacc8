// A request that fails alone: rows of logits that are no numbers, or a strategy that throws. It ends with its reason
// and its text is not cached. The others of the step get the tokens of a run alone, to the bit.
#include <gtest/gtest.h>

#include <map>
#include <new>
#include <ostream>
#include <stdexcept>
#include <utility>

#include "engine/poisoned_model.h"
#include "engine/toy_diffusion_model.h"
#include "headrace/engine/engine.h"
#include "support/hash_model.h"

namespace headrace {
namespace {

using StepsAhead = EngineConfig::StepsAhead;
using testing_support::HashModel;
using testing_support::PoisonedModel;
using testing_support::PoisonedRow;
using testing_support::ToyDiffusionModel;
using Ids = std::vector<int32_t>;

constexpr int64_t kVictim = 17;

struct FailureCase {
  std::string name, strategy;
  StepsAhead ahead = StepsAhead::kNever;
  friend std::ostream& operator<<(std::ostream& out, const FailureCase& way) { return out << way.name; }
};

struct Answer {
  std::vector<SampledToken> tokens;
  std::optional<FinishReason> reason;
  std::optional<Error> error;
};
using Answers = std::map<int64_t, Answer>;

Ids prompt_of_request(int64_t id) {
  Ids prompt = testing_support::prompt_of(static_cast<int32_t>(3 + id));
  prompt.front() = static_cast<int32_t>(1 + id);
  return prompt;
}

// Every other request draws, some of these with a penalty.
SamplingParams params_of_request(int64_t id) {
  return {.max_tokens = 12,
          .temperature = id % 2 == 0 ? 0.8f : 0,
          .repetition_penalty = id % 4 == 0 ? 1.2f : 1,
          .seed = static_cast<uint64_t>(id),
          .end_of_text = SamplingParams::EndOfText::kIgnored};
}

Answers answers_of(Engine& engine) {
  Answers answers;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) {
      Answer& answer = answers[out.sequence_id];
      EXPECT_FALSE(answer.reason) << "request " << out.sequence_id << " has ended";
      answer.reason = out.finish_reason, answer.error = out.error;
      if (!out.error) answer.tokens.push_back(out.token);
    }
  }
  return answers;
}

void expect_same_tokens(const std::vector<SampledToken>& got, std::span<const SampledToken> want, int64_t id) {
  ASSERT_EQ(got.size(), want.size()) << "request " << id;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].id, want[i].id) << "request " << id << ", token " << i;
    EXPECT_EQ(got[i].logprob, want[i].logprob) << "request " << id << ", token " << i;
  }
}

class RequestFailure : public testing::TestWithParam<FailureCase> {
 protected:
  static constexpr int32_t kRequests = 32, kPages = 128;

  const Model& network() const {
    return GetParam().strategy == "autoregressive" ? static_cast<const Model&>(causal_) : diffusion_;
  }
  static EngineConfig config() {
    return {.runner = {.num_pages = kPages, .page_size = 16, .max_tokens = 256},
            .max_requests = kRequests,
            .max_context_len = 128,
            .strategy = GetParam().strategy,
            .keep_text = SchedulerConfig::KeepText::kYes,
            .steps_ahead = GetParam().ahead};
  }
  // Passes of the victim after which it fails. Steps run ahead after the third, when every prompt is cached.
  static std::vector<int32_t> failing_forwards() {
    return GetParam().strategy == "autoregressive" ? Ids{0, 1, 3, 8} : Ids{0, 1, 3};
  }
  std::unique_ptr<DecodingStrategy> strategy() const {
    return make_strategy(GetParam().strategy, {.model = network().info().diffusion});
  }
  static void add_all(Engine& engine) {
    for (int64_t id = 1; id <= kRequests; ++id) engine.add(prompt_of_request(id), params_of_request(id));
  }
  Answers alone() const {
    Answers answers;
    for (int64_t id = 1; id <= kRequests; ++id) {
      Engine engine(network(), config(), strategy());
      engine.add(prompt_of_request(id), params_of_request(id));
      answers[id] = answers_of(engine).at(1);
    }
    return answers;
  }
  // `got` is of all requests, of which the victim has failed.
  static void expect_one_failed(const Engine& engine, const Answers& got, const Answers& want) {
    for (const auto& [id, answer] : want) {
      SCOPED_TRACE(str("request ", id));
      if (id == kVictim) continue;
      EXPECT_FALSE(got.at(id).error) << got.at(id).error->what();
      EXPECT_EQ(got.at(id).reason, FinishReason::kLength);
      expect_same_tokens(got.at(id).tokens, answer.tokens, id);
    }
    const Answer& victim = got.at(kVictim);
    EXPECT_EQ(victim.reason, FinishReason::kError);
    ASSERT_TRUE(victim.error);
    ASSERT_LT(victim.tokens.size(), want.at(kVictim).tokens.size());
    expect_same_tokens(victim.tokens, std::span(want.at(kVictim).tokens).first(victim.tokens.size()), kVictim);
    EXPECT_EQ(engine.scheduler().free_pages(), kPages);
    EXPECT_EQ(engine.scheduler().table().available_size(), kRequests);
  }
  // Returns the prompt tokens that a request with the victim's prompt and more reuses.
  static int32_t reused_of_victims_text(Engine& engine) {
    Ids prompt = prompt_of_request(kVictim);
    prompt.resize(60, 7);
    engine.observe({});
    engine.add(prompt, {.max_tokens = 1, .temperature = 0});
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) return out.num_reused;
    }
    return -1;
  }

  HashModel causal_;
  ToyDiffusionModel diffusion_{{}};
};

TEST_P(RequestFailure, ARowThatIsNoNumberEndsItsRequestAlone) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Answers want = alone();
  for (const int32_t forwards : failing_forwards()) {
    for (const PoisonedRow& row : {PoisonedRow{}, PoisonedRow{.index = 100}, PoisonedRow{.logit = kInfinity}}) {
      SCOPED_TRACE(str("after ", forwards, " passes, row ", row.index, " is ", static_cast<double>(row.logit)));
      PoisonedModel model(network());
      Engine engine(model, config(), strategy());
      bool poisoned = false;
      engine.observe([&](StepMoment, const Sequence& s, const StepPlan&) {
        if (s.id != kVictim || s.num_forwards < forwards || std::exchange(poisoned, true)) return;
        model.poison({s.table_row, row.index, row.logit});
      });
      add_all(engine);
      const Answers got = answers_of(engine);
      EXPECT_TRUE(poisoned && model.done());
      expect_one_failed(engine, got, want);
      ASSERT_TRUE(got.at(kVictim).error);
      const Error& error = *got.at(kVictim).error;
      EXPECT_EQ(error.code(), ErrorCode::kModelFile);
      EXPECT_TRUE(std::string_view(error.what()).starts_with(str("request ", kVictim, ": the logits of position ")));
      EXPECT_TRUE(std::string_view(error.what()).ends_with(str(" are NaN or infinite", kNotNumbers))) << error.what();
      EXPECT_EQ(reused_of_victims_text(engine), 0);
    }
  }
}

TEST_P(RequestFailure, TextOfOneThatEndedWellIsReused) {
  Engine engine(network(), config(), strategy());
  add_all(engine);
  answers_of(engine);
  EXPECT_EQ(reused_of_victims_text(engine), 16) << "or the tests above say nothing";
}

// Fails for the victim alone, once it has run so many passes.
class ThrowingStrategy final : public DecodingStrategy {
 public:
  enum class In : uint8_t { kPlan, kCommit };
  struct Throws {
    In in = In::kCommit;
    int32_t forwards = 0;
    std::function<void()> what;
  };

  ThrowingStrategy(std::unique_ptr<DecodingStrategy> inner, Throws throws)
      : DecodingStrategy(inner->name(), inner->traits()), inner_(std::move(inner)), throws_(std::move(throws)) {}
  void start(Sequence& s) const override { inner_->start(s); }
  StepPlan plan(const Sequence& s, int32_t budget) const override {
    throw_in(In::kPlan, s);
    return inner_->plan(s, budget);
  }
  void commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const override {
    inner_->commit(s, plan, sampled);
    throw_in(In::kCommit, s);
  }

 private:
  void throw_in(In where, const Sequence& s) const {
    if (where == throws_.in && s.id == kVictim && s.num_forwards >= throws_.forwards) throws_.what();
  }

  std::unique_ptr<DecodingStrategy> inner_;
  Throws throws_;
};

// What a strategy throws, and the error that the request ends with.
struct Thrown {
  std::function<void()> what;
  ErrorCode code = ErrorCode::kInternal;
  std::string sentence;
};

std::vector<Thrown> thrown_by_strategies() {
  return {{[] { throw Error(ErrorCode::kOutOfMemory, "no memory for 7 bytes"); }, ErrorCode::kOutOfMemory,
           "no memory for 7 bytes"},
          {[] { throw std::bad_alloc(); }, ErrorCode::kOutOfMemory, "out of memory"},
          {[] { throw std::runtime_error("enough"); }, ErrorCode::kInternal, "enough"},
          {[] { throw 7; }, ErrorCode::kInternal, "an unknown exception"}};
}

TEST_P(RequestFailure, AStrategyThatThrowsEndsItsRequestAlone) {
  using In = ThrowingStrategy::In;
  const Answers want = alone();
  for (const In in : {In::kPlan, In::kCommit}) {
    for (const int32_t forwards : failing_forwards()) {
      for (const Thrown& thrown : thrown_by_strategies()) {
        SCOPED_TRACE(str(in == In::kPlan ? "plan" : "commit", " after ", forwards, " passes: ", thrown.sentence));
        Engine engine(
            network(), config(),
            std::make_unique<ThrowingStrategy>(strategy(), ThrowingStrategy::Throws{in, forwards, thrown.what}));
        add_all(engine);
        const Answers got = answers_of(engine);
        expect_one_failed(engine, got, want);
        ASSERT_TRUE(got.at(kVictim).error);
        EXPECT_EQ(got.at(kVictim).error->code(), thrown.code);
        EXPECT_EQ(got.at(kVictim).error->what(), thrown.sentence);
        EXPECT_EQ(reused_of_victims_text(engine), 0);
      }
    }
  }
}

TEST_P(RequestFailure, ADeviceThatFailsInAStrategyFailsTheEngine) {
  for (const auto in : {ThrowingStrategy::In::kPlan, ThrowingStrategy::In::kCommit}) {
    const auto fails = [] { throw Error(ErrorCode::kCuda, "cuda: an illegal memory access"); };
    Engine engine(network(), config(),
                  std::make_unique<ThrowingStrategy>(strategy(), ThrowingStrategy::Throws{in, 1, fails}));
    add_all(engine);
    EXPECT_THROW(answers_of(engine), Error);
    EXPECT_EQ(engine.fault(), "cuda: an illegal memory access");
    EXPECT_TRUE(engine.idle());
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, RequestFailure,
                         testing::Values(FailureCase{"one_by_one", "autoregressive"},
                                         FailureCase{"ahead", "autoregressive", StepsAhead::kAlways},
                                         FailureCase{"blocks", "multi_bd"}),
                         [](const auto& way) { return way.param.name; });

TEST(ThrowIfFailed, ThrowsTheErrorOfTheFirstRequestThatFailed) {
  const std::vector<StepOutput> outputs = {
      {.sequence_id = 1},
      {.sequence_id = 2, .finish_reason = FinishReason::kError, .error = Error(ErrorCode::kOutOfMemory, "first")},
      {.sequence_id = 3, .finish_reason = FinishReason::kError, .error = Error(ErrorCode::kInternal, "second")}};
  EXPECT_EQ(throw_if_failed({outputs.front()}).size(), 1u);
  try {
    throw_if_failed(outputs);
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
    EXPECT_STREQ(e.what(), "first");
  }
  EXPECT_EQ(name_of(FinishReason::kError), "error");
}

}  // namespace
}  // namespace headrace
