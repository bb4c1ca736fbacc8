// One engine and many threads: each request has the tokens of a run alone, however the others come and go.
#include "headrace/llm/async_llm.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/llm/llm.h"
#include "headrace/llm/text_stream.h"
#include "support/refusal.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

using testing_support::refusal_of;
using Ids = std::vector<int32_t>;

LLMOptions options(int32_t max_num_seqs) {
  return {.dtype = DType::kF32,
          .context = {.threads = 1, .determinism = Determinism::kStrict},
          .page_size = 16,
          .max_model_len = 128,
          .max_num_seqs = max_num_seqs,
          .random_weights = 1};
}

std::filesystem::path model() { return testing_support::source_tree() / "tests" / "golden" / "qwen3_5"; }

GenerationRequest request_of(int32_t number) {
  const auto length = static_cast<size_t>(3 + number * 5 % 40);
  Ids prompt(length, 'a' + number % 2);  // half of the texts begin alike
  for (size_t i = 0; i < length; ++i) prompt[i] += static_cast<int32_t>(i) % 7;
  return {.prompt_ids = std::move(prompt),
          .params = {.max_tokens = 4 + number % 9,
                     .temperature = number % 3 == 0 ? 0.0f : 1.0f,
                     .seed = static_cast<uint64_t>(number),
                     .end_of_text = SamplingParams::EndOfText::kIgnored}};
}

// An endless one, as far as a test is concerned.
GenerationRequest long_request() {
  return {.prompt_ids = {'a', 'b', 'c'},
          .params = {.max_tokens = 120, .seed = 1, .end_of_text = SamplingParams::EndOfText::kIgnored}};
}

// The answers of requests [0, count), each run alone.
const std::vector<Ids>& answers(int32_t count) {
  static const std::vector<Ids> kAnswers = [] {
    LLM llm(model(), options(1));
    std::vector<Ids> all;
    for (int32_t number = 0; number < 48; ++number) {
      const GenerationRequest request = request_of(number);
      const auto goes_on = [](std::string_view, const Completion&) { return StreamAction::kContinue; };
      all.push_back(llm.generate(request.prompt_ids, request.params, goes_on).ids);
    }
    return all;
  }();
  EXPECT_LE(count, std::ssize(kAnswers));
  return kAnswers;
}

struct Answer {
  Ids ids;
  FinishReason reason = FinishReason::kError;
};

// Takes events of one request until its last.
Answer answer_of(EventQueue& events, int64_t id) {
  Answer answer;
  for (;;) {
    const GenerationEvent event = events.wait();
    EXPECT_EQ(event.request_id, id);
    for (const StepOutput& out : event.outputs) {
      if (out.finish_reason) answer.reason = *out.finish_reason;
      if (out.finish_reason != FinishReason::kAborted && !out.error) answer.ids.push_back(out.token.id);
    }
    if (event.is_last()) return answer;
  }
}

void expect_begins(const Ids& whole, const Ids& part) {
  ASSERT_LE(part.size(), whole.size());
  EXPECT_EQ(Ids(whole.begin(), whole.begin() + std::ssize(part)), part);
}

// Submits every `stride`-th request from `first` on, one at a time, and compares its answer.
void expect_answers(AsyncLLM& llm, int32_t first, int32_t stride, int32_t count) {
  for (int32_t number = first; number < count; number += stride) {
    EventQueue events;  // destroyed with the last event
    const int64_t id = llm.submit(request_of(number), events);
    EXPECT_EQ(answer_of(events, id).ids, answers(count)[static_cast<size_t>(number)]) << "request " << number;
  }
}

TEST(AsyncLLM, ManyThreadsGetTheirTokens) {
  constexpr int32_t kThreads = 6, kRequests = 48;
  answers(kRequests);
  AsyncLLM llm(model(), options(4));
  std::vector<std::jthread> threads;
  for (int32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&llm, t] { expect_answers(llm, t, kThreads, kRequests); });
  }
  threads.clear();
  EXPECT_EQ(llm.stats().running + llm.stats().waiting, 0);
  llm.engine().scheduler().audit();
}

TEST(AsyncLLM, TwoOfThemRunInTheirOwnThreads) {
  constexpr int32_t kRequests = 24;
  answers(kRequests);
  AsyncLLM one(model(), options(3)), other(model(), options(2));
  std::jthread beside([&other] { expect_answers(other, 0, 1, kRequests); });
  expect_answers(one, 0, 1, kRequests);
}

TEST(AsyncLLM, OneQueueServesRequestsOfTwo) {
  AsyncLLM one(model(), options(3)), other(model(), options(2));
  EventQueue events;
  constexpr int32_t kRequests = 12;
  size_t wanted = 0, got = 0;
  for (int32_t number = 0; number < kRequests; ++number) {
    (number % 2 == 0 ? one : other).submit(request_of(number), events);
    wanted += answers(kRequests)[static_cast<size_t>(number)].size();
  }
  for (int32_t left = kRequests; left > 0;) {
    const GenerationEvent event = events.wait();
    got += event.outputs.size();
    if (event.is_last()) --left;
  }
  EXPECT_EQ(got, wanted);
  one.drain(), other.drain();
  EXPECT_FALSE(events.poll());
}

TEST(AsyncLLM, RequestsAreAbortedAtAnyTimeFromOtherThreads) {
  constexpr int32_t kRequests = 48;
  EventQueue events;
  AsyncLLM llm(model(), options(4));
  std::vector<int64_t> ids;
  std::map<int64_t, int32_t> numbers;
  std::mutex mutex;
  std::jthread aborts([&](const std::stop_token& stop) {
    std::mt19937 random(7);
    while (!stop.stop_requested()) {
      int64_t id = 0;
      {
        const std::lock_guard lock(mutex);
        if (!ids.empty()) id = ids[random() % ids.size()];
      }
      if (random() % 3 == 0) llm.abort(id);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    }
  });
  for (int32_t number = 0; number < kRequests; ++number) {
    const std::lock_guard lock(mutex);
    ids.push_back(llm.submit(request_of(number), events));
    numbers[ids.back()] = number;
  }
  std::map<int64_t, Ids> got;
  while (!numbers.empty()) {
    const GenerationEvent event = events.wait();
    ASSERT_TRUE(numbers.contains(event.request_id)) << "an event came behind the last one";
    const Ids& whole = answers(kRequests)[static_cast<size_t>(numbers[event.request_id])];
    for (const StepOutput& out : event.outputs) {
      if (out.finish_reason != FinishReason::kAborted) got[event.request_id].push_back(out.token.id);
    }
    expect_begins(whole, got[event.request_id]);
    if (!event.is_last()) continue;
    const bool aborted = event.outputs.back().finish_reason == FinishReason::kAborted;
    EXPECT_TRUE(aborted || got[event.request_id] == whole);
    numbers.erase(event.request_id);
  }
  aborts = {};
  EXPECT_FALSE(events.poll());
  llm.engine().scheduler().audit();
}

TEST(AsyncLLM, ASlowConsumerDelaysNobody) {
  EventQueue slow, quick;
  AsyncLLM llm(model(), options(2));
  llm.submit(long_request(), slow);
  expect_answers(llm, 0, 1, 12);
  const int64_t id = llm.submit(request_of(3), quick);
  EXPECT_EQ(answer_of(quick, id).ids, answers(4)[3]);
  llm.drain();
  const auto event = slow.poll();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->outputs.size(), 120u) << "one event of all tokens";
  EXPECT_FALSE(slow.poll());
}

TEST(AsyncLLM, DrainsWhileOthersSubmit) {
  AsyncLLM llm(model(), options(4));
  std::atomic<int32_t> accepted = 0, ended = 0, refused = 0;
  std::vector<std::jthread> threads;
  for (int32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int32_t number = t;; number = (number + 4) % 48) {
        EventQueue events;
        int64_t id = 0;
        const auto refusal = refusal_of([&] { id = llm.submit(request_of(number), events); });
        if (refusal.code) {
          EXPECT_EQ(refusal.code, ErrorCode::kCancelled);
          ++refused;
          return;
        }
        ++accepted;
        EXPECT_EQ(answer_of(events, id).reason, FinishReason::kLength);
        ++ended;
      }
    });
  }
  while (ended < 8) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  llm.drain();
  EXPECT_EQ(llm.stats().running + llm.stats().waiting, 0);
  threads.clear();
  EXPECT_EQ(refused, 4);
  EXPECT_EQ(ended, accepted);
  llm.drain();  // again
}

TEST(AsyncLLM, IsDestroyedWhileRequestsRunAndWait) {
  EventQueue events;
  {
    AsyncLLM llm(model(), options(2));
    for (int32_t r = 0; r < 5; ++r) llm.submit(long_request(), events);
    events.wait();
  }
  while (const auto event = events.poll()) EXPECT_FALSE(event->is_last()) << "no further events";
}

TEST(AsyncLLM, SleepsWithoutRequests) {
  AsyncLLM llm(model(), options(1));
  expect_answers(llm, 0, 1, 2);
  llm.engine();  // waits for the end of the last turn
  const int64_t before = llm.stats().heartbeat;
  EXPECT_GT(before, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(llm.stats().heartbeat, before);
}

TEST(AsyncLLM, StatsAreReadWhileItRuns) {
  EventQueue events;
  AsyncLLM llm(model(), options(2));
  llm.submit(long_request(), events), llm.submit(long_request(), events), llm.submit(long_request(), events);
  int64_t heartbeat = 0;
  for (int32_t left = 3; left > 0;) {
    const EngineStats stats = llm.stats();
    EXPECT_GE(stats.heartbeat, heartbeat);
    heartbeat = stats.heartbeat;
    EXPECT_LE(stats.running, 2);
    EXPECT_LE(stats.running + stats.waiting, 3);
    EXPECT_LE(stats.free_pages, stats.num_pages);
    EXPECT_GE(stats.num_states, 2) << "a hybrid with a state for each that runs";
    const auto event = events.wait_for(std::chrono::seconds(10));
    if (event && event->is_last()) --left;
  }
}

TEST(AsyncLLM, BadInputThrowsOnTheThreadThatSubmits) {
  EventQueue events;
  AsyncLLM llm(model(), options(2));
  llm.submit(long_request(), events);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&llm] {
      EventQueue unused;
      for (int i = 0; i < 20; ++i) {
        const auto refused = refusal_of([&] { llm.submit({.prompt_ids = Ids(128, 'a')}, unused); });
        EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument);
        EXPECT_NE(refused.sentence.find("the prompt has 128 tokens"), std::string::npos) << refused.sentence;
      }
      EXPECT_FALSE(unused.poll());
    });
  }
  threads.clear();
  EXPECT_EQ(refusal_of([] { const AsyncLLM none(model(), options(0)); }).sentence,
            "max_num_seqs is 0, expected 1 or more");
}

TEST(TextStream, GivesTheTextOfTheTokensOnTheConsumersThread) {
  constexpr int32_t kRequests = 8;
  AsyncLLM llm(model(), options(4));
  std::vector<std::jthread> threads;
  for (int32_t number = 0; number < kRequests; ++number) {
    threads.emplace_back([&llm, number] {
      EventQueue events;
      llm.submit(request_of(number), events);
      TextStream stream(llm.tokenizer(), {});
      Completion completion;
      std::string text;
      for (bool last = false; !last;) {
        const GenerationEvent event = events.wait();
        for (const StepOutput& out : event.outputs) text += stream.push(out, completion);
        last = event.is_last();
      }
      EXPECT_EQ(completion.ids, answers(kRequests)[static_cast<size_t>(number)]);
      EXPECT_EQ(text, completion.text);
      EXPECT_EQ(text, llm.tokenizer().decode(completion.ids));
      EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
    });
  }
}

TEST(LLM, CallsItsFunctionsOnTheCallersThreadAndInOrder) {
  LLM llm(model(), options(1));
  const auto caller = std::this_thread::get_id();
  std::string calls;
  GenerationRequest request = request_of(5);
  request.prompt_ids.resize(100, 'a');
  const Completion c = llm.generate(
      request.prompt_ids, request.params,
      [&](std::string_view, const Completion&) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        calls += 't';
        return StreamAction::kContinue;
      },
      [&](const StepReport& report) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        EXPECT_EQ(report.step, std::ssize(calls) / 2 + 1);
        calls += 's';
      });
  std::string wanted;
  for (size_t i = 0; i < c.ids.size(); ++i) wanted += "ts";
  EXPECT_EQ(calls, wanted);
}

// The engine is several steps ahead of a reader that takes its time.
TEST(LLM, TokensBehindAStopAreDropped) {
  LLM llm(model(), options(1));
  const GenerationRequest request = long_request();
  const auto generate = [&](size_t most) {
    return llm.generate(request.prompt_ids, request.params, [most](std::string_view, const Completion& so_far) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return so_far.ids.size() < most ? StreamAction::kContinue : StreamAction::kStop;
    });
  };
  const Completion whole = generate(200), part = generate(5);
  EXPECT_EQ(whole.ids.size(), 120u);
  EXPECT_EQ(part.ids, Ids(whole.ids.begin(), whole.ids.begin() + 5));
  EXPECT_EQ(part.num_forwards, 5);
  EXPECT_EQ(part.finish_reason, FinishReason::kAborted);
  EXPECT_TRUE(llm.engine().idle());
}

}  // namespace
}  // namespace headrace
