// Reads lines from a terminal, with editing and a history.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "line_history.h"

namespace headrace::app {

// The terminal must be standard input. One exists at a time. Not thread-safe.
class LineEditor {
 public:
  explicit LineEditor(LineHistory history);
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  ~LineEditor();

  struct Line {
    enum class End : uint8_t { kTyped, kGivenUp, kClosed } end = End::kTyped;  // Enter, Ctrl-C, Ctrl-D
    std::string text = {};  // what was typed, without a line feed at its end; a pasted text may have some within
  };
  // Needs finish_when_interrupted(); takes an interrupt.
  Line read(const std::string& prompt);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace headrace::app
