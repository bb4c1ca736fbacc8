// Settings of a chat, which /set changes.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.h"
#include "headrace/weights/config_file.h"

namespace headrace::app {

struct ChatSettings {
  // An absent seed: another one for each answer.
  SamplingFlags sampling{.params = {.max_tokens = kUntilFull}};
  std::optional<bool> enable_thinking = {};  // a variable of chat templates; absent: the template's own default
  bool shows_thinking = false;
  int32_t default_max_tokens = kUntilFull;  // the model's; no setting
};

// Sets what `name` calls; dashes and underscores are one. "default" takes a choice back. Error kInvalidArgument for a
// name that there is not, or a value that it does not take.
void set(ChatSettings& settings, std::string_view name, std::string_view value);

// The settings that differ from the defaults, values as JSON.
std::vector<std::pair<std::string, std::string>> chosen(const ChatSettings& settings);
// Sets the members of an object, as chosen() wrote them, and takes all other choices back. Errors as set, or
// kModelFile; then without effect.
void set_all(ChatSettings& settings, const JsonValue& params);

// A line for each setting: its name, its value, what it takes. `defaults`: the model's.
std::string settings_text(const ChatSettings& settings, const SamplingParams& defaults);

}  // namespace headrace::app
