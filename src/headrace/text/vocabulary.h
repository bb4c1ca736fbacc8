// Token spellings and ids, both ways. Built once, then read; const methods are thread-safe.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

class Vocabulary {
 public:
  struct Entry {
    std::string token;  // as tokenizer.json spells it; valid UTF-8, not empty
    int32_t id;         // not negative
  };

  // Throws Error(kModelFile) for a token or an id that two different entries claim, and for ids far beyond their
  // number.
  explicit Vocabulary(std::vector<Entry> entries);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // one past the largest id
  std::optional<int32_t> id_of(std::string_view token) const;
  std::string_view token(int32_t id) const;  // empty for an id that no token has

 private:
  // Open addressing with linear probing: a start looks up each of a quarter of a million tokens three times, and in
  // nodes of a standard map, each somewhere else, that was two fifths of what reading a tokenizer took.
  struct Slot {
    uint32_t hash = 0;
    int32_t id = kEmpty;
  };
  static constexpr int32_t kEmpty = -1;
  static uint32_t hash_of(std::string_view token);

  // The token's slot, or the empty one that is to be it.
  size_t slot_of(std::string_view token, uint32_t hash) const;

  std::vector<std::string> tokens_;  // by id
  std::vector<Slot> slots_;          // a power of two, at least twice the tokens
};

}  // namespace headrace
