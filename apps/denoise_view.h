// Blocks redrawn in place on a terminal while they are denoised.
#pragma once
#include <string>
#include <string_view>

#include "headrace/llm/step_recorder.h"
#include "headrace/text/tokenizer.h"
#include "terminal.h"

namespace headrace::app {

// Final text flows as usual; behind it stand the tokens that may still be joined by others: decided ones coloured by
// their probability, undecided ones as a shaded cell. Makes the bytes to write, and writes nothing itself.
class DenoiseView {
 public:
  enum class Colours : unsigned char { kYes, kNo };
  // kYes: the terminal breaks long lines anew when its width changes, as most do. Others keep or cut rows.
  enum class Reflow : unsigned char { kYes, kNo };
  // `tokenizer` is not owned.
  DenoiseView(const Tokenizer& tokenizer, TerminalSize terminal, Colours colours, Reflow reflow = Reflow::kYes)
      : tokenizer_(tokenizer), columns_(terminal.columns), rows_(terminal.rows), colours_(colours), reflow_(reflow) {}

  // The window as it is now; to be said before show() and finish(), as people resize it at any time.
  void resize(TerminalSize terminal);

  // Text that became final; drawn by the next show().
  void add(std::string_view text) { fresh_ += text; }
  // Returns the text that changes the screen from the last state to this one. It shows as much of the pending text as
  // the screen holds: the cursor cannot go back to rows that have scrolled off it.
  std::string show(const StepReport& report);
  // Returns the text for the end, where nothing is pending.
  std::string finish();

 private:
  std::string redraw(const std::string& pending, int pending_cells);
  // From behind what is pending back to where the final text ends, with nothing behind it.
  std::string erase_pending() const;
  // Moves column_ along by a character of so many cells.
  void advance(int cells);
  // Takes the next character of the final text, and moves column_ along. A tab is spaces up to the next stop or the
  // line's end, since where the cursor stands must be known; other control characters would do what they say.
  std::string next_drawn();
  std::string drawn(const std::optional<StepReport::Token>& token, int& cells) const;

  const Tokenizer& tokenizer_;
  int columns_, rows_;
  Colours colours_;
  Reflow reflow_;
  std::string fresh_;        // final text that is not on the screen yet
  std::string line_;         // that is, behind its last line break: a terminal breaks it anew
  int column_ = 0;           // where the final text on the screen ends
  bool broke_line_ = false;  // the final text filled a line, and the cursor was sent to the next one
  int pending_cells_ = 0;    // drawn behind it
  int rows_below_ = 0;       // of the cursor, below the row in which the final text ends
};

// Cells that a terminal shows `text` in; control characters count as none.
int cells_of(std::string_view text);

}  // namespace headrace::app
