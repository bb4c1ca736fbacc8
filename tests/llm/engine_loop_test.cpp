// The engine loop, driven by the thread that submits: which events come, in which order, and when none does.
#include "headrace/llm/engine_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "headrace/core/error.h"
#include "support/hash_model.h"
#include "support/refusal.h"

namespace headrace {
namespace {

using testing_support::HashModel;
using testing_support::refusal_of;
using Ids = std::vector<int32_t>;

constexpr int32_t kPageSize = 16, kPages = 48;

EngineConfig engine_config() {
  return {.runner = {.num_pages = kPages, .page_size = kPageSize, .max_tokens = 64},
          .max_requests = 4,
          .max_context_len = 128,
          .keep_text = SchedulerConfig::KeepText::kYes};
}

SamplingParams drawn(int32_t max_tokens, std::optional<uint64_t> seed) {
  return {.max_tokens = max_tokens, .seed = seed, .end_of_text = SamplingParams::EndOfText::kIgnored};
}

Ids prompt_of(int32_t length, int32_t first = 1) {
  Ids prompt(static_cast<size_t>(length), first);
  for (size_t i = 1; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i % 89);
  return prompt;
}

Ids ids_of(const std::vector<StepOutput>& outputs) {
  Ids ids;
  for (const StepOutput& out : outputs) ids.push_back(out.token.id);
  return ids;
}

// An engine, its loop, and a queue of which the test takes the events.
struct Fixture {
  explicit Fixture(const EngineConfig& config = engine_config()) : engine(model, config), loop(engine) {}

  int64_t submit(int32_t prompt_len, int32_t max_tokens, std::optional<uint64_t> seed = 1, int32_t n = 1) {
    return loop.submit({.prompt_ids = prompt_of(prompt_len), .params = drawn(max_tokens, seed), .n = n}, events);
  }
  void run() {
    while (loop.run_once()) engine.scheduler().audit();
  }
  std::vector<GenerationEvent> take_all() {
    std::vector<GenerationEvent> all;
    while (auto event = events.poll()) all.push_back(std::move(*event));
    return all;
  }
  void expect_nothing_left() {
    EXPECT_FALSE(events.poll());
    EXPECT_FALSE(loop.run_once());
    EXPECT_TRUE(engine.idle());
    EXPECT_EQ(engine.scheduler().free_pages(), kPages);
    engine.scheduler().audit();
  }

  HashModel model;
  Engine engine;
  EngineLoop loop;
  EventQueue events;
};

// The tokens of an engine that runs this request alone.
Ids alone(const Ids& prompt, const SamplingParams& params) {
  const HashModel model;
  Engine engine(model, engine_config());
  engine.add(prompt, params);
  Ids ids;
  while (!engine.idle()) {
    for (const StepOutput& out : throw_if_failed(engine.step())) ids.push_back(out.token.id);
  }
  return ids;
}

TEST(EngineLoop, AbortsThoseThatHaveNeverRun) {
  Fixture f;
  const int64_t running = f.submit(20, 7, 5, 3), waiting = f.submit(20, 7, 6, 3);  // the engine runs four
  f.loop.run_once();
  f.loop.abort_waiting(running);
  f.loop.abort_waiting(waiting);
  f.run();
  std::map<int64_t, int> aborted, ended;
  for (const GenerationEvent& event : f.take_all()) {
    if (!event.is_last()) continue;
    ++ended[event.request_id];
    if (event.outputs.back().finish_reason == FinishReason::kAborted) ++aborted[event.request_id];
  }
  EXPECT_EQ(ended, (std::map<int64_t, int>{{running, 3}, {waiting, 3}}));
  EXPECT_EQ(aborted, (std::map<int64_t, int>{{waiting, 2}}));
  f.expect_nothing_left();
}

TEST(EngineLoop, TellsOnceWhyAPromptLeftTheCacheIfItIsAsked) {
  Fixture f;
  f.submit(40, 2);
  f.run();
  f.take_all();
  f.loop.submit({.prompt_ids = prompt_of(41), .params = drawn(3, 1), .explains_cache = true}, f.events);
  f.submit(42, 3);
  std::map<size_t, int> misses;  // by what the prompt had
  while (f.loop.run_once()) {
    for (const GenerationEvent& event : f.take_all()) {
      if (!event.miss) continue;
      ++misses[static_cast<size_t>(event.miss->position + event.miss->num_computed)];
      EXPECT_EQ(event.miss->position, 32);
      EXPECT_EQ(event.outputs.size(), 1u);
    }
  }
  EXPECT_EQ(misses, (std::map<size_t, int>{{41, 1}}));
  f.expect_nothing_left();
}

TEST(EngineLoop, EventsHaveTheTokensInOrderAndNoneComesAfterTheLast) {
  Fixture f;
  const int64_t first = f.submit(20, 7, 5), second = f.submit(90, 9, 6);
  EXPECT_NE(first, second);
  std::map<int64_t, Ids> got;
  std::set<int64_t> ended;
  while (f.loop.run_once()) {
    for (const GenerationEvent& event : f.take_all()) {
      EXPECT_FALSE(ended.contains(event.request_id));
      EXPECT_EQ(event.choice, 0);
      ASSERT_EQ(event.outputs.size(), 1u);
      got[event.request_id].push_back(event.outputs[0].token.id);
      EXPECT_EQ(event.num_forwards, std::ssize(got[event.request_id]));
      if (event.is_last()) ended.insert(event.request_id);
    }
  }
  EXPECT_EQ(got[first], alone(prompt_of(20), drawn(7, 5)));
  EXPECT_EQ(got[second], alone(prompt_of(90), drawn(9, 6)));
  EXPECT_EQ(ended, (std::set<int64_t>{first, second}));
  f.expect_nothing_left();
}

TEST(EngineLoop, EventsThatNobodyTakesAreOneOfEachChoice) {
  Fixture f;
  const int64_t id = f.submit(20, 30, 5, 2);
  f.run();
  const std::vector<GenerationEvent> events = f.take_all();
  ASSERT_EQ(events.size(), 2u);
  for (int32_t choice = 0; choice < 2; ++choice) {
    const GenerationEvent& event = events[static_cast<size_t>(choice)];
    EXPECT_EQ(event.request_id, id);
    EXPECT_EQ(event.choice, choice);
    EXPECT_EQ(event.seed, seed_of_choice(5, choice));
    EXPECT_EQ(ids_of(event.outputs), alone(prompt_of(20), drawn(30, event.seed)));
    EXPECT_EQ(event.outputs.back().finish_reason, FinishReason::kLength);
    EXPECT_EQ(event.num_forwards, 30);
  }
  f.expect_nothing_left();
}

TEST(EngineLoop, TakenEventsAreNotRepeated) {
  Fixture f;
  f.submit(20, 12);
  Ids got;
  for (int turn = 0; f.loop.run_once(); ++turn) {
    if (turn % 3 != 2) continue;
    for (const GenerationEvent& event : f.take_all()) {
      EXPECT_EQ(event.outputs.size(), 3u);
      for (const int32_t id : ids_of(event.outputs)) got.push_back(id);
    }
  }
  EXPECT_EQ(got, alone(prompt_of(20), drawn(12, 1)));
  f.expect_nothing_left();
}

TEST(EngineLoop, ChoicesEqualSingleRequestsWithTheirSeedsAndShareThePromptsPages) {
  constexpr int32_t kChoices = 3, kPromptLen = 40, kOutput = 12;
  Fixture f;
  f.submit(kPromptLen, kOutput, 77, kChoices);
  std::map<int32_t, std::vector<StepOutput>> got;
  std::set<uint64_t> seeds;
  int32_t fewest = kPages;
  while (f.loop.run_once()) {
    fewest = std::min(fewest, f.loop.stats().free_pages);
    for (GenerationEvent& event : f.take_all()) {
      seeds.insert(event.seed);
      EXPECT_EQ(event.seed, seed_of_choice(77, event.choice));
      for (StepOutput& out : event.outputs) got[event.choice].push_back(std::move(out));
    }
  }
  EXPECT_EQ(seeds.size(), static_cast<size_t>(kChoices));
  EXPECT_TRUE(seeds.contains(77)) << "the first has the request's";
  for (int32_t choice = 0; choice < kChoices; ++choice) {
    EXPECT_EQ(ids_of(got[choice]), alone(prompt_of(kPromptLen), drawn(kOutput, seed_of_choice(77, choice))));
    EXPECT_EQ(got[choice].front().num_reused, choice == 0 ? 0 : kPromptLen / kPageSize * kPageSize);
  }
  EXPECT_EQ(kPages - fewest, 2 + kChoices * 2) << "two pages of all, and two of each";
  f.expect_nothing_left();
}

TEST(EngineLoop, AnAbsentSeedIsDrawnAndTold) {
  Fixture f;
  f.submit(20, 24, std::nullopt), f.submit(20, 24, std::nullopt);
  f.run();
  const std::vector<GenerationEvent> events = f.take_all();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_NE(events[0].seed, events[1].seed);
  EXPECT_NE(ids_of(events[0].outputs), ids_of(events[1].outputs));
  for (const GenerationEvent& event : events) {
    EXPECT_EQ(ids_of(event.outputs), alone(prompt_of(20), drawn(24, event.seed)));
  }
}

TEST(EngineLoop, BadInputThrowsAtSubmitAndNoEventComes) {
  class Nothing final : public TokenConstraint {
    void fill(std::span<uint32_t>) override {}
    void accept(int32_t) override {}
  };
  Fixture f;
  const auto refusal = [&f](GenerationRequest request) {
    const auto refused = refusal_of([&] { f.loop.submit(std::move(request), f.events); });
    EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument);
    return refused.sentence;
  };
  EXPECT_EQ(refusal({.prompt_ids = {1}, .n = 0}), "n is 0, expected 1 or more");
  EXPECT_EQ(refusal({.prompt_ids = {1}, .n = 2, .constraint = std::make_shared<Nothing>()}),
            "n is 2, expected 1 with a constraint, which has the state of one text");
  EXPECT_EQ(refusal({.prompt_ids = {1}, .n = 3, .reports_steps = true}), "n is 3, expected 1 with reports of steps");
  EXPECT_NE(refusal({.prompt_ids = {}}).find("the prompt is empty"), std::string::npos);
  EXPECT_NE(refusal({.prompt_ids = {97}}).find("token id 97 is outside the vocabulary of 97"), std::string::npos);
  EXPECT_NE(refusal({.prompt_ids = prompt_of(128)}).find("the prompt has 128 tokens"), std::string::npos);
  EXPECT_NE(refusal({.prompt_ids = {1}, .params = {.temperature = -1}}).find("temperature"), std::string::npos);
  f.expect_nothing_left();
}

std::vector<GenerationEvent> expect_aborted(Fixture& f, size_t count) {
  std::vector<GenerationEvent> events = f.take_all();
  EXPECT_EQ(events.size(), count);
  for (const GenerationEvent& event : events) {
    EXPECT_TRUE(event.is_last());
    EXPECT_EQ(event.outputs.back().finish_reason, FinishReason::kAborted);
    EXPECT_FALSE(event.outputs.back().error);
  }
  return events;
}

TEST(EngineLoop, ARequestThatIsAbortedBeforeItWasAddedHasOneEvent) {
  Fixture f;
  const int64_t id = f.submit(20, 8);
  f.loop.abort(id);
  EXPECT_TRUE(f.loop.run_once());
  EXPECT_EQ(expect_aborted(f, 1)[0].outputs.size(), 1u);
  f.expect_nothing_left();
}

TEST(EngineLoop, AnAbortWhileTheTokensWaitComesBehindThem) {
  Fixture f;
  const int64_t id = f.submit(20, 8);
  for (int turn = 0; turn < 3; ++turn) f.loop.run_once();
  f.loop.abort(id), f.loop.abort(id);
  f.run();
  const std::vector<GenerationEvent> events = expect_aborted(f, 1);
  ASSERT_EQ(events[0].outputs.size(), 4u);
  EXPECT_EQ(events[0].num_forwards, 3);
  EXPECT_EQ(events[0].outputs.back().num_forwards, 3);
  f.loop.abort(id);
  EXPECT_TRUE(f.loop.run_once());
  f.expect_nothing_left();
}

TEST(EngineLoop, AnAbortOfWhatIsUnknownOrHasEndedIsIgnored) {
  Fixture f;
  const int64_t id = f.submit(20, 2);
  f.loop.abort(id + 1), f.loop.abort(id, 1), f.loop.abort(-1);
  f.run();
  EXPECT_EQ(ids_of(f.take_all().at(0).outputs), alone(prompt_of(20), drawn(2, 1)));
  f.loop.abort(id);
  f.run();
  f.expect_nothing_left();
}

TEST(EngineLoop, OneChoiceIsAbortedAndTheOthersGoOn) {
  Fixture f;
  const int64_t id = f.submit(20, 8, 3, 3), other = f.submit(30, 8, 4);
  f.loop.run_once();
  f.loop.abort(id, 1);
  f.run();
  std::map<std::pair<int64_t, int32_t>, GenerationEvent> last;
  for (GenerationEvent& event : f.take_all()) last[{event.request_id, event.choice}] = std::move(event);
  EXPECT_EQ(last.at({id, 1}).outputs.back().finish_reason, FinishReason::kAborted);
  EXPECT_EQ(ids_of(last.at({id, 0}).outputs), alone(prompt_of(20), drawn(8, 3)));
  EXPECT_EQ(ids_of(last.at({id, 2}).outputs), alone(prompt_of(20), drawn(8, seed_of_choice(3, 2))));
  EXPECT_EQ(ids_of(last.at({other, 0}).outputs), alone(prompt_of(30), drawn(8, 4)));
  f.expect_nothing_left();
}

TEST(EngineLoop, AnAbortOfARequestEndsAllItsChoices) {
  Fixture f;
  const int64_t id = f.submit(20, 8, 3, 3);
  f.submit(30, 8, 4);
  f.loop.run_once();
  f.take_all();
  f.loop.abort(id, 0), f.loop.abort(id);
  f.run();
  int32_t aborted = 0;
  for (const GenerationEvent& event : f.take_all()) {
    if (event.request_id == id) ++aborted;
    EXPECT_EQ(event.outputs.back().finish_reason,
              event.request_id == id ? FinishReason::kAborted : FinishReason::kLength);
  }
  EXPECT_EQ(aborted, 3);
  f.expect_nothing_left();
}

TEST(EngineLoop, AStepThatThrowsEndsItsRequestsWithTheError) {
  EngineConfig config = engine_config();
  config.max_requests = 2;
  Fixture f(config);
  const int64_t first = f.submit(20, 8), second = f.submit(30, 8), waits = f.submit(40, 8, 9);
  f.loop.run_once();
  f.take_all();
  f.model.fail_next(Error(ErrorCode::kInternal, "a pass that failed"));
  f.loop.run_once();
  const std::vector<GenerationEvent> failed = f.take_all();
  ASSERT_EQ(failed.size(), 2u);
  for (const GenerationEvent& event : failed) {
    EXPECT_TRUE(event.request_id == first || event.request_id == second);
    ASSERT_EQ(event.outputs.size(), 1u);
    EXPECT_EQ(event.outputs[0].finish_reason, FinishReason::kError);
    EXPECT_EQ(event.outputs[0].error->code(), ErrorCode::kInternal);
    EXPECT_STREQ(event.outputs[0].error->what(), "a pass that failed");
    EXPECT_EQ(event.outputs[0].num_forwards, event.request_id == first ? 1 : 0) << "the second waited for a page";
  }
  f.run();
  const std::vector<GenerationEvent> rest = f.take_all();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].request_id, waits);
  EXPECT_EQ(ids_of(rest[0].outputs), alone(prompt_of(40), drawn(8, 9)));
  f.expect_nothing_left();
}

TEST(EngineLoop, ADeviceThatFailsEndsAllAndTakesNoMore) {
  Fixture f;
  f.submit(20, 8, 1, 3), f.submit(30, 8), f.submit(40, 8);
  f.loop.run_once();
  f.take_all();
  f.submit(50, 8);
  f.model.fail_next(Error(ErrorCode::kCuda, "cuda: an illegal memory access"));
  f.loop.run_once();
  const std::vector<GenerationEvent> failed = f.take_all();
  ASSERT_EQ(failed.size(), 6u);
  for (const GenerationEvent& event : failed) EXPECT_EQ(event.outputs.back().error->code(), ErrorCode::kCuda);
  const auto refused = refusal_of([&f] { f.submit(20, 8); });
  EXPECT_EQ(refused.code, ErrorCode::kCuda);
  EXPECT_NE(refused.sentence.find("an illegal memory access"), std::string::npos) << refused.sentence;
  f.expect_nothing_left();
}

TEST(EngineLoop, ARequestThatComesBeforeTheFaultIsKnownHasAnEvent) {
  Fixture f;
  f.engine.add({1, 2}, drawn(4, 1));
  f.model.fail_next(Error(ErrorCode::kCuda, "cuda: an illegal memory access"));
  EXPECT_THROW(f.engine.step(), Error);
  f.submit(20, 8, 1, 2);
  f.run();
  const std::vector<GenerationEvent> failed = f.take_all();
  ASSERT_EQ(failed.size(), 2u);
  for (const GenerationEvent& event : failed) EXPECT_EQ(event.outputs.at(0).error->code(), ErrorCode::kCuda);
  EXPECT_EQ(refusal_of([&f] { f.submit(20, 8); }).code, ErrorCode::kCuda);
  f.expect_nothing_left();
}

TEST(EngineLoop, ClosedItTakesNoRequestsAndEndsThoseItHas) {
  Fixture f;
  f.submit(20, 8);
  f.loop.close();
  const auto refused = refusal_of([&f] { f.submit(20, 8); });
  EXPECT_EQ(refused.code, ErrorCode::kCancelled);
  EXPECT_EQ(refused.sentence, "the engine is being drained and takes no more requests");
  f.run();
  EXPECT_EQ(f.take_all().at(0).outputs.size(), 8u);
  f.loop.wait_until_idle();
  f.expect_nothing_left();
}

TEST(EngineLoop, StatsAreThoseOfTheLastStepAndOfWhatWasSubmittedSince) {
  Fixture f;
  EngineStats stats = f.loop.stats();
  EXPECT_EQ(stats.num_pages, kPages);
  EXPECT_EQ(stats.free_pages, kPages);
  EXPECT_EQ(stats.heartbeat, 0);
  f.submit(20, 4, 1, 5), f.submit(30, 4);
  EXPECT_EQ(f.loop.stats().waiting, 6);
  f.loop.run_once();
  stats = f.loop.stats();
  EXPECT_EQ(stats.running, 4);
  EXPECT_EQ(stats.waiting, 2);
  EXPECT_EQ(stats.steps, 1);
  EXPECT_EQ(stats.heartbeat, 1);
  EXPECT_LT(stats.free_pages, kPages);
  f.run();
  stats = f.loop.stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.tokens, 24);
  EXPECT_EQ(stats.free_pages, kPages);
  EXPECT_FALSE(f.loop.run_once());
  EXPECT_EQ(f.loop.stats().heartbeat, stats.heartbeat) << "nothing to do is no turn";
}

TEST(EngineLoop, StepsThatAreReportedAreEventsOfTheirOwn) {
  constexpr int32_t kPromptLen = 100, kOutput = 6;
  Fixture f;
  const int64_t id = f.loop.submit(
      {.prompt_ids = prompt_of(kPromptLen), .params = drawn(kOutput, 2), .reports_steps = true}, f.events);
  const int64_t other = f.submit(30, 4);
  f.run();
  Ids got;
  int32_t steps = 0;
  for (const GenerationEvent& event : f.take_all()) {
    EXPECT_EQ(event.report.has_value(), event.request_id == id);
    if (event.request_id == other) {
      EXPECT_EQ(event.outputs.size(), 4u);
      continue;
    }
    EXPECT_EQ(event.report->step, ++steps);
    EXPECT_LE(event.outputs.size(), 1u);
    EXPECT_EQ(event.report->decided.size(), event.outputs.size());
    EXPECT_EQ(event.num_forwards, static_cast<int32_t>(got.size() + event.outputs.size()));
    for (const int32_t token : ids_of(event.outputs)) got.push_back(token);
  }
  EXPECT_EQ(got, alone(prompt_of(kPromptLen), drawn(kOutput, 2)));
  EXPECT_GT(steps, kOutput) << "a prompt chunk of its own";
  f.expect_nothing_left();
}

TEST(EngineLoop, QueuesGetTheEventsOfTheirOwnRequests) {
  Fixture f;
  EventQueue second;
  const int64_t id = f.submit(20, 5, 1);
  const int64_t other = f.loop.submit({.prompt_ids = prompt_of(30), .params = drawn(6, 2)}, second);
  f.submit(40, 5, 3);
  f.run();
  const std::vector<GenerationEvent> events = f.take_all();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].request_id, id);
  const auto event = second.poll();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->request_id, other);
  EXPECT_EQ(ids_of(event->outputs), alone(prompt_of(30), drawn(6, 2)));
  EXPECT_FALSE(second.poll());
  f.expect_nothing_left();
}

TEST(EventQueue, TellsWhenItIsNoLongerEmpty) {
  Fixture f;
  int calls = 0;
  EventQueue events([&calls] { ++calls; });
  for (int32_t r = 0; r < 2; ++r) f.loop.submit({.prompt_ids = prompt_of(20), .params = drawn(4, 1)}, events);
  f.loop.run_once(), f.loop.run_once();
  EXPECT_EQ(calls, 1) << "for two requests and two steps";
  EXPECT_TRUE(events.poll());
  f.loop.run_once();
  EXPECT_EQ(calls, 1) << "it still has the other one's";
  while (events.poll()) continue;
  f.loop.run_once();
  EXPECT_EQ(calls, 2);
}

TEST(EventQueue, WaitsNoLongerThanAsked) {
  EventQueue events;
  EXPECT_FALSE(events.wait_for(std::chrono::milliseconds(1)));
}

}  // namespace
}  // namespace headrace
