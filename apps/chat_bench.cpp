#include "chat_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "random_prompt.h"

namespace headrace::app {
namespace {

constexpr int32_t kPromptLen = 64, kAnswerLen = 512, kRounds = 5;
constexpr int32_t kSharedPromptLen = 8192;  // at most; it fits the context

using Ids = std::vector<int32_t>;

struct MeasuredTurn {
  Ids answer;
  double first_token_s = 0;
  int32_t num_reused = 0;
};

MeasuredTurn run_turn(Engine& engine, const Ids& prompt, int32_t max_tokens) {
  MeasuredTurn turn;
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

Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

double median_of(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
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
    text = joined(joined(std::move(text), answer), next);
    const MeasuredTurn second = run_turn(engine, text, 1);
    seconds.push_back(second.first_token_s);
    num_reused = second.num_reused;
    num_tokens = static_cast<int32_t>(text.size());
  }
  report({.name = fmt::format("first token of a second turn, {} of {} tokens reused, {} {} {}", num_reused, num_tokens,
                              info.architecture, info.weight_types(), to_string(llm.device())),
          .median_s = median_of(std::move(seconds)),
          .limit_rate = std::nullopt});
}

// The first token of a prompt whose first 80 % two requests have computed, beside that of a prompt as long as the
// rest.
void bench_shared_beginning(LLM& llm, const bench::Report& report) {
  Engine engine(llm.model(), llm.config());
  EngineConfig without = llm.config();
  without.keep_text = SchedulerConfig::KeepText::kNo;
  Engine without_cache(llm.model(), without);
  const ModelInfo& info = llm.model_info();
  const int32_t most = std::min(kSharedPromptLen, llm.config().max_context_len - 2),
                page = llm.config().runner.page_size;
  const int32_t shared_len = most * 4 / 5 / page * page, own_len = most - shared_len;
  std::vector<double> seconds, of_rest, of_rest_without;
  int32_t num_reused = 0;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const Ids shared = random_prompt(info, shared_len, 100 + 4 * round);
    // The second request leaves a state where it parts from the first, for the third.
    run_turn(engine, joined(shared, random_prompt(info, own_len, 1001 + 4 * round)), 1);
    run_turn(engine, joined(shared, random_prompt(info, own_len, 101 + 4 * round)), 1);
    const MeasuredTurn third = run_turn(engine, joined(shared, random_prompt(info, own_len, 102 + 4 * round)), 1);
    seconds.push_back(third.first_token_s);
    num_reused = third.num_reused;
    const Ids rest = random_prompt(info, own_len, 103 + 4 * round);
    of_rest.push_back(run_turn(engine, rest, 1).first_token_s);
    of_rest_without.push_back(run_turn(without_cache, rest, 1).first_token_s);
  }
  const std::string model = fmt::format("{} {} {}", info.architecture, info.weight_types(), to_string(llm.device()));
  report({.name =
              fmt::format("first token behind a shared beginning, {} of {} tokens reused, {}", num_reused, most, model),
          .median_s = median_of(std::move(seconds)),
          .limit_rate = std::nullopt});
  report({.name = fmt::format("first token of {} tokens alone, {}", own_len, model),
          .median_s = median_of(std::move(of_rest)),
          .limit_rate = std::nullopt});
  report({.name = fmt::format("first token of {} tokens alone, without the prefix cache, {}", own_len, model),
          .median_s = median_of(std::move(of_rest_without)),
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
  bench_shared_beginning(llm, report);
}

}  // namespace headrace::app
