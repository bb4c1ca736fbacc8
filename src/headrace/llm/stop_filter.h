// Filters a text stream: holds back text that may begin a stop text, and hides special tokens.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

// One per stream; not thread-safe.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  enum class Shown : uint8_t { kYes, kNo };
  // Adds `piece` and returns the shown text that certainly belongs to no stop text; empty after stopped(). Finds stop
  // texts both in the whole text and in its shown part.
  std::string push(std::string_view piece, Shown shown = Shown::kYes);
  std::string flush();  // returns the held-back text at the end of the stream
  bool stopped() const { return stopped_; }

 private:
  // Number of bytes at the end of `text` that begin a stop text.
  size_t held_back(std::string_view text) const;
  // Position of the first stop text in `text`; its size if there is none.
  size_t first_stop(std::string_view text) const;
  std::string shown(size_t count) const;  // shown text of the first `count` bytes of pending_
  // Index in pending_ of shown byte `at`; the end if past it.
  size_t place_of(size_t at) const;

  std::vector<std::string> stops_;
  std::string pending_;
  std::vector<Shown> marks_;  // per byte of pending_
  bool stopped_ = false;
};

}  // namespace headrace
