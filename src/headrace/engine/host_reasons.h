// Records why steps run through the host although the device-side denoise loop exists.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "headrace/core/log.h"

namespace headrace {

// Keeps each reason once, in order of arrival. Not thread-safe.
class HostReasons {
 public:
  explicit HostReasons(LogCallback log) : log_(std::move(log)) {}

  // Logs a new reason as a warning, too.
  void add(const std::string& reason);
  const std::vector<std::string>& list() const { return list_; }

 private:
  LogCallback log_;
  std::vector<std::string> list_;
};

}  // namespace headrace
