#include "load_progress.h"

#include <fmt/format.h>

namespace headrace::app {
namespace {

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

}  // namespace

std::string LoadProgress::update(int64_t done, int64_t total) {
  if ((total == 0 ? done : total) < least_) return "";
  // A step is a hundredth or a tenth; a quarter of a gigabyte or all of it where the end is not known.
  const int64_t steps = style_ == Style::kBar ? 100 : 10;
  const int64_t step = total == 0 ? done / (style_ == Style::kBar ? kLarge / 4 : kLarge) : done * steps / total;
  if (step == shown_) return "";
  shown_ = step;
  if (total == 0) {
    return fmt::format(fmt::runtime(style_ == Style::kBar ? "\r{} {:.1f} GB" : "{} {:.1f} GB\n"), work_,
                       gigabytes(done));
  }
  if (style_ == Style::kLines) {
    return fmt::format("{} {:.1f} of {:.1f} GB\n", work_, gigabytes(done), gigabytes(total));
  }
  constexpr int64_t kWidth = 32;
  const std::string bar(static_cast<size_t>(step * kWidth / steps), '#');
  return fmt::format("\r{} [{:<{}}] {:.1f} of {:.1f} GB", work_, bar, kWidth, gigabytes(done), gigabytes(total));
}

std::string LoadProgress::finish() { return style_ == Style::kBar && shown_ >= 0 ? kWipe : ""; }

}  // namespace headrace::app
