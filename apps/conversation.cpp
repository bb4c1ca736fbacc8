#include "conversation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"
#include "headrace/text/json_string.h"
#include "headrace/weights/config_file.h"
#include "input.h"
#include "output.h"

namespace headrace::app {
namespace {

ChatMessage message_of(const JsonValue& value) {
  constexpr std::array kRoles = {"system", "user", "assistant"};
  const JsonValue& role = value.at("role");
  HR_REQUIRE(std::ranges::find(kRoles, role.as_string()) != kRoles.end(), ErrorCode::kModelFile, role.where(), " is '",
             role.as_string(), "', expected system, user or assistant");
  return {.role = role.as_string(),
          .content = value.at("content").as_string(),
          .reasoning = value.string_or("reasoning_content", "")};
}

}  // namespace

std::string message_json(const ChatMessage& m) {
  const std::string thinking =
      m.reasoning.empty() ? "" : fmt::format(R"(, "reasoning_content": {})", json_string(m.reasoning));
  return fmt::format(R"({{"role": "{}", "content": {}{}}})", m.role, json_string(m.content), thinking);
}

std::string conversation_json(const Conversation& c, const ChatSettings& settings) {
  std::vector<std::string> messages, params;
  for (const ChatMessage& message : c.messages) messages.push_back("    " + message_json(message));
  for (const auto& [name, value] : chosen(settings)) params.push_back(fmt::format(R"("{}": {})", name, value));
  return fmt::format("{{\n  \"model\": {},\n  \"messages\": [\n{}\n  ],\n  \"params\": {{{}}}\n}}\n",
                     json_string(c.model), fmt::join(messages, ",\n"), fmt::join(params, ", "));
}

Conversation read_conversation(const std::string& file, ChatSettings& settings) {
  const JsonValue root = JsonValue::parse(read_text(file), file);
  Conversation c{.model = root.string_or("model", ""), .messages = {}};
  for (const JsonValue& message : root.at("messages").as_array()) c.messages.push_back(message_of(message));
  if (const JsonValue* params = root.find("params")) set_all(settings, *params);
  return c;
}

void write_conversation(const std::string& file, const Conversation& conversation, const ChatSettings& settings) {
  if (file_exists(file)) {
    try {
      ChatSettings ignored;
      read_conversation(file, ignored);
    } catch (const Error&) {
      throw Error(ErrorCode::kInvalidArgument, file + ": exists and is no conversation, expected a new file");
    }
  }
  OutputFile(file).write(conversation_json(conversation, settings));
}

TemplateValue::Array template_messages(const std::vector<ChatMessage>& messages) {
  TemplateValue::Array all;
  for (const ChatMessage& m : messages) {
    TemplateValue::Object one = {{"role", m.role}, {"content", m.content}};
    if (!m.reasoning.empty()) one.emplace_back("reasoning_content", m.reasoning);
    all.emplace_back(std::move(one));
  }
  return all;
}

}  // namespace headrace::app
