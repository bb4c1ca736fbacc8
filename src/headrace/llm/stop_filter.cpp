#include "headrace/llm/stop_filter.h"

#include <algorithm>

namespace headrace {

size_t StopFilter::held_back(std::string_view text) const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

StopFilter::Found StopFilter::first_stop(std::string_view text) const {
  Found first{text.size(), stops_.size()};
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t at = text.find(stops_[i]);
    if (at < first.at) first = {at, i};
  }
  return first;
}

std::string StopFilter::shown(size_t count) const {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    if (marks_[i] == Shown::kYes) text += pending_[i];
  }
  return text;
}

size_t StopFilter::place_of(size_t at) const {
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (marks_[i] == Shown::kYes && at-- == 0) return i;
  }
  return pending_.size();
}

std::string StopFilter::push(std::string_view piece, Shown is_shown) {
  if (stopped_) return "";
  pending_ += piece;
  marks_.resize(pending_.size(), is_shown);
  const std::string visible = shown(pending_.size());
  const Found in_all = first_stop(pending_), in_visible = first_stop(visible);
  size_t certain = std::min(in_all.at, place_of(in_visible.at));
  stopped_ = certain < pending_.size();
  if (stopped_) stop_ = in_all.at == certain ? in_all.stop : in_visible.stop;
  if (!stopped_) {
    const size_t held = pending_.size() - held_back(pending_);
    certain = std::min(held, place_of(visible.size() - held_back(visible)));
  }
  std::string out = shown(certain);
  const size_t done = stopped_ ? pending_.size() : certain;
  pending_.erase(0, done);
  marks_.erase(marks_.begin(), marks_.begin() + static_cast<std::ptrdiff_t>(done));
  return out;
}

std::string StopFilter::flush() {
  std::string out = shown(pending_.size());
  pending_.clear(), marks_.clear();
  return out;
}

}  // namespace headrace
