// A step that fails ends the requests that were in it, since nobody knows how far it came: a recurrent state is updated
// in place. All others go on, in states that are theirs, and nothing is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "headrace/engine/engine.h"
#include "support/host_memory.h"

namespace headrace {
namespace {

using StepsAhead = EngineConfig::StepsAhead;
using Ids = std::vector<int32_t>;

const std::string kReason = "could not allocate 7 bytes";

constexpr int32_t kStates = 7, kKeyDim = 8, kValueDim = 7, kStateFloats = kKeyDim * kValueDim;

// Finds the recurrent states by the size of the memory that is asked for.
class StateMemory final : public testing_support::HostMemory {
 public:
  void* allocate(size_t bytes) override {
    void* memory = HostMemory::allocate(bytes);
    if (bytes == sizeof(float) * kStateFloats * (kStates + 1)) states_ = static_cast<float*>(memory);
    return memory;
  }
  // The state's first number, which stands for how many tokens it is.
  float& num_tokens(int32_t state) const { return states_[state * kStateFloats]; }

 private:
  float* states_ = nullptr;
};

// The first layer has attention; the second one is a Gated DeltaNet if the caller adds it.
ModelInfo two_layers(const char* architecture) {
  return {.architecture = architecture,
          .vocab_size = 8,
          .context_length = 128,
          .num_layers = 2,
          .kv_groups = {{{1, 4, 4}, {0}}},
          .full_attn_layer_ids = {0},
          .dtype = DType::kF32};
}

// A hybrid whose states say of how many tokens they are. One of its passes fails when its states are updated already.
class StateModel final : public Model {
 public:
  explicit StateModel(int failing_pass) : failing_pass_(failing_pass) {
    info_ = two_layers("state");
    info_.num_gdn_layers = 1;
    info_.gdn = {.num_layers = 1, .num_k_heads = 1, .num_v_heads = 1, .head_k_dim = kKeyDim, .head_v_dim = kValueDim};
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    const AttnMetadata& attn = batch.attn;
    for (size_t r = 0; r < attn.spans.size(); ++r) {
      const KeySpan& span = attn.spans[r];
      const StateSlots slots = attn.state_slots[r];
      if (slots.read != kNoState) {
        EXPECT_EQ(memory.num_tokens(slots.read), static_cast<float>(span.phys0))
            << "pass " << passes_ + 1 << ", request " << r << " of it, state " << slots.read;
      }
      if (slots.write != kNoState) memory.num_tokens(slots.write) = static_cast<float>(span.phys0 + span.q_len);
    }
    for (const StateSnapshot& left : attn.snapshots) {
      const int32_t begin = attn.spans[static_cast<size_t>(left.request)].phys0;
      memory.num_tokens(left.slot) = static_cast<float>(begin + left.num_tokens);
    }
    if (++passes_ == failing_pass_) throw Error(ErrorCode::kInternal, kReason);
    return Tensor::zeros(DType::kF32, {static_cast<int64_t>(batch.logits_rows.size()), 8});
  }
  int passes() const { return passes_; }
  mutable StateMemory memory;

 private:
  ModelInfo info_;
  int failing_pass_;
  mutable int passes_ = 0;
};

EngineConfig config_for(const StateModel& model, StepsAhead ahead) {
  EngineConfig config{.runner = {.runtime = &model.memory, .num_pages = 32, .page_size = 16, .max_tokens = 16},
                      .max_requests = 3,
                      .max_context_len = 96};
  config.runner.num_states = kStates;
  config.keep_text = SchedulerConfig::KeepText::kYes;
  config.steps_ahead = ahead;
  return config;
}

SamplingParams likely(int32_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
}

// An engine whose requests are followed to their end.
struct Traffic {
  explicit Traffic(Engine& of) : engine(of) {
    engine.observe([this](StepMoment moment, const Sequence& s, const StepPlan&) {
      if (moment == StepMoment::kPlanned) in_step.insert(s.id);
    });
  }
  void add(const Ids& prompt, int32_t max_tokens) { left[engine.add(prompt, likely(max_tokens))] = max_tokens; }
  // A step that fails ends who was in it, and nobody else. A request whose plan or commit fails ends alone.
  void step() {
    in_step.clear();
    try {
      for (const StepOutput& out : engine.step()) {
        if (!left.contains(out.sequence_id)) continue;  // the engine has it still, which is said below
        if (out.error) {
          EXPECT_EQ(out.error->what(), kReason);
          failed_alone.insert(out.sequence_id);
          left.erase(out.sequence_id);
          continue;
        }
        EXPECT_EQ(out.finish_reason.has_value(), --left.at(out.sequence_id) == 0);
        if (out.finish_reason) left.erase(out.sequence_id);
      }
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInternal);
      EXPECT_NE(std::string(e.what()).find(kReason), std::string::npos) << e.what();
      ++failures;
      EXPECT_FALSE(in_step.empty());
      for (const int64_t id : in_step) left.erase(id);
    }
    for (int64_t id = 1; id <= 9; ++id) EXPECT_EQ(engine.has(id), left.contains(id)) << "request " << id;
  }
  void run_to_end() {
    for (int steps = 0; !engine.idle() && steps < 500; ++steps) step();
    EXPECT_TRUE(engine.idle() && left.empty());
  }
  void expect_nothing_held() const {
    const Scheduler& scheduler = engine.scheduler();
    EXPECT_EQ(scheduler.free_pages(), 32);
    EXPECT_EQ(scheduler.free_states(), kStates);
    EXPECT_EQ(scheduler.table().available_size(), 3);
    EXPECT_EQ(engine.runner().num_in_flight(), 0u);
  }

  Engine& engine;
  std::set<int64_t> in_step, failed_alone;
  std::map<int64_t, int32_t> left;  // tokens of those that run or wait
  int failures = 0;
};

class FailedStep : public testing::TestWithParam<StepsAhead> {};

TEST_P(FailedStep, EndsTheRequestThatWasInIt) {
  for (int pass = 1; pass <= 44; ++pass) {
    SCOPED_TRACE(str("pass ", pass, " fails"));
    const StateModel model(pass);
    Engine engine(model, config_for(model, GetParam()));
    Traffic traffic(engine);
    traffic.add(Ids(20, 1), 40);
    traffic.run_to_end();
    EXPECT_EQ(traffic.failures, pass <= 41 ? 1 : 0);
    traffic.add(Ids(20, 1), 12);  // some of whose text, and a state, may be there
    traffic.run_to_end();
    traffic.expect_nothing_held();
  }
}

// Of steps of 16 rows: while one prompt runs, the other one is in no step.
TEST_P(FailedStep, LeavesRequestsAloneThatWaitOrWereNotInIt) {
  bool some_went_on = false;
  for (int pass = 1; pass <= 80; ++pass) {
    SCOPED_TRACE(str("pass ", pass, " fails"));
    const StateModel model(pass);
    Engine engine(model, config_for(model, GetParam()));
    Traffic traffic(engine);
    traffic.add(Ids(10, 1), 30);
    for (int step = 0; step < 6; ++step) traffic.step();
    traffic.add(Ids(41, 2), 20);
    traffic.add(Ids(37, 3), 20);
    traffic.add(Ids(12, 4), 25);  // until one of the others ends
    traffic.add(Ids(41, 2), 20);
    while (!engine.idle() && traffic.failures == 0 && model.passes() < pass) traffic.step();
    some_went_on |= traffic.failures == 1 && !traffic.left.empty();
    traffic.run_to_end();
    traffic.add(Ids(41, 2), 9);
    traffic.add(Ids(10, 1), 20);
    traffic.run_to_end();
    traffic.expect_nothing_held();
  }
  EXPECT_TRUE(some_went_on);
}

INSTANTIATE_TEST_SUITE_P(Engines, FailedStep, testing::Values(StepsAhead::kNever, StepsAhead::kAlways),
                         [](const auto& ahead) { return ahead.param == StepsAhead::kAlways ? "ahead" : "one_by_one"; });

// Whatever it was that a step threw.
TEST(FailedStepOfAnObserver, EndsTheRequestThatWasInIt) {
  for (const StepMoment thrown_at : {StepMoment::kPlanned, StepMoment::kCommitted}) {
    const StateModel model(0);
    Engine engine(model, config_for(model, StepsAhead::kAlways));
    int seen = 0;
    engine.observe([&](StepMoment moment, const Sequence&, const StepPlan&) {
      if (moment == thrown_at && ++seen == 5) throw std::runtime_error("enough");
    });
    engine.add(Ids(20, 1), likely(40));
    EXPECT_THROW(
        {
          while (!engine.idle()) engine.step();
        },
        std::runtime_error);
    EXPECT_TRUE(engine.idle());
    Traffic traffic(engine);
    traffic.add(Ids(20, 1), 40);
    traffic.run_to_end();
    traffic.expect_nothing_held();
  }
}

// Token by token. The plans or the commits of one request fail each time, from so many tokens on.
struct Failing {
  int64_t id = 0;
  int32_t plans_from = 1000, commits_from = 1000;  // tokens
};
class FailingStrategy final : public DecodingStrategy {
 public:
  explicit FailingStrategy(const Failing& failing) : FailingStrategy(failing, make_strategy("autoregressive", {})) {}
  void start(Sequence& s) const override { inner_->start(s); }
  StepPlan plan(const Sequence& s, int32_t budget) const override {
    if (s.id == failing_.id && s.num_tokens() >= failing_.plans_from) throw Error(ErrorCode::kInternal, kReason);
    return inner_->plan(s, budget);
  }
  void commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const override {
    inner_->commit(s, plan, sampled);
    if (s.id == failing_.id && s.num_tokens() >= failing_.commits_from) throw Error(ErrorCode::kInternal, kReason);
  }

 private:
  FailingStrategy(const Failing& failing, std::unique_ptr<DecodingStrategy> inner)
      : DecodingStrategy(inner->name(), inner->traits()), inner_(std::move(inner)), failing_(failing) {}

  std::unique_ptr<DecodingStrategy> inner_;
  const Failing& failing_;
};

// States say whether the others' were left as they were.
TEST_P(FailedStep, EndsOnlyTheRequestWhosePlanOrCommitFailed) {
  for (int32_t first = 37; first <= 60; ++first) {
    for (const Failing& failing : {Failing{.id = 2, .plans_from = first}, Failing{.id = 2, .commits_from = first}}) {
      SCOPED_TRACE(str(failing.plans_from == first ? "plans" : "commits", " fail from token ", first, " on"));
      const StateModel model(0);
      Engine engine(model, config_for(model, GetParam()), std::make_unique<FailingStrategy>(failing));
      Traffic traffic(engine);
      traffic.add(Ids(10, 1), 40);
      traffic.add(Ids(37, 3), 30);
      traffic.add(Ids(14, 2), 40);
      traffic.add(Ids(41, 2), 20);
      traffic.run_to_end();
      EXPECT_EQ(traffic.failures, 0);
      EXPECT_EQ(traffic.failed_alone, std::set<int64_t>{2});
      traffic.expect_nothing_held();
    }
  }
}

// It waits first, so it is admitted and planned in one step.
TEST_P(FailedStep, EndsTheRequestWhoseFirstPlanFailed) {
  const StateModel model(0);
  const Failing failing{.id = 4, .plans_from = 0};
  Engine engine(model, config_for(model, GetParam()), std::make_unique<FailingStrategy>(failing));
  Traffic traffic(engine);
  for (int32_t i = 0; i < 6; ++i) traffic.add(Ids(10 + static_cast<size_t>(i), 1 + i), 20);  // three run at a time
  traffic.run_to_end();
  EXPECT_EQ(traffic.failures, 0);
  EXPECT_EQ(traffic.failed_alone, std::set<int64_t>{4});
  traffic.expect_nothing_held();
}

// Token 7 has no numbers behind it.
class NaNModel final : public Model {
 public:
  explicit NaNModel(bool hybrid) {
    info_ = two_layers("nan");
    if (!hybrid) return;
    info_.num_gdn_layers = 1;
    info_.gdn = {.num_layers = 1, .num_k_heads = 1, .num_v_heads = 1, .head_k_dim = 4, .head_v_dim = 4};
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    Tensor logits = Tensor::zeros(DType::kF32, {static_cast<int64_t>(batch.logits_rows.size()), 8});
    const auto ids = batch.input_ids.as<const int32_t, 1>("ids");
    for (size_t r = 0; r < batch.logits_rows.size(); ++r) {
      if (ids(batch.logits_rows[r]) != 7) continue;
      logits.data_as<float>()[8 * r] = std::numeric_limits<float>::quiet_NaN();
    }
    return logits;
  }

 private:
  ModelInfo info_;
};

// Prompts run in chunks of 16 tokens. Those that are alike but for their last token have two whole pages in common.
class TextOfAFailedRequest : public testing::TestWithParam<bool> {
 protected:
  static Ids prompt_that_ends_with(int32_t last) {
    Ids prompt(41, 1);
    prompt.back() = last;
    return prompt;
  }
  // Returns the tokens that the request does not compute; nothing if it fails.
  std::optional<int32_t> reused_by(const Ids& prompt) {
    engine_.add(prompt, likely(1));
    while (!engine_.idle()) {
      for (const StepOutput& out : engine_.step()) {
        return out.error ? std::nullopt : std::optional(out.num_reused);
      }
    }
    return std::nullopt;
  }

  NaNModel model_{GetParam()};
  Engine engine_{model_,
                 {.runner = {.num_pages = 32, .page_size = 16, .num_states = 7, .max_tokens = 16},
                  .max_requests = 3,
                  .max_context_len = 96,
                  .keep_text = SchedulerConfig::KeepText::kYes}};
};

TEST_P(TextOfAFailedRequest, IsNotReused) {
  EXPECT_EQ(reused_by(prompt_that_ends_with(7)), std::nullopt);
  EXPECT_EQ(reused_by(prompt_that_ends_with(5)), 0);
  EXPECT_EQ(reused_by(prompt_that_ends_with(4)), 32) << "the text of one that ended well is";
}

INSTANTIATE_TEST_SUITE_P(Models, TextOfAFailedRequest, testing::Bool(),
                         [](const auto& hybrid) { return hybrid.param ? "hybrid" : "dense"; });

TEST(FailedStepOfAWarmUp, EndsItsRequest) {
  const StateModel model(2);
  Engine engine(model, config_for(model, StepsAhead::kAlways));
  const WarmupScope warming_up(engine.runner().metadata_source());
  engine.add(Ids(10, 1), {.max_tokens = 4});
  engine.add(Ids(10, 1), {.max_tokens = 1});
  EXPECT_TRUE(engine.step().empty());
  EXPECT_THROW(engine.step(), Error);
  EXPECT_TRUE(engine.step().empty());  // the other one's, which is its last
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(model.passes(), 3);
}

}  // namespace
}  // namespace headrace
