// Token spellings and ids, both ways. Built once, then read; const methods are thread-safe.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
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
  Vocabulary(Vocabulary&&) = default;
  Vocabulary(const Vocabulary&) = delete;  // by_token_ refers into tokens_

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // one past the largest id
  std::optional<int32_t> id_of(std::string_view token) const;
  std::string_view token(int32_t id) const;  // empty for an id that no token has

 private:
  std::vector<std::string> tokens_;  // by id
  std::unordered_map<std::string_view, int32_t> by_token_;
};

}  // namespace headrace
