// TextStream: the consumer's side of a request. Tokens in, text out.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/engine/engine.h"
#include "headrace/llm/completion.h"
#include "headrace/llm/stop_filter.h"
#include "headrace/text/detokenizer.h"
#include "headrace/text/tokenizer.h"

namespace headrace {

// Turns final tokens of one choice into text that cannot change any more. A token counts as visible once some of its
// text is out; tokens without text, or within a stop text, never count. Not thread-safe.
class TextStream {
 public:
  // `tokenizer` is not owned. `stops`: SamplingParams::stop. `special`: what becomes of special tokens.
  TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stops,
             SpecialText special = SpecialText::kSkip)
      : tokenizer_(tokenizer), special_(special), detokenizer_(tokenizer, special), stops_(stops) {}

  // Returns the text that `output` completes: often empty, never a stop text or anything after one, never an unfinished
  // character. Adds it and the token, if there is one, to `result`. Throws the output's error.
  std::string push(const StepOutput& output, Completion& result);
  // True once a stop text has come: `result` has ended, no further output may be pushed, and the request can be
  // aborted.
  bool stopped() const { return stops_.stopped(); }
  // Returns the stop text that came; else null.
  const std::string* stop() const { return stops_.stop(); }

 private:
  // A token without visible text so far.
  struct Hidden {
    size_t begin;  // bytes of text before it
    int32_t num_forwards;
  };
  std::string text_of(const StepOutput& output);
  bool hides(int32_t id) const { return special_ == SpecialText::kSkip && tokenizer_.is_special(id); }
  bool spells(int32_t id) const;
  std::string filtered(const std::string& text);
  void count(Completion& result);

  const Tokenizer& tokenizer_;  // not owned
  SpecialText special_;
  Detokenizer detokenizer_;
  StopFilter stops_;
  size_t num_bytes_ = 0;  // bytes from the detokenizer, before stop texts
  std::vector<Hidden> hidden_;
  int32_t first_forwards_ = 0;
};

}  // namespace headrace
