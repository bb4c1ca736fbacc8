// Shows the progress of a measurement.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::app {

// One line on standard error, where that is a terminal, written over at each hundredth and wiped at the end.
class Measuring {
 public:
  explicit Measuring(std::string_view unit);
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;
  ~Measuring();

  void update(int64_t done, int64_t total);  // of `unit`s

 private:
  std::string unit_;
  bool shows_;
  int64_t shown_ = -1;  // hundredths
};

}  // namespace headrace::app
