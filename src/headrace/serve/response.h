// A request's response while its tokens come: whole, or as pieces of a stream.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/llm/completion.h"
#include "headrace/llm/event_queue.h"
#include "headrace/llm/text_stream.h"
#include "headrace/request/prefix_miss.h"
#include "headrace/serve/api_request.h"
#include "headrace/serve/request_error.h"

namespace headrace {

// The parts of a response besides the choices.
struct ResponseInfo {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool shows_cached_tokens = true;  // in the usage; they depend on what ran before
};

// Seconds, for APIs that tell them.
struct ResponseTimes {
  double first_token_s = 0, total_s = 0;  // since the request came
};

// Gathers the tokens of all choices of a request; derived classes write them in the words of an API. Not thread-safe.
class Response {
 public:
  virtual ~Response() = default;
  Response(const Response&) = delete;
  Response& operator=(const Response&) = delete;

  enum class Then : uint8_t {
    kGoOn,
    kAbort,  // a stop text has ended the choice: the caller aborts it
  };
  // Adds the outputs of an event of one prompt; ignores those behind the choice's end. Throws the error of a failed
  // one.
  Then push(int32_t prompt, const GenerationEvent& event);
  bool done() const { return num_open_ == 0; }  // all choices have ended

  bool has_ended(int32_t prompt, int32_t choice) const { return choice_at(prompt, choice).has_ended; }

  const ApiRequest& request() const { return request_; }
  const ResponseInfo& info() const { return info_; }
  struct Usage {
    int64_t prompt_tokens = 0;      // each prompt once
    int64_t completion_tokens = 0;  // of all choices, end tokens included
    int64_t cached_tokens = 0;      // of prompts, taken from the prefix cache
  };
  Usage usage() const;
  // Returns all texts of a choice, for a log.
  const std::string& text_of(int32_t prompt, int32_t choice) const;
  FinishReason finish_reason() const;  // of the last choice

  // The whole response, once it is done.
  virtual std::string json(const ResponseTimes& times) const = 0;
  // A stream's pieces: what comes first; what a choice has that no piece has shown; the end.
  virtual std::string_view stream_type() const = 0;  // of content
  virtual void append_news(int32_t prompt, int32_t choice, std::string& out) = 0;
  virtual void append_end(const ResponseTimes& times, std::string& out) const = 0;
  virtual void append_error(const RequestError& error, std::string& out) const = 0;  // and the end behind it
  // A piece without content: it keeps the connection alive.
  virtual void append_ping(std::string& out) const { out += ": ping\n\n"; }

 protected:
  // `prompts`: the ids of the engine's requests. `tokenizer` is not owned.
  Response(ApiRequest request, ResponseInfo info, std::vector<std::vector<int32_t>> prompts,
           const Tokenizer& tokenizer);

  struct Choice {
    Choice(const Tokenizer& tokenizer, const ApiRequest& request);

    TextStream stream;
    Completion completion;
    std::vector<std::vector<TokenLogprob>> top;  // per id
    std::shared_ptr<const PrefixMiss> miss;      // if the request explains it
    std::optional<StepReport> report;            // of the newest step, until it is shown
    bool has_ended = false;
    // The pieces of a stream until now.
    size_t shown_bytes = 0, shown_tokens = 0;
    bool has_shown_end = false;
  };
  struct Prompt {
    std::vector<int32_t> ids;
    std::vector<PromptToken> logprobs;  // of ids[1..], if asked for
    std::vector<Choice> choices;
  };
  // A token that the response shows, and its likeliest rivals.
  struct Token {
    int32_t id;
    std::string text;
    std::optional<float> logprob;  // none: the first token of a prompt
    std::span<const TokenLogprob> top;
  };

  Prompt& prompt_at(int32_t prompt) { return prompts_.at(static_cast<size_t>(prompt)); }
  Choice& choice_at(int32_t prompt, int32_t choice) {
    return prompt_at(prompt).choices.at(static_cast<size_t>(choice));
  }
  const Choice& choice_at(int32_t prompt, int32_t choice) const {
    return prompts_.at(static_cast<size_t>(prompt)).choices.at(static_cast<size_t>(choice));
  }
  size_t index_of(size_t prompt, size_t choice) const { return prompt * static_cast<size_t>(request_.n) + choice; }
  Token token_at(int32_t id, std::optional<float> logprob, std::span<const TokenLogprob> top) const;
  std::vector<Token> output_tokens(const Choice& choice, size_t from) const;
  std::string text_of(int32_t id) const;  // of one token by itself; U+FFFD stands for a part of a character
  // Appends `, "usage": {...}`.
  void append_usage(std::string& out) const;
  // Appends `, "headrace": {...}` if the choice has something for it: why its prompt left the cache, when it has ended;
  // the newest step.
  void append_own(Choice& choice, std::string& out) const;
  void append_own_whole(const Choice& choice, std::string& out) const;
  const std::string& object_begin(std::string_view object) const;  // {"id": ..., "model": ...

  ApiRequest request_;
  ResponseInfo info_;
  const Tokenizer& tokenizer_;  // not owned
  std::vector<Prompt> prompts_;
  int32_t num_open_ = 0;

 private:
  mutable std::string object_begin_;
};

// Appends `items`, each by `append`, with commas between them.
template <class Items, class Append>
void append_list(const Items& items, std::string& out, const Append& append) {
  const char* before = "[";
  for (const auto& item : items) {
    out += before;
    before = ", ";
    append(item);
  }
  out += items.empty() ? "[]" : "]";
}

}  // namespace headrace
