// Holds back text that may be the beginning of a stop text.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

// One per stream; not thread-safe.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The text that is certain not to belong to a stop text. After stopped() it is empty.
  std::string push(std::string_view piece);
  std::string flush();  // what was held back, when the stream ends without a stop text
  bool stopped() const { return stopped_; }

 private:
  size_t held_back() const;  // bytes at the end of pending_ that begin a stop text

  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace headrace
