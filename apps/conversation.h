// A conversation and its file.
#pragma once
#include <string>
#include <vector>

#include "chat_settings.h"
#include "headrace/chat/template_value.h"

namespace headrace::app {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
  std::string reasoning = {};  // of an assistant: what it thought first
};

struct Conversation {
  std::string model;  // its name, as the user gave it
  std::vector<ChatMessage> messages;
};

// {"model": ..., "messages": [{"role", "content", "reasoning_content"?}], "params": {...}}, a message a line.
// "params" are the settings that were chosen.
std::string conversation_json(const Conversation& conversation, const ChatSettings& settings);
std::string message_json(const ChatMessage& message);
// Reads such a file, and sets what it has in `settings`; "model" and "params" may be absent. Without effect on an
// error: kInvalidArgument if the file cannot be read or a setting is none, kModelFile if it is no conversation.
Conversation read_conversation(const std::string& file, ChatSettings& settings);
// Writes it to a new file, or in place of another conversation. Error kInvalidArgument, kIo.
void write_conversation(const std::string& file, const Conversation& conversation, const ChatSettings& settings);

TemplateValue::Array template_messages(const std::vector<ChatMessage>& messages);

}  // namespace headrace::app
