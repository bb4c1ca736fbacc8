// An observer that aborts requests while a step is planned or committed: each one ends at once, the others go on.
#include <gtest/gtest.h>

#include <algorithm>
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

constexpr int32_t kPages = 48, kOutput = 24;
constexpr int64_t kRequests = 4;

// Aborts `victims` when it is shown request `shown` for the `nth` time at a moment.
struct Abort {
  StepMoment moment = StepMoment::kPlanned;
  int64_t shown = 1;
  int nth = 1;
  std::vector<int64_t> victims;
};

class ObserverThatAborts : public testing::TestWithParam<StepsAhead> {
 protected:
  void expect_others_go_on(const Abort& what) {
    SCOPED_TRACE(str(what.moment == StepMoment::kPlanned ? "planned" : "committed", ", request ", what.shown,
                     " for the ", what.nth, ". time, ", what.victims.size(), " victims from ", what.victims.front(),
                     " on"));
    const ByPosition model;
    Engine engine(model, {.runner = {.num_pages = kPages, .page_size = 16, .max_tokens = 64},
                          .max_requests = kRequests,
                          .max_context_len = 128,
                          .keep_text = SchedulerConfig::KeepText::kYes,
                          .steps_ahead = GetParam()});
    int seen = 0;
    engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan&) {
      ASSERT_TRUE(engine.has(s.id));
      if (moment != what.moment || s.id != what.shown || ++seen != what.nth) return;
      for (const int64_t id : what.victims) {
        engine.abort(id);
        EXPECT_FALSE(engine.has(id));
      }
    });
    for (int32_t i = 0; i < kRequests; ++i) {
      engine.add(Ids(static_cast<size_t>(20 + i), 1),
                 {.max_tokens = kOutput, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
    }
    std::map<int64_t, Ids> tokens;
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) tokens[out.sequence_id].push_back(out.token.id);
    }
    EXPECT_GE(seen, what.nth) << "it has aborted them";
    for (int64_t id = 1; id <= kRequests; ++id) {
      Ids want = ToyDiffusionModel::tokens(static_cast<int32_t>(19 + id), kOutput);
      if (std::ranges::count(what.victims, id) > 0) {
        EXPECT_LT(tokens[id].size(), want.size()) << "request " << id;
        want.resize(std::min(want.size(), tokens[id].size()));
      }
      EXPECT_EQ(tokens[id], want) << "request " << id;
    }
    EXPECT_EQ(engine.scheduler().free_pages(), kPages);
    EXPECT_EQ(engine.scheduler().table().available_size(), kRequests);
    EXPECT_TRUE(engine.step().empty()) << "of a step whose requests were all aborted";
    EXPECT_EQ(engine.runner().num_in_flight(), 0u);
  }
};

TEST_P(ObserverThatAborts, LeavesTheOthersAlone) {
  const std::vector<std::vector<int64_t>> all_victims = {{1}, {2}, {4}, {1, 2}, {3, 4}, {1, 2, 3, 4}};
  for (const StepMoment moment : {StepMoment::kPlanned, StepMoment::kCommitted}) {
    for (const int64_t shown : {1, 2, 4}) {
      for (const int nth : {1, 2, 3, 9}) {
        for (const std::vector<int64_t>& victims : all_victims) {
          expect_others_go_on({.moment = moment, .shown = shown, .nth = nth, .victims = victims});
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, ObserverThatAborts, testing::Values(StepsAhead::kNever, StepsAhead::kAlways),
                         [](const auto& ahead) { return ahead.param == StepsAhead::kAlways ? "ahead" : "one_by_one"; });

}  // namespace
}  // namespace headrace
