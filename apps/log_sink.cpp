#include "log_sink.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

#include "output.h"

namespace headrace::app {
namespace {

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
  }
  return spdlog::level::warn;
}

}  // namespace

LogCallback log_to_stderr(const std::string& level) {
  const auto lowest = spdlog::level::from_str(level);
  if (lowest == spdlog::level::off) return {};
  // A logger of its own: spdlog's registry is a global.
  const auto logger = std::make_shared<spdlog::logger>("headrace", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%n: %l: %v");
  logger->set_level(lowest);
  return [logger](LogLevel message_level, std::string_view message) {
    logger->log(level_of(message_level), without_controls(message));
  };
}

}  // namespace headrace::app
