#include "headrace/llm/stop_filter.h"

#include <algorithm>
#include <utility>

namespace headrace {

size_t StopFilter::held_back() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > longest; --n) {
      if (pending_.compare(pending_.size() - n, n, stop, 0, n) == 0) longest = n;
    }
  }
  return longest;
}

std::string StopFilter::push(std::string_view piece) {
  if (stopped_) return "";
  pending_ += piece;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, pending_.find(stop));
  stopped_ = first != std::string::npos;
  const size_t certain = stopped_ ? first : pending_.size() - held_back();
  std::string out = pending_.substr(0, certain);
  pending_.erase(0, stopped_ ? pending_.size() : certain);
  return out;
}

std::string StopFilter::flush() { return std::exchange(pending_, ""); }

}  // namespace headrace
