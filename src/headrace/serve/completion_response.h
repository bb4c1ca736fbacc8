// Responses of OpenAI's completions API.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headrace/engine/engine.h"
#include "headrace/llm/completion.h"
#include "headrace/llm/text_stream.h"
#include "headrace/serve/completion_request.h"

namespace headrace {

// What a response says besides the choices.
struct CompletionHead {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool shows_cached_tokens = true;  // in the usage; they depend on what ran before
};

// Gathers the tokens of all choices of a request and writes the response. Not thread-safe.
class CompletionCollector {
 public:
  // `prompts`: the ids of generation_requests(). `tokenizer` is not owned.
  CompletionCollector(CompletionRequest request, std::vector<std::vector<int32_t>> prompts, const Tokenizer& tokenizer);

  enum class Then : uint8_t {
    kGoOn,
    kAbort,  // a stop text has ended the choice: the caller aborts it
  };
  // Adds outputs of one choice of one prompt; ignores those behind its end. Throws the error of a failed one.
  Then push(int32_t prompt, int32_t choice, std::span<const StepOutput> outputs);
  bool done() const { return num_open_ == 0; }  // all choices have ended

  const CompletionRequest& request() const { return request_; }
  struct Usage {
    int64_t prompt_tokens = 0;      // each prompt once
    int64_t completion_tokens = 0;  // of all choices, end tokens included
    int64_t cached_tokens = 0;      // of prompts, taken from the prefix cache
  };
  Usage usage() const;
  // Returns the "text_completion" object of a request that is done.
  std::string json(const CompletionHead& head) const;

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer, const CompletionRequest& request);

    TextStream stream;
    Completion completion;
    std::vector<std::vector<TokenLogprob>> top;  // per id
    bool has_ended = false;
  };
  struct Prompt {
    std::vector<int32_t> ids;
    std::vector<PromptToken> logprobs;  // of ids[1..], if asked for
    std::vector<Choice> choices;
  };
  struct Token;

  void append_choice(size_t prompt, size_t choice, std::string& out) const;
  std::string echoed(size_t prompt) const;  // the prompt's text
  std::vector<Token> shown_tokens(const Prompt& prompt, const Choice& choice) const;
  void append_top(const Token& token, std::string& out) const;
  void append_logprobs(const std::vector<Token>& tokens, std::string& out) const;
  void append_prompt_logprobs(const Prompt& prompt, std::string& out) const;
  void append_usage(const CompletionHead& head, std::string& out) const;

  CompletionRequest request_;
  const Tokenizer& tokenizer_;  // not owned
  std::vector<Prompt> prompts_;
  int32_t num_open_;
};

}  // namespace headrace
