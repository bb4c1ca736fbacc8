#include "headrace/llm/text_stream.h"

#include <algorithm>

namespace headrace {

std::string TextStream::push(const StepOutput& out, Completion& result) {
  if (out.error) throw Error(*out.error);
  result.num_forwards = out.num_forwards;
  result.sequence_id = out.sequence_id;
  std::string piece;
  if (out.finish_reason != FinishReason::kAborted) {
    if (result.ids.empty()) first_forwards_ = out.num_forwards;
    result.ids.push_back(out.token.id);
    result.logprobs.push_back(out.token.logprob);
    result.num_reused = out.num_reused;
    piece = text_of(out);
  }
  if (out.finish_reason) {
    result.finish_reason = *out.finish_reason;
    piece += filtered(detokenizer_.flush());
    piece += stops_.flush();
  }
  if (stopped()) result.finish_reason = FinishReason::kStop;
  result.text += piece;
  count(result);
  return piece;
}

std::string TextStream::text_of(const StepOutput& out) {
  if (out.finish_reason == FinishReason::kStop) return {};  // end tokens have no text
  if (spells(out.token.id)) hidden_.push_back({num_bytes_, out.num_forwards});
  std::string piece = filtered(detokenizer_.push(out.token.id));
  if (hides(out.token.id))  // may match a stop text all the same
    piece += stops_.push(tokenizer_.bytes_of(out.token.id), StopFilter::Shown::kNo);
  return piece;
}

bool TextStream::spells(int32_t id) const {
  return !hides(id) && tokenizer_.id_to_token(id) && !tokenizer_.bytes_of(id).empty();
}

std::string TextStream::filtered(const std::string& text) {
  num_bytes_ += text.size();
  return stops_.push(text);
}

void TextStream::count(Completion& result) {
  const auto still = std::ranges::find_if(hidden_, [&](const Hidden& h) { return h.begin >= result.text.size(); });
  result.num_visible += static_cast<int32_t>(still - hidden_.begin());
  result.num_first += static_cast<int32_t>(
      std::count_if(hidden_.begin(), still, [this](const Hidden& h) { return h.num_forwards == first_forwards_; }));
  hidden_.erase(hidden_.begin(), still);
}

}  // namespace headrace
