// Tells a model's thinking from its answer while both stream.
#pragma once
#include <string>
#include <string_view>

namespace headrace {

// Thinking stands between "<think>" and "</think>" at the beginning of an answer. Not thread-safe.
class ReasoningStream {
 public:
  struct Parts {
    std::string reasoning, content;  // without the tags and the white space beside them
  };
  // `prompt`: the rendered conversation. If it ends with "<think>" and white space, the answer begins with thinking.
  explicit ReasoningStream(std::string_view prompt);

  // Returns what `text` completes. A text that may yet become a tag waits.
  Parts push(std::string_view text);
  Parts finish();  // what still waits; call it once, behind the last text
  bool is_thinking() const { return is_thinking_; }

 private:
  bool read_opening();  // false: needs more text
  bool skip_space();    // false: needs more text
  void read_thinking(Parts& parts);

  bool is_thinking_ = false;
  bool may_begin_ = true;  // nothing but white space has come yet
  bool trims_ = false;     // white space behind a tag goes
  std::string pending_;
};

}  // namespace headrace
