#include "chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "headrace/core/human_bytes.h"
#include "headrace/core/printable.h"
#include "headrace/core/scope_end.h"
#include "interrupt.h"
#include "sampling_flags.h"

namespace headrace::app {
namespace {

uint64_t drawn_seed() {
  std::random_device device;
  return device();
}

bool has_system(const Conversation& c) { return !c.messages.empty() && c.messages.front().role == "system"; }

// A difference between the template's text and the last prompt, if it is why text was computed again.
std::string other_text(const PrefixMiss& miss, const Tokenizer& tokenizer) {
  if (miss.why != PrefixMiss::Why::kOtherText || miss.cached_text.empty()) return "";
  const auto differ = std::ranges::mismatch(miss.cached_text, miss.own_text);
  const auto from = [&tokenizer](auto begin, auto end) {
    return printable(tokenizer.decode(std::vector<int32_t>(begin, end)), 30);
  };
  return fmt::format("           {} tokens on, the cache has '{}', and the prompt '{}'\n",
                     differ.in1 - miss.cached_text.begin(), from(differ.in1, miss.cached_text.end()),
                     from(differ.in2, miss.own_text.end()));
}

std::string turn_text(const Turn& turn, const Tokenizer& tokenizer) {
  const Completion& c = turn.completion;
  const auto prompt = static_cast<int32_t>(c.prompt_ids.size());
  const double rest_s = turn.total_s - turn.first_token_s;
  const int32_t rest = c.num_visible - c.num_first;
  std::string text = fmt::format("prompt     {} tokens, {} of them cached; first token after {:.2f} s\n", prompt,
                                 c.num_reused, turn.first_token_s);
  text += fmt::format("answer     {} tokens{}, {}\n", c.ids.size(),
                      rest > 0 && rest_s > 0 ? fmt::format(", {:.1f} tokens/s", rest / rest_s) : "",
                      fmt::format("seed {}", turn.seed));
  if (turn.miss && turn.miss->why != PrefixMiss::Why::kNone)
    text += fmt::format("cache      {}\n{}", to_string(*turn.miss), other_text(*turn.miss, tokenizer));
  return text;
}

}  // namespace

ChatPrompt ChatSession::render(const std::string& message) const {
  std::vector<ChatMessage> messages = conversation.messages;
  messages.push_back({.role = "user", .content = message});
  ChatInput input{.messages = template_messages(messages)};
  if (settings.enable_thinking) input.kwargs.emplace_back("enable_thinking", *settings.enable_thinking);
  return template_.render(input);
}

SamplingParams ChatSession::params() const {
  SamplingParams params = params_of(settings.sampling, llm_.default_params(settings.sampling.params.decoding.schedule));
  if (!params.seed) params.seed = drawn_seed();
  return params;
}

Turn ChatSession::generate(AnswerView& view, Screen& screen, const std::vector<int32_t>& ids) {
  const auto start = Clock::now();
  Turn turn;
  const SamplingParams params = this->params();
  turn.seed = *params.seed;
  turn.completion = llm_.generate(
      ids, params,
      [&](std::string_view piece, const Completion& so_far) {
        if (so_far.ids.empty()) {
          view.wait(ids.size());
        } else {
          if (turn.first_token_s == 0) turn.first_token_s = seconds_since(start);
          view.text(piece);
        }
        return screen.reader_gone() || interrupted() ? StreamAction::kStop : StreamAction::kContinue;
      },
      screen.on_step());
  turn.total_s = seconds_since(start);
  turn.miss = llm_.engine().why_miss(turn.completion.sequence_id);
  return turn;
}

const Turn& ChatSession::ask(const std::string& message) {
  ChatPrompt prompt = render(message);
  std::vector<int32_t> ids = known_.encode(prompt);
  const auto context = static_cast<size_t>(llm_.config().max_context_len);
  HR_REQUIRE(ids.size() < context, ErrorCode::kInvalidArgument, "the conversation has ", ids.size(),
             " tokens with this message, and the context holds ", context,
             ": /clear forgets the conversation, -c N makes the context larger");
  Screen screen(flags_, llm_);
  AnswerView view(screen, prompt.text,
                  settings.shows_thinking ? AnswerView::Thinking::kShow : AnswerView::Thinking::kHide);
  last_turn_ = generate(view, screen, ids);
  view.finish();
  reader_gone_ = screen.reader_gone();
  const Completion& answer = last_turn_->completion;
  if (!answer.ids.empty()) {
    conversation.messages.push_back({.role = "user", .content = message});
    conversation.messages.push_back(
        {.role = "assistant", .content = view.parts().content, .reasoning = view.parts().reasoning});
    known_.answered(std::move(prompt), std::move(ids), answer.ids);
  }
  return *last_turn_;
}

void ChatSession::set_system(const std::string& text) {
  auto& messages = conversation.messages;
  if (has_system(conversation)) messages.erase(messages.begin());
  if (!text.empty()) messages.insert(messages.begin(), {.role = "system", .content = text});
}

void ChatSession::clear() {
  auto& messages = conversation.messages;
  messages.erase(messages.begin() + (has_system(conversation) ? 1 : 0), messages.end());
}

std::string ChatSession::stats_text() const {
  const EngineStats stats = llm_.async().stats();
  const auto used = last_turn_ ? last_turn_->completion.prompt_ids.size() + last_turn_->completion.ids.size() : 0;
  std::string text = fmt::format("model      {}, {}, on {}\n", conversation.model, llm_.model_info().architecture,
                                 to_string(llm_.device()));
  text += fmt::format("context    {} of {} tokens after the last answer, {} messages\n", used,
                      llm_.config().max_context_len, conversation.messages.size());
  if (last_turn_) text += turn_text(*last_turn_, llm_.tokenizer());
  return text + fmt::format("engine     {} tokens computed in {} steps\n", stats.rows, stats.steps);
}

}  // namespace headrace::app
