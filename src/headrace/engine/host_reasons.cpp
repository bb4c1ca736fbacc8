#include "headrace/engine/host_reasons.h"

#include <algorithm>

#include "headrace/core/error.h"

namespace headrace {

void HostReasons::add(const std::string& reason) {
  if (std::ranges::find(list_, reason) != list_.end()) return;
  list_.push_back(reason);
  if (!log_) return;
  log_(LogLevel::kWarning,
       str("denoise steps go through the host, those of requests beside this one too, which takes longer: ", reason));
}

}  // namespace headrace
