#include "headrace/serve/batch_line.h"

#include <algorithm>
#include <initializer_list>

#include "headrace/core/printable.h"
#include "headrace/serve/json_body.h"
#include "headrace/serve/stable_hash.h"
#include "headrace/text/json_string.h"

namespace headrace {
namespace {

constexpr std::string_view kUrl = "/v1/completions", kChatUrl = "/v1/chat/completions";

const JsonNode& present(const std::optional<JsonNode>& member, std::string_view name, std::string_view expected) {
  if (!member || member->is_null())
    throw RequestError(400, str(name, " is missing, expected ", expected), std::string(name));
  return *member;
}

void require_value(const JsonNode& member, std::initializer_list<std::string_view> values) {
  const std::string found = member.text();
  if (std::ranges::find(values, found) != values.end()) return;
  std::string expected;
  for (const std::string_view value : values) expected += str(expected.empty() ? "" : " or ", value);
  throw RequestError(400, str(member.name(), " is '", printable(found), "', expected ", expected), member.name());
}

}  // namespace

struct BatchLine::Members {
  JsonBody json;
  std::optional<JsonNode> custom_id, method, url, body;

  explicit Members(std::string_view text) : json(text, "the line") {
    for (const JsonNode& member : json.root().members()) {
      if (member.name() == "custom_id") custom_id = member;
      if (member.name() == "method") method = member;
      if (member.name() == "url") url = member;
      if (member.name() == "body") body = member;
    }
  }
};

BatchLine::BatchLine(std::string_view text) : members_(std::make_unique<const Members>(text)) {
  if (members_->custom_id && members_->custom_id->is_string()) custom_id_ = members_->custom_id->text();
}

BatchLine::~BatchLine() = default;

bool BatchLine::is_chat() const {
  return members_->url && members_->url->is_string() && members_->url->text() == kChatUrl;
}

const JsonNode& BatchLine::body() const {
  const Members& m = *members_;
  if (!custom_id_) present(m.custom_id, "custom_id", "a string").refuse("a string");
  require_value(present(m.method, "method", "POST"), {"POST"});
  require_value(present(m.url, "url", kUrl), {kUrl, kChatUrl});
  const JsonNode& body = present(m.body, "body", "an object");
  if (!body.is_object()) body.refuse("an object");
  return body;
}

std::string batch_line_id(int64_t line, const std::optional<std::string>& custom_id) {
  return hash_text(stable_hash(custom_id.value_or(""), stable_hash(str(line, ':'))));
}

std::string json_of(const BatchResult& result) {
  const std::string id = batch_line_id(result.line, result.custom_id);
  return str(R"({"id": "batch_req_)", id, R"(", "custom_id": )",
             result.custom_id ? json_string(*result.custom_id) : "null", R"(, "response": {"status_code": )",
             result.status, R"(, "request_id": ")", id, R"(", "body": )", result.body, R"(}, "error": null})");
}

}  // namespace headrace
