#include "measuring.h"

#include <fmt/format.h>
#include <unistd.h>

#include "output.h"

namespace headrace::app {

Measuring::Measuring(std::string_view unit) : unit_(unit), shows_(isatty(STDERR_FILENO) != 0) {}

Measuring::~Measuring() {
  if (shown_ >= 0) write_err("\r\033[K");
}

void Measuring::update(int64_t done, int64_t total) {
  const int64_t hundredths = total > 0 ? 100 * done / total : 100;
  if (!shows_ || hundredths == shown_) return;
  shown_ = hundredths;
  write_err(fmt::format("\r{} of {} {}", done, total, unit_));
}

}  // namespace headrace::app
