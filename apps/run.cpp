#include "run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <memory>

#include "answer_length.h"
#include "chat_loop.h"
#include "chat_session.h"
#include "checked_model.h"
#include "decoding_flags.h"
#include "exit_status.h"
#include "headrace/core/file_exists.h"
#include "headrace/gguf/gguf_file.h"
#include "headrace/models/model_registry.h"
#include "headrace/text/json_string.h"
#include "input.h"
#include "interrupt.h"
#include "load_model.h"
#include "model_files.h"
#include "model_flags.h"
#include "option_values.h"
#include "output.h"
#include "prompt.h"
#include "sampling_flags.h"

namespace headrace::app {
namespace {

constexpr const char* kDefaultModel = "fairy-hybrid";

// Returns the message on the command line and what is piped in, one behind the other; nothing: a chat.
std::optional<std::string> given_message(const GenerateFlags& flags) {
  std::optional<std::string> message = flags.prompt;
  if (!flags.prompt_file.empty()) message = read_text(flags.prompt_file);
  if (flags.prompt_file == "-" || isatty(STDIN_FILENO) != 0) return message;
  std::string piped = read_text("-");
  while (piped.ends_with('\n')) piped.pop_back();
  if (!message) return piped;
  return piped.empty() ? *message : piped + "\n\n" + *message;
}

std::string token_of_gguf(const std::filesystem::path& path, std::string_view name) {
  const GgufFile file = open_first_gguf(path);
  const auto id = file.header().integer(str("tokenizer.ggml.", name, "_id"));
  const auto* const tokens = file.header().texts("tokenizer.ggml.tokens");
  const bool is_there = id && tokens != nullptr && *id >= 0 && std::cmp_less(*id, tokens->size());
  return is_there ? std::string((*tokens)[static_cast<size_t>(*id)]) : "";
}

// The bos_token or eos_token of templates; empty where tokenizer_config.json, or a GGUF file, has none.
std::string named_token(const std::filesystem::path& directory, std::string_view name) {
  if (is_gguf_path(directory)) return token_of_gguf(directory, name);
  const std::filesystem::path file = directory / "tokenizer_config.json";
  if (!file_exists(file)) return "";
  const JsonValue config = read_json_file(file);
  const JsonValue* token = config.find(name);
  if (token == nullptr) return "";
  return token->is_object() ? token->at("content").as_string() : token->as_string();
}

ChatTemplate chat_template_of(const RunFlags& flags, const std::filesystem::path& directory) {
  if (!flags.template_file.empty()) {
    return ChatTemplate::from_text(read_text(flags.template_file), named_token(directory, "bos_token"),
                                   named_token(directory, "eos_token"));
  }
  std::optional<ChatTemplate> found = ChatTemplate::of_model(directory);
  HR_REQUIRE(found, ErrorCode::kUnsupported, flags.generate.model.model,
             " has no chat template: headrace generate continues a text with it, and --chat-template FILE brings one");
  return std::move(*found);
}

// "12 M parameters", or nothing where no files say.
std::string size_text(const ModelDescription& model, const LLMOptions& options) {
  if (options.random_weights) return "random weights";
  const auto parameters = static_cast<double>(model_summary(model, {}).parameters);
  return parameters >= 1e9 ? fmt::format("{:.1f} B parameters", parameters / 1e9)
                           : fmt::format("{:.0f} M parameters", parameters / 1e6);
}

std::string answer_json(const ChatSession& session) {
  const Turn& turn = *session.last_turn();
  const Completion& c = turn.completion;
  const ChatMessage& answer = session.conversation.messages.back();
  return fmt::format(
      R"({{"model": {}, "message": {}, "finish_reason": "{}", "ids": [{}], "usage": {{"prompt_tokens": {}, )"
      R"("completion_tokens": {}, "prompt_tokens_details": {{"cached_tokens": {}}}}}, "seed": {}, )"
      R"("timings": {{"first_token_s": {:.4f}, "total_s": {:.4f}}}}})"
      "\n",
      json_string(session.conversation.model), message_json(answer), name_of(c.finish_reason), fmt::join(c.ids, ", "),
      c.prompt_ids.size(), c.num_visible, c.num_reused, turn.seed, turn.first_token_s, turn.total_s);
}

int answer_one(ChatSession& session, const std::string& message, const GenerateFlags& flags) {
  HR_REQUIRE(!message.empty(), ErrorCode::kInvalidArgument, "the message is empty, expected a text");
  const Turn& turn = session.ask(message);
  if (session.reader_gone()) return 0;  // a closed pipe is the reader's choice
  if (turn.completion.ids.empty()) return kInterrupted;
  write_out(flags.json ? answer_json(session) : "\n");
  return interrupted() ? kInterrupted : 0;
}

}  // namespace

void add_run_flags(CLI::App& app, RunFlags& f) {
  GenerateFlags& g = f.generate;
  app.option_defaults()->group("Chat");
  app.add_option("words", g.words, "[MODEL] [PROMPT]")->group("");  // place_words reads them
  CLI::Option* prompt =
      app.add_option("-p,--prompt", g.prompt, "one message, which is answered; PROMPT means the same");
  app.add_option("-f,--file", g.prompt_file, "read the message from FILE; -: from standard input")
      ->type_name(kFile)
      ->excludes(prompt);
  app.add_option("--system", f.system, "how the model is to answer: the first message, of the role system");
  app.add_option("--chat-template", f.template_file, "a Jinja template in place of the model's own")->type_name(kFile);
  app.add_option_function<std::string>(
         "--thinking", [&f](const std::string& value) { f.settings.shows_thinking = value == "show"; },
         "what the model thinks before it answers: show it, or hide it behind one line (default: hide)")
      ->check(CLI::IsMember({"show", "hide"}));
  app.add_option("--enable-thinking", f.settings.enable_thinking,
                 "the variable of chat templates: true or false (default: the template's own)");
  app.add_flag("--json", g.json, "with PROMPT: print one JSON object: the message, token ids, usage, timings");
  g.sampling.params.max_tokens = kUntilFull;
  add_sampling_flags(app, g.sampling);
  app.get_option("--max-tokens")->default_str("the model's max_new_tokens, else -1");
  add_model_flags(app, g.model, "-m,--model");
  add_decoding_flags(app, g.decoding, g.sampling.params);
}

int run(RunFlags flags) {
  GenerateFlags& g = flags.generate;
  const std::optional<std::string> about_words = place_words(g, "run");
  if (g.model.model.empty()) g.model.model = kDefaultModel;
  const auto [options, description] = checked_model(g, kDefaultModel);
  ChatTemplate chat_template = chat_template_of(flags, description.directory);
  const std::optional<std::string> message = given_message(g);
  HR_REQUIRE(message || !g.json, ErrorCode::kInvalidArgument, "--json: needs a PROMPT beside it: it is of one answer");
  HR_REQUIRE(message || g.decoding.trace.empty(), ErrorCode::kInvalidArgument,
             "--trace: needs a PROMPT beside it: it is of one answer");
  for (const auto& sentence : {about_words, message ? not_utf8("the message", *message) : std::nullopt}) {
    if (sentence && options.log) options.log(LogLevel::kWarning, *sentence);
  }
  if (!options.random_weights) require_model_files(description.directory);
  const auto llm = load_with_progress<LLM>(description, options);
  ChatSession session(*llm, std::move(chat_template), g);
  session.conversation.model = g.model.model;
  session.settings = flags.settings;
  session.settings.sampling = g.sampling;
  session.settings.default_max_tokens = default_max_tokens(description, llm->config(), llm->model_info());
  if (g.sampling.params.max_tokens == kUntilFull) {
    session.settings.sampling.params.max_tokens = session.settings.default_max_tokens;
  }
  session.set_system(flags.system);
  finish_when_interrupted();
  return message ? answer_one(session, *message, g) : chat(session, size_text(description, options));
}

}  // namespace headrace::app
