// A line in the log for each request that the server has answered.
#pragma once
#include <functional>

#include "headrace/core/log.h"
#include "headrace/serve/call.h"
#include "log_sink.h"

namespace headrace::app {

// Returns the callback that writes records to `log`: sentences, or objects in JSON. Health checks are of level debug.
std::function<void(const RequestRecord&)> request_log(LogCallback log, LogFormat format);

}  // namespace headrace::app
