// Requests of one caller, and what comes of them.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine.h"
#include "headrace/llm/event_queue.h"
#include "headrace/llm/text_stream.h"
#include "request_params.h"

namespace headrace::python {

// News of one choice of a request: what came since the last update of it.
struct Update {
  int64_t request_id = 0;
  int32_t choice = 0;
  uint64_t seed = 0;
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;                     // per token
  std::vector<std::vector<TokenLogprob>> top;      // per token, if asked for
  std::vector<PromptToken> prompt_logprobs;        // with the first tokens, if asked for
  std::vector<StepReport> steps;                   // if asked for
  std::optional<FinishReason> finish_reason = {};  // set: the choice has ended
  std::optional<std::string> stop_text = {};       // what ended it, if one of the request's stops did
  std::optional<int32_t> stop_token = {};
  int32_t num_reused = 0, num_forwards = 0;
  double first_token_s = 0, last_token_s = 0;  // since the request was added
  std::optional<Error> error = {};             // the choice failed, and has ended
};

// Not thread-safe. Its memory grows with what was not taken.
class RequestStream {
 public:
  enum class Delivers : uint8_t {
    // One update of each choice, when it has ended. The stream serves one call, at whose end close() is called: until
    // then the engine cannot be closed.
    kWholes,
    kNews,  // an update whenever something came
  };
  RequestStream(std::shared_ptr<Engine> engine, Delivers delivers);
  RequestStream(const RequestStream&) = delete;
  RequestStream& operator=(const RequestStream&) = delete;
  ~RequestStream();  // as close()

  // Queues a request and returns its id. Errors as AsyncLLM::submit. `llm` of all: the stream's engine.
  int64_t add(AsyncLLM& llm, std::vector<int32_t> prompt_ids, const RequestParams& params, std::string cache_salt);
  // Waits until there are updates, at most for `time`, and returns them: none if none came. Error kCancelled once the
  // engine is closed.
  std::vector<Update> wait(AsyncLLM& llm, std::chrono::nanoseconds time);
  // Returns the updates that are there.
  std::vector<Update> poll(AsyncLLM& llm);
  // A file descriptor that can be read when poll() has something to do. The stream owns it.
  int ready_fd() const { return ready_->fd; }
  // Aborts all requests; without updates. Waits for the step that runs. With the GIL, which it releases.
  void close();

  Engine& engine() const { return *engine_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct ReadyEvent {
    ReadyEvent();
    ReadyEvent(const ReadyEvent&) = delete;
    ReadyEvent& operator=(const ReadyEvent&) = delete;
    ~ReadyEvent();
    int fd;
  };
  struct Choice {
    TextStream stream;
    Completion completion = {};
    size_t shown_bytes = 0, shown_tokens = 0;
    Update update = {};  // what was not delivered
    bool has_news = false, has_ended = false;
  };
  struct Request {
    RequestParams params;
    Clock::time_point added;
    std::vector<Choice> choices;
    int32_t num_open = 0;  // choices whose last event has not come
  };

  void drop_requests(AsyncLLM& llm);
  void take(AsyncLLM& llm, GenerationEvent event, std::vector<Update>& updates);
  void push(Request& request, Choice& choice, StepOutput output);
  void end(Choice& choice, const SamplingParams& params);
  static Update taken(Choice& choice);

  std::shared_ptr<Engine> engine_;
  std::optional<Engine::Use> call_;
  Delivers delivers_;
  std::shared_ptr<ReadyEvent> ready_;  // with the queue
  std::unique_ptr<EventQueue> events_;
  std::map<int64_t, Request> requests_;  // by id
};

}  // namespace headrace::python
