// Added tokens: pieces of text that are tokens before any pattern or merge sees them. Const methods are thread-safe.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // a control token: never made from text of the user
  bool normalized = false;   // matched in normalized text, else in raw text
  bool single_word = false;  // not next to a word character
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
};

// Reading of text that spells a special token. Other added tokens (`<think>`) match either way.
enum class SpecialTokens : uint8_t {
  kAsText,  // as the text that it is: the only safe choice for what a user typed
  kParse,   // as the token: for text that a template of the model made
};

// Bytes of a text.
struct TextSpan {
  size_t begin, end;
};

// Finds added tokens in text: at each place the longest one, from left to right without overlap.
class AddedTokenMatcher {
 public:
  // Matches `content` of each token; contents are valid UTF-8 and not empty, the first of equal ones counts.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  struct Segment {
    std::string_view text;      // refers into the text that was split
    std::optional<int32_t> id;  // the token it is; nullopt: text to encode
  };
  // The segments of `text`, which is valid UTF-8. None is empty. A match that its flags (or kAsText) forbid is text,
  // and is not searched again, as in the `tokenizers` package. As there, segments overlap in one case: a token of white
  // space behind one that takes it. `literal` (ascending, not empty, apart): with kParse, a special token that shares a
  // byte with these spans is text.
  std::vector<Segment> split(std::string_view text, SpecialTokens special,
                             std::span<const TextSpan> literal = {}) const;
  bool has_special() const { return std::ranges::any_of(tokens_, &AddedToken::special); }
  bool has_single_word() const { return std::ranges::any_of(tokens_, &AddedToken::single_word); }

 private:
  static constexpr int32_t kNone = -1;
  struct Node {
    int32_t token = kNone;  // index into tokens_
    std::vector<std::pair<char, int32_t>> children;
  };
  struct Match {
    size_t begin, end;
    const AddedToken* token;
  };

  int32_t child(int32_t node, char byte) const;
  void insert(int32_t token);
  std::optional<Match> find(std::string_view text, size_t from, std::span<const TextSpan> literal) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie over bytes; nodes_[0] is its root
};

}  // namespace headrace
