#include "template_bench.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "headrace/chat/chat_template.h"
#include "headrace/chat/prompt_encoder.h"
#include "headrace/core/error.h"
#include "load_text.h"
#include "output.h"
#include "thread_cpu_time.h"

namespace headrace::app {
namespace {

constexpr int kTemplateTurns = 20, kTemplateRuns = 31, kWordsOfMessage = 60;
constexpr double kGoalRenderUs = 2000;

// As clients send them: a system's message, then a user's and an answer in turn, and the user's last one.
ChatInput chat_of(int turns) {
  RandomWords words(1);
  ChatInput chat;
  const auto add = [&](const char* role) {
    chat.messages.emplace_back(TemplateValue::Object{{"role", role}, {"content", words.text(kWordsOfMessage)}});
  };
  add("system");
  for (int turn = 1; turn < turns; ++turn) add("user"), add("assistant");
  add("user");
  return chat;
}

template <class Work>
double median_us(const Work& work) {
  std::vector<double> microseconds;
  microseconds.reserve(kTemplateRuns);
  for (int run = 0; run < kTemplateRuns; ++run) microseconds.push_back(cpu_microseconds_of(work));
  return median(std::move(microseconds));
}

// The cost of the last turn where those before it were encoded already.
void bench_grown(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const ChatPrompt& prompt) {
  const ChatPrompt earlier = chat_template.render(chat_of(kTemplateTurns - 1));
  std::vector<std::unique_ptr<PromptEncoder>> encoders;
  encoders.reserve(kTemplateRuns);
  for (int run = 0; run < kTemplateRuns; ++run) {
    encoders.push_back(std::make_unique<PromptEncoder>(tokenizer));
    encoders.back()->encode(earlier);
  }
  size_t next = 0;
  const double encode_us = median_us([&] { encoders[next++]->encode(prompt); });
  write_out(fmt::format(R"({{"name": "tokens of its last turn", "median_us": {:.1f}, "goal_us": null}})"
                        "\n",
                        encode_us));
}

}  // namespace

void bench_template(const std::filesystem::path& model) {
  const auto chat_template = ChatTemplate::of_model(model);
  HR_REQUIRE(chat_template, ErrorCode::kInvalidArgument, "bench template: ", model.string(), " has no chat template");
  const ChatInput chat = chat_of(kTemplateTurns);
  ChatPrompt prompt = chat_template->render(chat);
  const double render_us = median_us([&] { prompt = chat_template->render(chat); });
  write_out(fmt::format(R"({{"name": "template of a chat of {} turns, {} bytes", "median_us": {:.1f}, "goal_us": {}}})"
                        "\n",
                        kTemplateTurns, prompt.text.size(), render_us, kGoalRenderUs));
  const Tokenizer tokenizer = Tokenizer::from_directory(model);
  std::vector<int32_t> ids;
  const double encode_us = median_us([&] { ids = encode(tokenizer, prompt); });
  write_out(fmt::format(R"({{"name": "tokens of a chat of {} turns, {} ids", "median_us": {:.1f}, "goal_us": null}})"
                        "\n",
                        kTemplateTurns, ids.size(), encode_us));
  bench_grown(*chat_template, tokenizer, prompt);
}

}  // namespace headrace::app
