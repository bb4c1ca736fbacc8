#include "prompt_length.h"

#include "headrace/core/error.h"
#include "headrace/core/printable.h"

namespace headrace::app {

std::optional<std::string> prompt_length_warning(const ModelDescription& model, size_t num_tokens) {
  constexpr int kMostOfHint = 200;  // a sentence
  const JsonValue* file = model.generation_config();
  if (file == nullptr) return std::nullopt;
  const int64_t multiple = file->int_or("prompt_multiple", 1, 1, 1 << 20);
  if (static_cast<int64_t>(num_tokens) % multiple == 0) return std::nullopt;
  const std::string hint = file->string_or("prompt_hint", "");
  return str("the prompt has ", num_tokens, " tokens, expected a multiple of ", multiple,
             ": the model was trained on such prompts alone", hint.empty() ? "" : "; " + printable(hint, kMostOfHint));
}

}  // namespace headrace::app
