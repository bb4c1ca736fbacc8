// Blocks redrawn in place on a terminal while they are denoised.
#pragma once
#include <string>
#include <string_view>

#include "headrace/llm/step_recorder.h"
#include "headrace/text/tokenizer.h"

namespace headrace::app {

// Final text flows as usual; behind it stand the tokens that may still be joined by others: decided ones coloured by
// their probability, undecided ones as a shaded cell. Makes the bytes to write, and writes nothing itself.
class DenoiseView {
 public:
  enum class Colours : unsigned char { kYes, kNo };
  struct Size {
    int columns = 80, rows = 24;  // each at least 1
  };
  // `tokenizer` is not owned.
  DenoiseView(const Tokenizer& tokenizer, Size terminal, Colours colours)
      : tokenizer_(tokenizer), columns_(terminal.columns), rows_(terminal.rows), colours_(colours) {}

  // Text that became final; drawn by the next show().
  void add(std::string_view text) { fresh_ += text; }
  // What brings the screen from the last state to this one. Of what is pending, as much as the screen holds: the cursor
  // cannot go back to rows that have scrolled off it.
  std::string show(const StepReport& report);
  // The same at the end: nothing is pending any more.
  std::string finish();

 private:
  std::string redraw(const std::string& pending, int pending_cells);
  // Takes the next character of the final text, and moves column_ along. A tab is spaces up to the next stop or the
  // line's end, since where the cursor stands must be known; other control characters would do what they say.
  std::string next_drawn();
  std::string drawn(const std::optional<StepReport::Token>& token, int& cells) const;

  const Tokenizer& tokenizer_;
  int columns_, rows_;
  Colours colours_;
  std::string fresh_;        // final text that is not on the screen yet
  int column_ = 0;           // where the final text on the screen ends
  bool broke_line_ = false;  // the final text filled a line, and the cursor was sent to the next one
  int pending_cells_ = 0;    // drawn behind it
};

// Cells that a terminal shows `text` in; control characters count as none.
int cells_of(std::string_view text);

}  // namespace headrace::app
