#include "request_log.h"

#include <fmt/format.h>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/text/json_string.h"

namespace headrace::app {
namespace {

std::string sentence_of(const RequestRecord& r) {
  std::string out =
      fmt::format("{} {} {} {} in {:.3f} s", r.peer, printable(r.method), printable(r.path), r.status, r.seconds);
  if (r.usage) {
    out += fmt::format(", {} prompt tokens ({} cached), {} new ones, {}", r.usage->prompt_tokens,
                       r.usage->cached_tokens, r.usage->completion_tokens, r.finish_reason);
  }
  if (r.first_token_s) out += fmt::format(", the first after {:.3f} s", *r.first_token_s);
  if (!r.params.empty()) out += ", " + r.params;
  if (!r.error.empty()) out += ": " + r.error;
  if (!r.input.empty()) out += fmt::format(" <- {} -> {}", json_string(r.input), json_string(r.output));
  return out + fmt::format(" [{}]", printable(r.id));
}

std::string object_of(const RequestRecord& r) {
  std::string out =
      fmt::format(R"({{"request_id": {}, "peer": {}, "method": {}, "path": {}, "status": {}, "seconds": {:.6f})",
                  json_string(printable(r.id)), json_string(r.peer), json_string(printable(r.method)),
                  json_string(printable(r.path)), r.status, r.seconds);
  if (r.usage) {
    out += fmt::format(R"(, "prompt_tokens": {}, "cached_tokens": {}, "completion_tokens": {}, "finish_reason": "{}")",
                       r.usage->prompt_tokens, r.usage->cached_tokens, r.usage->completion_tokens, r.finish_reason);
  }
  if (r.first_token_s) out += fmt::format(R"(, "first_token_s": {:.6f})", *r.first_token_s);
  if (!r.params.empty()) out += R"(, "params": )" + json_string(r.params);
  if (!r.error.empty()) out += R"(, "error": )" + json_string(r.error);
  if (!r.error_code.empty()) out += R"(, "error_code": )" + json_string(r.error_code);
  if (!r.input.empty()) out += R"(, "input": )" + json_string(r.input) + R"(, "output": )" + json_string(r.output);
  return out + '}';
}

bool is_health_check(const RequestRecord& r) {
  return r.path == "/health" || r.path == "/livez" || r.path == "/readyz" || r.path == "/metrics";
}

}  // namespace

std::function<void(const RequestRecord&)> request_log(LogCallback log, LogFormat format) {
  if (!log) return {};
  return [log = std::move(log), format](const RequestRecord& record) {
    const bool failed = record.status >= 500 && !is_health_check(record);
    const LogLevel level = failed ? LogLevel::kWarning : is_health_check(record) ? LogLevel::kDebug : LogLevel::kInfo;
    log(level, format == LogFormat::kJson ? object_of(record) : sentence_of(record));
  };
}

}  // namespace headrace::app
