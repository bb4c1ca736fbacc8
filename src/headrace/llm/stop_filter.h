// Holds back text that may be the beginning of a stop text, and hides that of special tokens.
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
  // The shown text that is certain not to belong to a stop text. After stopped() it is empty. Stop texts are found in
  // the whole text, and in what is shown of it.
  std::string push(std::string_view piece, Shown shown = Shown::kYes);
  std::string flush();  // what was held back, when the stream ends without a stop text
  bool stopped() const { return stopped_; }

 private:
  // Bytes at the end of `text` that begin a stop text.
  size_t held_back(std::string_view text) const;
  // Where the first stop text in `text` begins; its size if there is none.
  size_t first_stop(std::string_view text) const;
  std::string shown(size_t count) const;  // of the first bytes of pending_
  // Where shown byte `at` lies in pending_; its end for the end.
  size_t place_of(size_t at) const;

  std::vector<std::string> stops_;
  std::string pending_;
  std::vector<Shown> marks_;  // of each byte of it
  bool stopped_ = false;
};

}  // namespace headrace
