// Bodies of requests to OpenAI's API.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::app {

inline constexpr std::string_view kCompletionsPath = "/v1/completions", kChatPath = "/v1/chat/completions";

// A text, or a conversation, that grows by a user's text and an answer in turn.
class LoadHistory {
 public:
  void add_user(std::string text) { texts_.push_back(std::move(text)); }
  void add_answer(std::string text) { texts_.push_back(std::move(text)); }

  struct Request {
    std::string_view model;
    int64_t max_tokens = 1;
    bool only_letters = false;  // of a model that has 256 tokens, the bytes
  };
  // Returns a request for a stream of exactly `max_tokens` likeliest tokens behind this text, with its usage: as
  // messages for chat completions, as one text else.
  std::string body(std::string_view path, const Request& request) const;

 private:
  std::vector<std::string> texts_;  // the user's at even places
};

}  // namespace headrace::app
