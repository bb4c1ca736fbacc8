#include "headrace/engine/token_occurrence.h"

#include <algorithm>
#include <bit>

#include "headrace/core/device_runtime.h"

namespace headrace {

// Grows the bitmaps or reassigns the least recently used. A text that lost its bitmap starts from an empty one.
void TokenOccurrence::make_room(std::span<const PenalizedRows> rows) {
  if (rows.size() > texts_.size()) {
    const Shape shape = {std::ssize(rows), PenalizeTokensArgs::words_of(vocab_)};
    seen_ = Tensor(DType::kI32, shape, runtime_);
    texts_.assign(rows.size(), {});
    indices_.clear();
  }
  ++calls_;
  for (const PenalizedRows& one : rows) {
    const auto known = indices_.find(one.text);
    if (known != indices_.end()) texts_[static_cast<size_t>(known->second)].last_call = calls_;
  }
  for (const PenalizedRows& one : rows) {
    if (indices_.contains(one.text)) continue;
    Text& oldest = *std::ranges::min_element(texts_, {}, &Text::last_call);
    const auto index = static_cast<int32_t>(&oldest - texts_.data());
    if (oldest.name) indices_.erase(*oldest.name);
    indices_.emplace(one.text, index);
    oldest = {.name = one.text, .last_call = calls_};
    forget(index);
  }
}

void TokenOccurrence::forget(int32_t index) {
  Text& text = texts_[static_cast<size_t>(index)];
  text.num_final = 0, text.rest.clear();
  const TensorView bits = seen_.view().select(index);
  runtime_.fill_zero(bits.data(), static_cast<size_t>(bits.bytes()));
}

void TokenOccurrence::bring_up_to_date(int32_t index, const PenalizedRows& rows, std::optional<int32_t> open_id,
                                       Added& added) {
  const std::span known = rows.tokens;
  Text& text = texts_[static_cast<size_t>(index)];
  const auto size = static_cast<int32_t>(known.size());
  const auto kept = [&](int32_t at) {
    const int32_t before = text.rest[static_cast<size_t>(at - text.num_final)];
    return before == known[static_cast<size_t>(at)] || before == open_id;
  };
  bool grown = size >= text.num_final + static_cast<int32_t>(text.rest.size());
  for (int32_t at = text.num_final; grown && text.has(at); ++at) grown = kept(at);
  if (!grown) forget(index);  // a token was withdrawn; another position may hold the same id
  for (int32_t at = text.num_final; at < size; ++at) {
    const int32_t id = known[static_cast<size_t>(at)];
    if (text.has(at) && text.rest[static_cast<size_t>(at - text.num_final)] == id) continue;
    added.ids.push_back(id), added.texts.push_back(index);
  }
  text.num_final = std::min(rows.num_final, size);
  text.rest.assign(known.begin() + text.num_final, known.end());
}

void TokenOccurrence::penalize(const TensorView& logits, std::span<const PenalizedRows> rows,
                               std::optional<int32_t> open_id) {
  make_room(rows);
  const int64_t count = logits.dim(0);
  // [rows] indices of texts, then [rows] bits of penalties
  std::vector<int32_t> words(static_cast<size_t>(2 * count), -1);
  Added added;
  for (const PenalizedRows& one : rows) {
    const int32_t index = indices_.at(one.text);
    bring_up_to_date(index, one, open_id, added);
    const auto of_rows = [&](int64_t part) {
      return std::span(words).subspan(static_cast<size_t>(part * count + one.first), static_cast<size_t>(one.count));
    };
    std::ranges::fill(of_rows(0), index);
    std::ranges::fill(of_rows(1), std::bit_cast<int32_t>(one.penalty));
  }
  const auto many = std::ssize(added.ids);
  words.insert(words.end(), added.ids.begin(), added.ids.end());
  words.insert(words.end(), added.texts.begin(), added.texts.end());
  const Tensor there(DType::kI32, {std::ssize(words)}, runtime_);
  runtime_.copy_to_device(there.data(), words.data(), words.size() * sizeof(int32_t));
  const auto part = [&](DType type, int64_t at, int64_t size) {
    return TensorView(static_cast<int32_t*>(there.data()) + at, type, {size}, runtime_.device());
  };
  ops_.penalize_tokens({.logits = logits,
                        .vocab = vocab_,
                        .seen = seen_,
                        .new_ids = part(DType::kI32, 2 * count, many),
                        .new_texts = part(DType::kI32, 2 * count + many, many),
                        .texts = part(DType::kI32, 0, count),
                        .penalties = part(DType::kF32, count, count)},
                       context_);
}

}  // namespace headrace
