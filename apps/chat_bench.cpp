#include "chat_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "random_prompt.h"

namespace headrace::app {
namespace {

constexpr int32_t kPromptLen = 64, kAnswerLen = 512, kRounds = 5;

using Ids = std::vector<int32_t>;

struct Turn {
  Ids answer;
  double first_token_s = 0;
  int32_t num_reused = 0;
};

Turn run_turn(Engine& engine, const Ids& prompt, int32_t max_tokens) {
  Turn turn;
  const auto start = std::chrono::steady_clock::now();
  engine.add(prompt, {.max_tokens = max_tokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
  while (!engine.idle()) {
    for (const StepOutput& out : throw_if_failed(engine.step())) {
      if (turn.answer.empty()) {
        turn.first_token_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
      turn.answer.push_back(out.token.id);
      turn.num_reused = out.num_reused;
    }
  }
  return turn;
}

void bench_second_turns(LLM& llm, SchedulerConfig::KeepText keep, const bench::Report& report) {
  EngineConfig config = llm.config();
  config.keep_text = keep;
  Engine engine(llm.model(), config);
  const ModelInfo& info = llm.model_info();
  std::vector<double> seconds;
  int32_t num_reused = 0, num_tokens = 0;
  for (int32_t round = 0; round < kRounds; ++round) {
    // Each round has texts of its own, so that no turn continues another round's.
    const auto seed = static_cast<uint64_t>(round);
    Ids text = random_prompt(info, kPromptLen, seed);
    const Ids answer = run_turn(engine, text, kAnswerLen).answer,
              next = random_prompt(info, kPromptLen, seed + kRounds);
    text.insert(text.end(), answer.begin(), answer.end());
    text.insert(text.end(), next.begin(), next.end());
    const Turn second = run_turn(engine, text, 1);
    seconds.push_back(second.first_token_s);
    num_reused = second.num_reused;
    num_tokens = static_cast<int32_t>(text.size());
  }
  std::ranges::sort(seconds);
  report({.name = fmt::format("first token of a second turn, {} of {} tokens reused, {} {} {}", num_reused, num_tokens,
                              info.architecture, name_of(info.dtype), to_string(llm.device())),
          .median_s = seconds[seconds.size() / 2],
          .limit_rate = std::nullopt});
}

}  // namespace

void bench_chat(LLM& llm, const bench::Report& report) {
  HR_REQUIRE(llm.config().max_context_len > 2 * kPromptLen + kAnswerLen, ErrorCode::kInvalidArgument,
             "bench chat: ", 2 * kPromptLen + kAnswerLen, " tokens and an answer do not fit a context of ",
             llm.config().max_context_len);
  for (const auto keep : {SchedulerConfig::KeepText::kNo, SchedulerConfig::KeepText::kYes}) {
    bench_second_turns(llm, keep, report);
  }
}

}  // namespace headrace::app
