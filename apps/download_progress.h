// Shows how far a download is.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>

namespace headrace::app {

class DownloadProgressText {
 public:
  using Time = std::chrono::steady_clock::time_point;

  enum class Style : uint8_t {
    kBar,    // of a terminal: one line that is written over, and wiped at the end
    kLines,  // a line every five seconds
    kJson,   // a JSON object a second
  };
  explicit DownloadProgressText(Style style) : style_(style) {}

  // Returns the text to write, empty where it is too early for one. The rate is that of the last ten seconds.
  std::string update(int64_t bytes, int64_t total, Time now);
  std::string finish() const;  // wipes the bar

 private:
  struct Sample {
    Time time;
    int64_t bytes;
  };
  double bytes_per_s(const Sample& now) const;

  Style style_;
  std::deque<Sample> samples_;
  Time next_{};
  bool shown_ = false;
};

}  // namespace headrace::app
