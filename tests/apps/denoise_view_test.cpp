// DenoiseView against a small terminal: whatever it writes, the screen shows the final text and the pending tokens.
#include "apps/denoise_view.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <clocale>
#include <utility>
#include <vector>

#include "text/tiny_tokenizer.h"

namespace headrace::app {
namespace {

// Rows of cells. As terminals do, a full line keeps the cursor on its last cell until the next character comes.
class Terminal {
 public:
  explicit Terminal(int columns) : columns_(columns) {}

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      if (bytes.starts_with("\x1b[")) {
        const size_t end = bytes.find_first_of("ACJm", 2);
        control(bytes[end], end > 2 ? std::stoi(std::string(bytes.substr(2, end - 2))) : 0);
        bytes.remove_prefix(end + 1);
      } else {
        const size_t size = (bytes[0] & 0x80) == 0 ? 1 : (bytes[0] & 0xf0) == 0xe0 ? 3 : 2;
        put(std::string(bytes.substr(0, size)));
        bytes.remove_prefix(size);
      }
    }
  }
  // Rows that ended because a line was full become one line again, which is broken at the new width. The cursor stays
  // behind the character that it stood behind.
  void resize(int columns) {
    std::vector<std::vector<std::string>> rows;
    size_t cursor_row = 0;
    int cursor_column = 0;
    for (size_t first = 0; first < rows_.size();) {
      std::vector<std::string> line;
      size_t last = first, cursor = std::string::npos;
      for (;; ++last) {
        if (last == row_) cursor = line.size() + static_cast<size_t>(column_);
        line.insert(line.end(), rows_[last].begin(), rows_[last].end());
        if (last + 1 >= rows_.size() || !wrapped_[last]) break;
      }
      const size_t begin = rows.size(), width = static_cast<size_t>(columns);
      for (size_t at = 0; at == 0 || at < line.size(); at += width) {
        rows.emplace_back(line.begin() + static_cast<long>(at),
                          line.begin() + static_cast<long>(std::min(line.size(), at + width)));
        rewrapped_.push_back(at + width < line.size());
      }
      if (cursor != std::string::npos) {
        const size_t row = cursor == 0 ? 0 : (cursor - 1) / width;
        cursor_row = begin + row;
        cursor_column = static_cast<int>(cursor - row * width);
        for (; rows.size() <= cursor_row; rewrapped_.push_back(false)) rows.emplace_back();
      }
      first = last + 1;
    }
    rows_ = std::move(rows), wrapped_ = std::exchange(rewrapped_, {});
    row_ = cursor_row, column_ = cursor_column, columns_ = columns;
  }
  // Without empty rows at the end: a full line may or may not have sent the cursor to the next one.
  std::string text() const {
    std::string all;
    for (const auto& row : rows_) {
      for (const std::string& cell : row) all += cell;
      all += "|";
    }
    while (all.ends_with('|')) all.pop_back();
    return all;
  }

 private:
  void control(char command, int n) {
    if (command == 'A') row_ -= static_cast<size_t>(n);
    if (command == 'C') column_ += n;
    if (command == 'J') {
      rows_.resize(row_ + 1);
      wrapped_.resize(row_ + 1);
      wrapped_[row_] = false;
      rows_[row_].resize(std::min(rows_[row_].size(), static_cast<size_t>(column_)));
    }
  }
  void put(const std::string& character) {
    if (character == "\r") {
      column_ = 0;
    } else if (character == "\t") {  // up to the next stop, or the line's end
      do put(" ");
      while (column_ % 8 != 0 && column_ != columns_);
    } else if (character == "\n" || column_ == columns_) {
      column_ = 0;
      wrapped_[row_] = character != "\n";
      if (++row_ == rows_.size()) rows_.emplace_back(), wrapped_.push_back(false);
      if (character != "\n") put(character);
    } else {
      auto& row = rows_[row_];
      row.resize(std::max(row.size(), static_cast<size_t>(column_) + 1));
      row[static_cast<size_t>(column_++)] = character;
    }
  }

  int columns_, column_ = 0;
  size_t row_ = 0;
  std::vector<std::vector<std::string>> rows_ = {{}};
  std::vector<bool> wrapped_ = {false}, rewrapped_;  // for each row: whether the next one goes on with its line
};

// What the screen must show: `text` on an empty terminal.
std::string shown(int columns, const std::string& text) {
  Terminal terminal(columns);
  terminal.write(text);
  return terminal.text();
}

StepReport pending(const std::vector<int>& ids) {  // a negative id is a mask
  StepReport report;
  for (const int id : ids) {
    report.pending.push_back(id < 0 ? std::nullopt : std::optional(StepReport::Token{.id = id, .confidence = 0.6f}));
  }
  return report;
}

class DenoiseViewTest : public ::testing::Test {
 protected:
  void SetUp() override { std::setlocale(LC_CTYPE, "C.UTF-8"); }
  Tokenizer tokenizer_ = Tokenizer::from_json(TinyTokenizer().json());
};

TEST_F(DenoiseViewTest, ShowsMasksAsShadesAndColoursOnlyWhenAllowed) {
  DenoiseView plain(tokenizer_, {}, DenoiseView::Colours::kNo), coloured(tokenizer_, {}, DenoiseView::Colours::kYes);
  EXPECT_EQ(plain.show(pending({-1, -1})), "░░");
  EXPECT_EQ(coloured.show(pending({-1})), "\x1b[2m░\x1b[0m");
}

TEST_F(DenoiseViewTest, RedrawsInPlaceAndLeavesTheTextAlone) {
  DenoiseView view(tokenizer_, {}, DenoiseView::Colours::kNo);
  view.add("Once ");
  EXPECT_EQ(view.show(pending({-1, -1})), "Once ░░");
  view.add("upon");
  EXPECT_EQ(view.show(pending({-1})), "\r\x1b[5C\x1b[Jupon░");
  EXPECT_EQ(view.finish(), "\r\x1b[9C\x1b[J");
}

TEST_F(DenoiseViewTest, ShowsNoMoreThanTheScreenHolds) {
  DenoiseView view(tokenizer_, {.columns = 5, .rows = 3}, DenoiseView::Colours::kNo);
  view.add("abc");
  const std::string shown = view.show(pending(std::vector<int>(40, -1)));
  EXPECT_EQ(cells_of(shown), 3 + 2 * 5);  // in three rows, the text's among them
  EXPECT_TRUE(view.finish().starts_with("\x1b[2A"));
}

TEST_F(DenoiseViewTest, ATabIsSpacesToTheNextStopFromWhereItStands) {
  DenoiseView view(tokenizer_, {}, DenoiseView::Colours::kNo);
  view.add("a\t");
  EXPECT_EQ(view.show(pending({-1})), "a       ░");
  view.add("b\tc");
  EXPECT_EQ(view.show(pending({})), "\r\x1b[8C\x1b[Jb       c");
}

TEST_F(DenoiseViewTest, AModelsControlCharactersDoNothingToTheTerminal) {
  DenoiseView view(tokenizer_, {}, DenoiseView::Colours::kNo);
  view.add("a\x1b[2Jb\r\x07\x7f\xc2\x9b");
  EXPECT_EQ(view.show(pending({-1})), "a·[2Jb····░");
  EXPECT_EQ(view.finish(), "\r\x1b[10C\x1b[J");
}

RC_GTEST_FIXTURE_PROP(DenoiseViewTest, TheScreenIsTheFinalTextAndThePendingTokens, ()) {
  const int columns = *rc::gen::inRange(3, 12);
  DenoiseView view(tokenizer_, {.columns = columns, .rows = 1000}, DenoiseView::Colours::kYes);
  Terminal terminal(columns);
  std::string text;
  for (int step = 0; step < 6; ++step) {
    const auto piece = *rc::gen::container<std::string>(rc::gen::element('a', 'b', ' ', '\n', '\t', '\r'));
    const auto masks = *rc::gen::container<std::vector<int>>(rc::gen::just(-1));
    view.add(piece);
    for (const char c : piece) text += c == '\r' ? "·" : std::string(1, c);
    terminal.write(view.show(pending(masks)));
    std::string wanted = text;
    for (size_t i = 0; i < masks.size(); ++i) wanted += "░";
    RC_ASSERT(terminal.text() == shown(columns, wanted));
  }
  terminal.write(view.finish());
  RC_ASSERT(terminal.text() == shown(columns, text));
}

// The characters on the screen, wherever lines end.
std::string characters(std::string text) {
  std::erase(text, '|');
  return text;
}

// Frames piled up when a window became narrower while a block was denoised: the width was read once.
TEST_F(DenoiseViewTest, FramesDoNotPileUpInANarrowerWindow) {
  DenoiseView view(tokenizer_, {.columns = 12, .rows = 24}, DenoiseView::Colours::kNo);
  Terminal terminal(12);
  view.add("Once upon");
  terminal.write(view.show(pending(std::vector<int>(8, -1))));
  EXPECT_EQ(terminal.text(), "Once upon░░░|░░░░░");
  terminal.resize(5);
  view.resize({.columns = 5, .rows = 24});
  terminal.write(view.show(pending(std::vector<int>(8, -1))));
  EXPECT_EQ(terminal.text(), "Once |upon░|░░░░░|░░");
  terminal.resize(20);
  view.resize({.columns = 20, .rows = 24});
  view.add(" a");
  terminal.write(view.show(pending({-1})));
  EXPECT_EQ(terminal.text(), "Once upon a░");
}

TEST_F(DenoiseViewTest, RowsThatATerminalKeepsAreGoneBackAsTheyWere) {
  DenoiseView view(tokenizer_, {.columns = 6, .rows = 24}, DenoiseView::Colours::kNo, DenoiseView::Reflow::kNo);
  view.add("abc");
  view.show(pending(std::vector<int>(8, -1)));
  view.resize({.columns = 4, .rows = 24});
  EXPECT_EQ(view.finish(), "\x1b[1A\r\x1b[3C\x1b[J");
}

RC_GTEST_FIXTURE_PROP(DenoiseViewTest, NoCharacterIsLostOrLeftBehindInAWindowThatIsResized, ()) {
  int columns = *rc::gen::inRange(3, 12);
  DenoiseView view(tokenizer_, {.columns = columns, .rows = 1000}, DenoiseView::Colours::kYes);
  Terminal terminal(columns);
  std::string text;
  for (int step = 0; step < 8; ++step) {
    const auto piece = *rc::gen::container<std::string>(rc::gen::element('a', 'b', '\n'));
    const auto masks = *rc::gen::container<std::vector<int>>(rc::gen::just(-1));
    if (*rc::gen::arbitrary<bool>()) columns = *rc::gen::inRange(3, 12);
    terminal.resize(columns);
    view.resize({.columns = columns, .rows = 1000});
    view.add(piece);
    text += piece;
    terminal.write(view.show(pending(masks)));
    std::string wanted = characters(shown(1000, text));
    for (size_t i = 0; i < masks.size(); ++i) wanted += "░";
    RC_ASSERT(characters(terminal.text()) == wanted);
  }
  terminal.write(view.finish());
  RC_ASSERT(characters(terminal.text()) == characters(shown(1000, text)));
}

}  // namespace
}  // namespace headrace::app
