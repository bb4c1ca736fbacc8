#include "log_sink.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

#include "headrace/text/json_string.h"
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

// Messages of `level` and above, each by `pattern`.
LogCallback log_with(const std::string& level, const char* pattern, LogFormat format) {
  const auto lowest = spdlog::level::from_str(level);
  if (lowest == spdlog::level::off) return {};
  // A logger of its own: spdlog's registry is a global.
  const auto logger = std::make_shared<spdlog::logger>("headrace", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(pattern);
  logger->set_level(lowest);
  return [logger, format](LogLevel message_level, std::string_view message) {
    const bool is_object = format == LogFormat::kJson && message.starts_with('{');
    const std::string text = is_object ? std::string(message) : without_controls(message);
    logger->log(level_of(message_level), format == LogFormat::kJson && !is_object ? json_string(text) : text);
  };
}

}  // namespace

LogCallback log_to_stderr(const std::string& level) { return log_with(level, "%n: %l: %v", LogFormat::kText); }

LogCallback timed_log(const std::string& level, LogFormat format) {
  const bool is_json = format == LogFormat::kJson;
  return log_with(
      level,
      is_json ? R"({"time": "%Y-%m-%dT%H:%M:%S.%e%z", "level": "%l", "message": %v})" : "%Y-%m-%d %H:%M:%S.%e %l: %v",
      format);
}

}  // namespace headrace::app
