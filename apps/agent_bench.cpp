#include "agent_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

#include "headrace/core/error.h"
#include "measured_server.h"
#include "measuring.h"
#include "output.h"
#include "thread_cpu_time.h"

namespace headrace::app {
namespace {

constexpr int32_t kNumAgents = 3, kAgentTurns = 20, kAgentOutputLen = 32, kAgentPrefixLen = 1024;

// One turn in all conversations.
struct AgentTurn {
  std::vector<double> ttft_s, alone_s;
  int64_t prompt_tokens = 0, new_tokens = 0, alone_tokens = 0;  // of the last conversation
  std::optional<int64_t> cached_tokens;
};

RequestResult answered(MeasuredServer& server, const LoadHistory& history, int64_t max_tokens) {
  RequestResult result = server.client().send(server.path(), server.body(history, max_tokens));
  HR_REQUIRE(result.is_complete(), ErrorCode::kIo, "bench agent: a request failed: ", result.error);
  return result;
}

// A conversation whose turns add random words, as results of tools would.
class Agent {
 public:
  Agent(MeasuredServer& server, const LoadFlags& load, int32_t input_len)
      : server_(server), load_(load), input_len_(input_len) {}

  void take_turn(AgentTurn& turn) {
    const TokenRatio& tokens = server_.tokens();
    const int64_t prefix = num_known_ == 0 ? load_.prefix_len.value_or(kAgentPrefixLen) : 0;
    history_.add_user(words(tokens.words_for(input_len_ + prefix)));
    const RequestResult result = answered(server_, history_, load_.output_len.value_or(kAgentOutputLen));
    history_.add_answer(result.answer);
    turn.ttft_s.push_back(result.ttft_s());
    turn.prompt_tokens = result.prompt_tokens, turn.cached_tokens = result.cached_tokens;
    turn.new_tokens = result.prompt_tokens - num_known_;
    num_known_ = result.prompt_tokens + result.output_tokens;
    measure_alone(turn);
  }

 private:
  // Right behind the turn, so that both see the same machine.
  void measure_alone(AgentTurn& turn) {
    LoadHistory alone;
    alone.add_user(words(server_.tokens().words_for_prompt(turn.new_tokens)));
    const RequestResult result = answered(server_, alone, 1);
    turn.alone_s.push_back(result.ttft_s());
    turn.alone_tokens = result.prompt_tokens;
  }
  std::string words(int64_t count) { return RandomWords(random_()).text(count); }

  MeasuredServer& server_;  // not owned
  const LoadFlags& load_;   // not owned
  const int32_t input_len_;
  std::mt19937_64 random_{std::random_device{}()};
  LoadHistory history_;
  int64_t num_known_ = 0;  // tokens of the last request and its answer
};

double ratio_of(const AgentTurn& turn) { return median(turn.ttft_s) / median(turn.alone_s); }

std::string turn_line(size_t number, const AgentTurn& turn) {
  return fmt::format(
      R"({{"name": "agent turn {}", "prompt_tokens": {}, "cached_tokens": {}, "new_tokens": {}, "ttft_ms": {:.3f}, )"
      R"("alone_tokens": {}, "alone_ttft_ms": {:.3f}, "ratio": {:.3f}}})"
      "\n",
      number, turn.prompt_tokens, turn.cached_tokens ? std::to_string(*turn.cached_tokens) : "null", turn.new_tokens,
      1e3 * median(turn.ttft_s), turn.alone_tokens, 1e3 * median(turn.alone_s), ratio_of(turn));
}

}  // namespace

void bench_agent(const ModelFlags& model, const LoadFlags& load, int32_t input_len) {
  MeasuredServer server(model, load, load.path.empty() ? std::string(kChatPath) : load.path);
  const int32_t conversations = load.num_prompts.value_or(kNumAgents);
  std::vector<AgentTurn> turns(static_cast<size_t>(load.turns.value_or(kAgentTurns)));
  {
    Measuring progress("turns");
    int64_t done = 0;
    for (int32_t i = 0; i < conversations; ++i) {
      Agent agent(server, load, input_len);
      for (AgentTurn& turn : turns) {
        agent.take_turn(turn);
        progress.update(++done, int64_t{conversations} * std::ssize(turns));
      }
    }
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < turns.size(); ++i) {
    write_out(turn_line(i + 1, turns[i]));
    if (i > 0 || turns.size() == 1) ratios.push_back(ratio_of(turns[i]));
  }
  write_out(fmt::format(R"({{"name": "agent turns, first tokens beside those of new texts alone", "turns": {}, )"
                        R"("median_ratio": {:.3f}, "largest_ratio": {:.3f}, "goal_ratio": 1.2}})"
                        "\n",
                        turns.size(), median(ratios), std::ranges::max(ratios)));
}

}  // namespace headrace::app
