// Why steps go through the host on a device that denoises blocks by itself.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "headrace/core/log.h"

namespace headrace {

// Each reason once, in the order in which they came. Not thread-safe.
class HostReasons {
 public:
  explicit HostReasons(LogCallback log) : log_(std::move(log)) {}

  // A new one is a warning of the log too.
  void add(const std::string& reason);
  const std::vector<std::string>& list() const { return list_; }

 private:
  LogCallback log_;
  std::vector<std::string> list_;
};

}  // namespace headrace
