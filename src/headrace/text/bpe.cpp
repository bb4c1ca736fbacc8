#include "headrace/text/bpe.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/text/byte_level.h"
#include "headrace/text/utf8.h"

namespace headrace {
namespace {

int32_t required_id(const Vocabulary& vocabulary, const std::string& token, size_t rank, const char* role) {
  const std::optional<int32_t> id = vocabulary.id_of(token);
  HR_REQUIRE(id, ErrorCode::kModelFile, "model.merges[", rank, "]: its ", role, " '", printable(token),
             "' is not in the vocabulary");
  return *id;
}

// For std::push_heap, whose top is the greatest: the lowest rank, then the leftmost.
bool merges_later(const Bpe::Candidate& a, const Bpe::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, std::vector<bool> may_make, const Merges& merges, WholeWords whole_words,
         Alphabet alphabet)
    : vocabulary_(&vocabulary),
      may_make_(std::move(may_make)),
      merges_(merges.size()),
      whole_words_(whole_words),
      alphabet_(alphabet) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling = alphabet == Alphabet::kBytes ? spelled(std::string(1, static_cast<char>(byte)))
                                                              : fallback_spelling(static_cast<uint8_t>(byte));
    const std::optional<int32_t> id = vocabulary.id_of(spelling);
    HR_REQUIRE(id, ErrorCode::kModelFile, "model.vocab lacks '", spelling, "', the spelling of byte ", byte,
               "; such a vocabulary has all 256");
    HR_REQUIRE(may_make_[static_cast<size_t>(*id)], ErrorCode::kModelFile, "added_tokens: '", spelling,
               "' is special, but it is the spelling of byte ", byte, ", which any text may hold");
    byte_ids_[static_cast<size_t>(byte)] = *id;
  }
  std::string merged;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    merged.assign(left).append(right);
    const MergeTable::Merge merge{.left = required_id(vocabulary, left, rank, "left side"),
                                  .right = required_id(vocabulary, right, rank, "right side"),
                                  .rank = static_cast<int32_t>(rank),
                                  .merged = required_id(vocabulary, merged, rank, "result")};
    if (may_make_[static_cast<size_t>(merge.merged)]) merges_.insert(merge);
  }
}

void Bpe::push_candidate(Scratch& s, int32_t left) const {
  const Symbol& symbol = s.symbols[static_cast<size_t>(left)];
  if (symbol.next == kNone) return;
  const MergeTable::Merge* merge = merges_.find(symbol.id, s.symbols[static_cast<size_t>(symbol.next)].id);
  if (merge == nullptr) return;
  s.heap.push_back({merge->rank, left, merge->merged});
  std::push_heap(s.heap.begin(), s.heap.end(), merges_later);
}

void Bpe::push_symbols(std::string_view word, Scratch& s) const {
  const auto push = [&s](int32_t id) {
    const auto at = static_cast<int32_t>(s.symbols.size());
    s.symbols.push_back({.id = id, .previous = at - 1, .next = at + 1, .merged_away = false});
  };
  for (size_t at = 0; at < word.size();) {
    size_t end = at + 1;
    if (alphabet_ == Alphabet::kCharacters) {
      next_code_point(word, end = at);
      const std::optional<int32_t> id = vocabulary_->id_of(word.substr(at, end - at));
      if (id && may_make_[static_cast<size_t>(*id)]) {
        push(*id);
        at = end;
        continue;
      }
    }
    for (; at < end; ++at) push(byte_ids_[static_cast<uint8_t>(word[at])]);
  }
}

void Bpe::start_word(std::string_view word, Scratch& s) const {
  s.symbols.clear();
  s.heap.clear();
  push_symbols(word, s);
  if (!s.symbols.empty()) s.symbols.back().next = kNone;
  for (int32_t i = 0; i < static_cast<int32_t>(s.symbols.size()); ++i) push_candidate(s, i);
}

void Bpe::merge_all(Scratch& s) const {
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end(), merges_later);
    const Candidate top = s.heap.back();
    s.heap.pop_back();
    Symbol& left = s.symbols[static_cast<size_t>(top.left)];
    if (left.merged_away || left.next == kNone) continue;
    Symbol& right = s.symbols[static_cast<size_t>(left.next)];
    // A candidate is stale when a neighbour has grown since it was pushed.
    const MergeTable::Merge* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->merged != top.merged) continue;
    left.id = top.merged;
    right.merged_away = true;
    left.next = right.next;
    if (left.next != kNone) s.symbols[static_cast<size_t>(left.next)].previous = top.left;
    push_candidate(s, top.left);
    if (left.previous != kNone) push_candidate(s, left.previous);
  }
}

void Bpe::encode(std::string_view word, Scratch& s, std::vector<int32_t>& ids) const {
  HR_REQUIRE(word.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()), ErrorCode::kInvalidArgument,
             "text: a word of ", word.size(), " bytes, expected less than 2^31");
  if (whole_words_ == WholeWords::kTakeFirst) {
    const std::optional<int32_t> id =
        alphabet_ == Alphabet::kBytes ? vocabulary_->id_of(spelled(word)) : vocabulary_->id_of(word);
    if (id && may_make_[static_cast<size_t>(*id)]) return ids.push_back(*id);
  }
  start_word(word, s);
  merge_all(s);
  for (int32_t i = word.empty() ? kNone : 0; i != kNone; i = s.symbols[static_cast<size_t>(i)].next) {
    ids.push_back(s.symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace headrace
