#include "headrace/serve/batch_line.h"

#include "headrace/core/printable.h"
#include "headrace/serve/stable_hash.h"
#include "headrace/text/json_string.h"

namespace headrace {
namespace {

constexpr std::string_view kUrl = "/v1/completions";

const JsonNode& present(const std::optional<JsonNode>& member, std::string_view name, std::string_view expected) {
  if (!member || member->is_null())
    throw RequestError(400, str(name, " is missing, expected ", expected), std::string(name));
  return *member;
}

void require_value(const JsonNode& member, std::string_view expected) {
  const std::string found = member.text();
  if (found == expected) return;
  const std::string_view why =
      found == "/v1/chat/completions" ? ": no chat template is applied yet; write the turns out in a prompt" : "";
  throw RequestError(400, str(member.name(), " is '", printable(found), "', expected ", expected, why), member.name());
}

}  // namespace

BatchLine::BatchLine(std::string_view text) : json_(text, "the line") {
  for (const JsonNode& member : json_.root().members()) {
    if (member.name() == "custom_id") id_ = member;
    if (member.name() == "method") method_ = member;
    if (member.name() == "url") url_ = member;
    if (member.name() == "body") body_ = member;
  }
  if (id_ && id_->is_string()) custom_id_ = id_->text();
}

const JsonNode& BatchLine::body() const {
  if (!custom_id_) present(id_, "custom_id", "a string").refuse("a string");
  require_value(present(method_, "method", "POST"), "POST");
  require_value(present(url_, "url", kUrl), kUrl);
  const JsonNode& body = present(body_, "body", "an object");
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
