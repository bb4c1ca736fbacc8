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
  // Returns the stop text that came, after stopped(): of several at one place the one that was given first; else null.
  const std::string* stop() const { return stop_ < stops_.size() ? &stops_[stop_] : nullptr; }

 private:
  // Number of bytes at the end of `text` that begin a stop text.
  size_t held_back(std::string_view text) const;
  struct Found {
    size_t at = 0, stop = 0;  // position in a text, and which of stops_; the sizes of both if there is none
  };
  // Returns the first stop text in `text`.
  Found first_stop(std::string_view text) const;
  std::string shown(size_t count) const;  // shown text of the first `count` bytes of pending_
  // Index in pending_ of shown byte `at`; the end if past it.
  size_t place_of(size_t at) const;

  std::vector<std::string> stops_;
  std::string pending_;
  std::vector<Shown> marks_;  // per byte of pending_
  bool stopped_ = false;
  size_t stop_ = stops_.size();  // the one that came
};

}  // namespace headrace
