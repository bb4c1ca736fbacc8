// A compiled pre-tokenizer pattern. Const methods are thread-safe: match state lives in the call.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

class Pattern {
 public:
  // `regex` as tokenizer.json writes it. Throws Error: kUnsupported (a construct that pcre2_syntax refuses), kModelFile
  // (no pattern).
  explicit Pattern(std::string_view regex);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // Appends the matches and what lies between them, in order: the pieces concatenate to `text` ("Isolated"). `text` is
  // valid UTF-8; the pieces refer into it. Throws Error(kInvalidArgument) if one match takes more steps than 1,000,000
  // plus 64 per byte of text: no family's pattern comes near, a hostile one does.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace headrace
