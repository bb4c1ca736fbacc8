#include "headrace/text/detokenizer.h"

#include <utility>

#include "headrace/text/utf8.h"

namespace headrace {
namespace {

constexpr char32_t kReplacementCharacter = 0xFFFD;

}  // namespace

std::string Detokenizer::push(int32_t id) {
  if (special_ == SpecialText::kSkip && tokenizer_->is_special(id)) return {};
  if (!tokenizer_->id_to_token(id)) return {};  // it spells nothing, and ends no run
  if (tokenizer_->is_fallback_byte(id)) {
    run_ += tokenizer_->bytes_of(id);
    return {};
  }
  std::string text = end_run();
  pending_ += tokenizer_->bytes_of(id);
  const size_t num_left = append_repaired(pending_, text);
  pending_.erase(0, pending_.size() - num_left);
  return text;
}

std::string Detokenizer::end_run() {
  std::string run = std::exchange(run_, {});
  if (is_valid_utf8(run)) return run;
  std::string text;
  for (size_t i = 0; i < run.size(); ++i) append_utf8(kReplacementCharacter, text);
  return text;
}

std::string Detokenizer::flush() { return end_run() + repaired(std::exchange(pending_, {})); }

}  // namespace headrace
