#include "download_progress.h"

#include <fmt/format.h>

#include <cmath>

#include "headrace/core/human_bytes.h"

namespace headrace::app {
namespace {

using std::chrono::milliseconds;

milliseconds interval_of(DownloadProgressText::Style style) {
  using Style = DownloadProgressText::Style;
  return milliseconds(style == Style::kBar ? 200 : style == Style::kJson ? 1000 : 5000);
}

// "45 s", "12:05", "1:02:05"
std::string duration_text(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

double DownloadProgressText::bytes_per_s(const Sample& now) const {
  const double seconds = std::chrono::duration<double>(now.time - samples_.front().time).count();
  return seconds > 0 ? static_cast<double>(now.bytes - samples_.front().bytes) / seconds : 0;
}

std::string DownloadProgressText::update(int64_t bytes, int64_t total, Time now) {
  if (samples_.empty() || now - samples_.back().time >= milliseconds(200)) samples_.push_back({now, bytes});
  while (now - samples_.front().time > std::chrono::seconds(10)) samples_.pop_front();
  if (next_ == Time() && style_ == Style::kLines) next_ = now + interval_of(style_);  // short ones are silent
  if (now < next_) return "";
  next_ = now + interval_of(style_);
  shown_ = true;
  const double rate = bytes_per_s({now, bytes});
  const double left_s = rate > 0 ? static_cast<double>(total - bytes) / rate : 0;
  if (style_ == Style::kJson) {
    return fmt::format(R"({{"event": "progress", "bytes": {}, "total": {}, "bytes_per_s": {:.0f}}})"
                       "\n",
                       bytes, total, rate);
  }
  const std::string state = fmt::format(
      "{} of {}{}", human_bytes(bytes), human_bytes(total),
      rate > 0 ? fmt::format(", {}/s, {} left", human_bytes_of(rate), duration_text(left_s)) : std::string());
  if (style_ == Style::kLines) return state + "\n";
  constexpr int64_t kWidth = 24;
  const auto filled = total > 0 ? static_cast<size_t>(bytes * kWidth / total) : 0;
  return fmt::format("\r\033[K[{:<{}}] {}", std::string(filled, '#'), kWidth, state);
}

std::string DownloadProgressText::finish() const { return style_ == Style::kBar && shown_ ? "\r\033[K" : ""; }

}  // namespace headrace::app
