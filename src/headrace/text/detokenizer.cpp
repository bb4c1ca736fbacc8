#include "headrace/text/detokenizer.h"

#include <utility>

#include "headrace/text/utf8.h"

namespace headrace {

std::string Detokenizer::push(int32_t id) {
  if (special_ == SpecialText::kSkip && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->bytes_of(id);
  std::string text;
  const size_t num_left = append_repaired(pending_, text);
  pending_.erase(0, pending_.size() - num_left);
  return text;
}

std::string Detokenizer::flush() { return repaired(std::exchange(pending_, {})); }

}  // namespace headrace
