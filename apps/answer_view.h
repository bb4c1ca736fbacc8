// An answer on the screen while it is made: what the model thinks is folded into one line, or shown dimmed.
#pragma once
#include <string>
#include <string_view>

#include "headrace/chat/reasoning_stream.h"
#include "screen.h"
#include "seconds_since.h"

namespace headrace::app {

class AnswerView {
 public:
  enum class Thinking : unsigned char { kShow, kHide };
  // `prompt`: the rendered conversation. `screen` is not owned.
  AnswerView(Screen& screen, std::string_view prompt, Thinking thinking)
      : screen_(screen), stream_(prompt), thinking_(thinking) {}

  void wait(size_t prompt_tokens);  // while no token has come
  void text(std::string_view piece);
  void finish();

  // So far; all of it after finish().
  const ReasoningStream::Parts& parts() const { return parts_; }

 private:
  void add(const ReasoningStream::Parts& parts);
  void add_thought(const std::string& text);
  void end_thought();

  Screen& screen_;
  ReasoningStream stream_;
  Thinking thinking_;
  ReasoningStream::Parts parts_;
  Clock::time_point start_ = Clock::now(), drawn_ = {};
  bool has_begun_ = false, has_thought_ = false;  // has_thought_: its end is not shown yet
};

// "thinking... 3.2 s  last words": as many of them as fit into the columns.
std::string thinking_line(double seconds, std::string_view thought, int columns);

}  // namespace headrace::app
