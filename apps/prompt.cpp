#include "prompt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <span>

#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"
#include "headrace/gguf/gguf_file.h"
#include "headrace/text/utf8.h"
#include "headrace/weights/config_file.h"
#include "input.h"
#include "model_path.h"

namespace headrace::app {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

// A pipe, a socket or a file, of which somebody wants the text read; no terminal, and not /dev/null.
bool has_piped_text() {
  struct stat status {};
  return fstat(STDIN_FILENO, &status) == 0 &&
         (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || S_ISREG(status.st_mode));
}

bool has_prompt(const GenerateFlags& flags) { return flags.prompt.has_value() || !flags.prompt_file.empty(); }

constexpr std::string_view kStandardInput = "-";

// Refuses more words behind a model than a prompt.
void refuse_second_model(const GenerateFlags& flags, std::span<const std::string> words) {
  const size_t prompts = has_prompt(flags) ? 0 : 1;
  if (words.size() != prompts + 1 || words.front().empty()) return;
  HR_REQUIRE(!find_model(words.front()), ErrorCode::kInvalidArgument, "two models are given, '", flags.model.model,
             "' and '", words.front(), "', expected one");
}

// The first special token, by id, that `prompt` spells.
std::optional<std::string> special_token_in(std::string_view prompt, const Tokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    std::optional<std::string> token = tokenizer.id_to_token(id);
    if (token && !token->empty() && prompt.find(*token) != prompt.npos) return token;
  }
  return std::nullopt;
}

// Returns true if the chat template adds nothing to `prompt`. One that cannot be applied changes it.
bool is_same_as_chat(std::string_view prompt, const std::filesystem::path& directory) {
  try {
    return as_chat(prompt, directory).text == repaired(prompt);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

ChatPrompt as_chat(std::string_view message, const std::filesystem::path& directory) {
  const std::optional<ChatTemplate> chat_template = ChatTemplate::of_model(directory);
  HR_REQUIRE(chat_template, ErrorCode::kInvalidArgument, "--chat: ", directory.string(), " has no chat template");
  const TemplateValue content = std::string(message);
  return chat_template->render({.messages = {TemplateValue::Object{{"role", "user"}, {"content", content}}}});
}

bool has_chat_template(const std::filesystem::path& directory) {
  if (is_gguf_path(directory)) return open_first_gguf(directory).header().has("tokenizer.chat_template");
  if (file_exists(directory / "chat_template.jinja") || file_exists(directory / "chat_template.json")) return true;
  const std::filesystem::path config = directory / "tokenizer_config.json";
  if (!file_exists(config)) return false;
  try {
    return read_json_file(config).find("chat_template") != nullptr;
  } catch (const Error&) {
    return false;  // whoever needs the file refuses it by name
  }
}

bool reads_as_text(std::string_view word) {
  if (std::ranges::any_of(word, is_space)) return true;
  while (!word.empty() && std::string_view(".,;:!?").find(word.back()) != std::string_view::npos) word.remove_suffix(1);
  const auto is_letter = [](char c) {  // letters of other scripts too: no path that people type has their bytes
    return (static_cast<unsigned char>(c) & 0x80u) != 0 || std::isalpha(static_cast<unsigned char>(c)) != 0 ||
           c == '\'';
  };
  return !word.empty() && std::ranges::all_of(word, is_letter);
}

std::optional<std::string> place_words(GenerateFlags& flags, std::string_view command) {
  ModelFlags& model = flags.model;
  std::span<const std::string> words = flags.words;
  std::optional<std::string> warning;
  if (model.model.empty() && !words.empty()) {
    const std::string& first = words.front();
    const bool one = words.size() == 1 && !has_prompt(flags) && model.revision.empty();
    const bool text = one && (first.empty() || first == kStandardInput || (reads_as_text(first) && !find_model(first)));
    HR_REQUIRE(text || !first.empty(), ErrorCode::kInvalidArgument,
               "--model: is empty, expected a directory or a name");
    HR_REQUIRE(words.size() == 1 || has_prompt(flags) || !reads_as_text(first) || find_model(first),
               ErrorCode::kInvalidArgument, "there is no model '", first, "'; a text of several words goes in quotes");
    if (!text) {
      model.model = first;
      words = words.subspan(1);
    } else if (reads_as_text(first) && !std::ranges::any_of(first, is_space)) {
      warning = fmt::format("there is no model '{}': the word is taken as the prompt", first);
    }
  }
  if (!words.empty()) refuse_second_model(flags, words);
  if (!words.empty() && !has_prompt(flags)) {
    if (words.front() == kStandardInput) {
      flags.prompt_file = words.front();
    } else {
      flags.prompt = words.front();
    }
    words = words.subspan(1);
  }
  HR_REQUIRE(words.empty(), ErrorCode::kInvalidArgument,
             fmt::format("'{}' is more than {} takes; a text of several words goes in quotes", fmt::join(words, " "),
                         command));
  return warning;
}

std::string prompt_of(const GenerateFlags& flags) {
  std::string text;
  if (flags.prompt) {
    text = *flags.prompt;
  } else if (!flags.prompt_file.empty()) {
    text = read_text(flags.prompt_file);
  } else {
    if (has_piped_text()) text = read_text("-");
    if (text.empty()) require_model_name(flags.model);  // a name that is none is the fault to speak of
    HR_REQUIRE(!text.empty(), ErrorCode::kInvalidArgument,
               "generate needs a prompt: headrace generate [MODEL] \"TEXT\", or --file FILE");
    if (text.ends_with('\n')) text.pop_back();
  }
  return flags.escape == GenerateFlags::Escape::kYes ? unescaped(text) : text;
}

std::string unescaped(std::string_view text) {
  constexpr std::string_view kNames = "ntr\\\"'", kMeanings = "\n\t\r\\\"'";
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t escape = text[i] == '\\' && i + 1 < text.size() ? kNames.find(text[i + 1]) : kNames.npos;
    out += escape == kNames.npos ? text[i] : kMeanings[escape];
    if (escape != kNames.npos) ++i;
  }
  return out;
}

std::optional<std::string> escape_warning(const GenerateFlags& flags) {
  if (flags.escape != GenerateFlags::Escape::kUnsaid || !flags.prompt || flags.prompt->find("\\n") == std::string::npos)
    return std::nullopt;
  return "the prompt holds \\n as two characters, which are not a line feed; --escape makes them one, --no-escape "
         "keeps them without this warning";
}

std::optional<std::string> template_warning(const GenerateFlags& flags, std::string_view prompt,
                                            const Tokenizer& tokenizer, const std::filesystem::path& directory) {
  const auto spelled = special_token_in(prompt, tokenizer);
  if (spelled && !flags.special_tokens) {
    return fmt::format(
        "the prompt spells the special token {}, which is read as plain text; --special-tokens reads it "
        "as the token",
        *spelled);
  }
  if (spelled || !has_chat_template(directory) || is_same_as_chat(prompt, directory)) return std::nullopt;
  return "this model has a chat template, which is not applied: the prompt is continued as it stands; --chat applies "
         "it";
}

}  // namespace headrace::app
