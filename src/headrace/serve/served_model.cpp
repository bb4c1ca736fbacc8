#include "headrace/serve/served_model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "headrace/core/printable.h"
#include "headrace/serve/request_error.h"

namespace headrace {

ServedModel::ServedModel(AsyncLLM& llm, std::vector<std::string> names, std::optional<ChatTemplate> chat,
                         SamplingParams defaults)
    : llm_(llm),
      names_(std::move(names)),
      chat_(std::move(chat)),
      defaults_(std::move(defaults)),
      size_(llm.tokenizer(), llm.config().max_context_len),
      encoder_(llm.tokenizer()),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()) {}

std::string ServedModel::name_for(const std::string& asked) const {
  if (asked.empty()) return names_.front();
  if (std::ranges::find(names_, asked) != names_.end()) return asked;
  throw RequestError(404, str("model is '", printable(asked), "', expected '", names_.front(), "'"), "model",
                     "model_not_found");
}

}  // namespace headrace
