// Requests that wait for room: who is admitted when, and that those that run are left alone.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "engine/toy_diffusion_model.h"
#include "headrace/engine/engine.h"

namespace headrace {
namespace {

using StepsAhead = EngineConfig::StepsAhead;
using testing_support::ByPosition;
using testing_support::ToyDiffusionModel;
using Ids = std::vector<int32_t>;

constexpr int32_t kPoolPages = 40, kPageSize = 16;

EngineConfig waiting_config(std::string strategy, StepsAhead ahead) {
  return {.runner = {.num_pages = kPoolPages, .page_size = kPageSize, .max_tokens = 256},
          .max_requests = 4,
          .max_context_len = 640,
          .strategy = std::move(strategy),
          .keep_text = SchedulerConfig::KeepText::kYes,
          .steps_ahead = ahead};
}

SamplingParams waiting_params(int32_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
}

struct Way {
  std::string strategy;
  StepsAhead ahead = StepsAhead::kNever;
};

class Waiting : public testing::TestWithParam<Way> {
 protected:
  // Runs up to `most` steps and returns the number of those before the first token of request `id`, or `most`.
  int steps_until(int64_t id, int most) {
    for (int step = 0; step < most; ++step) {
      for (const StepOutput& out : engine_.step()) tokens_[out.sequence_id].push_back(out.token.id);
      if (tokens_.contains(id)) return step;
    }
    return most;
  }
  void step(int count) { steps_until(0, count); }
  void run_to_end() {
    while (!engine_.idle()) step(1);
    EXPECT_EQ(engine_.scheduler().free_pages(), kPoolPages);
  }
  void expect_tokens(int64_t id, int32_t begin, int32_t count) {
    EXPECT_EQ(tokens_[id], ToyDiffusionModel::tokens(begin, count)) << "request " << id;
  }

  ByPosition causal_;
  ToyDiffusionModel diffusion_{{}};
  Engine engine_{GetParam().strategy == "autoregressive" ? static_cast<const Model&>(causal_) : diffusion_,
                 waiting_config(GetParam().strategy, GetParam().ahead)};
  std::map<int64_t, Ids> tokens_;
};

TEST_P(Waiting, AnAbortOfTheFirstInTheQueueAdmitsTheNextAtOnce) {
  const int64_t running = engine_.add(Ids(16, 1), waiting_params(400));
  step(6);
  const int64_t large = engine_.add(Ids(624, 2), waiting_params(16)),
                small = engine_.add(Ids(16, 3), waiting_params(16));
  step(4);
  EXPECT_EQ(engine_.scheduler().num_running(), 1u) << "a request does not overtake one that waits";
  engine_.abort(large);
  EXPECT_LE(steps_until(small, 400), 3);
  run_to_end();
  expect_tokens(running, 16, 400);
  expect_tokens(small, 16, 16);
}

// The second begins with what the first has stored since, so that it needs fewer pages with each step.
TEST_P(Waiting, ARequestBehindTextThatIsBeingWrittenLeavesItsWriterAlone) {
  const int64_t writer = engine_.add(Ids(16, 1), waiting_params(400));
  step(6);
  Ids prompt(16, 1);
  for (const int32_t token : ToyDiffusionModel::tokens(16, 256)) prompt.push_back(token);
  const int64_t reader = engine_.add(prompt, waiting_params(60));
  step(400);
  run_to_end();
  expect_tokens(writer, 16, 400);
  expect_tokens(reader, 272, 60);
}

INSTANTIATE_TEST_SUITE_P(Ways, Waiting,
                         testing::Values(Way{"autoregressive", StepsAhead::kNever},
                                         Way{"autoregressive", StepsAhead::kAlways},
                                         Way{"multi_bd", StepsAhead::kAlways}),
                         [](const auto& way) {
                           return way.param.strategy + (way.param.ahead == StepsAhead::kAlways ? "_ahead" : "");
                         });

}  // namespace
}  // namespace headrace
