// AsyncLLM: a loaded model and its engine, for any number of threads.
#pragma once
#include <filesystem>
#include <future>
#include <memory>
#include <thread>

#include "headrace/llm/engine_loop.h"
#include "headrace/llm/event_queue.h"
#include "headrace/llm/generation_request.h"
#include "headrace/llm/llm_options.h"

namespace headrace {

// All members but engine() may be called from any thread. One thread of its own runs the engine; nothing else happens
// there: tokenising, detokenising and stop texts are the caller's (TextStream). It sleeps while there are no requests.
// Several run beside each other, also on one GPU, where each has its own runtime (open_device) and its own weights.
class AsyncLLM {
 public:
  // Loads the model on the caller's thread and starts the engine's. Error kModelFile, kUnsupported, kOutOfMemory: one
  // sentence.
  AsyncLLM(const ModelDescription& model, const LLMOptions& options);
  // Reads the description of the model in `directory` first. Errors also as read_description.
  AsyncLLM(const std::filesystem::path& directory, const LLMOptions& options);
  // Aborts all requests, without further events, and ends the thread when the step that runs has ended.
  ~AsyncLLM();

  // Queues a request and returns its id. Its events arrive in `events`, which is not owned and must live until the last
  // one of each choice is taken, or this object is destroyed. An absent seed is drawn; events tell it.
  // Errors: as Engine::add; kInvalidArgument if n is below 1, or above 1 where GenerationRequest says so; kCancelled
  // after drain(); kCuda once the device has failed. What fails later arrives as an event of reason kError: the request
  // alone, all of a step that failed, or, once the device fails, all.
  int64_t submit(GenerationRequest request, EventQueue& events);
  // Ends a request, or one of its choices, with an event of reason kAborted; ignores unknown ones and those that have
  // ended. No event of it comes after that one. Its pages are free when the step that runs has ended.
  void abort(int64_t request_id) { loop_.abort(request_id); }
  void abort(int64_t request_id, int32_t choice) { loop_.abort(request_id, choice); }
  // As abort(), for those of the request's choices that have never run.
  void abort_waiting(int64_t request_id) { loop_.abort_waiting(request_id); }
  // Refuses new requests from now on, and returns when all that were submitted have ended and their events are queued.
  void drain();
  EngineStats stats() const { return loop_.stats(); }  // waits for no step

  Device device() const { return runtime_->device(); }
  const Model& model() const { return *model_; }
  const ModelInfo& model_info() const { return model_->info(); }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Returns the model's default sampling parameters: generation_config.json's or, for the schedule 'reference', the
  // published loop's (ReferenceDefaults).
  SamplingParams default_params(DecodingParams::Schedule schedule = DecodingParams::Schedule::kThreshold) const;
  const MemoryPlan& memory_plan() const { return memory_plan_; }
  const EngineConfig& config() const { return engine_->config(); }
  // For measurements and tests: waits until all that were submitted have ended. It may be used until the next submit().
  Engine& engine();

 private:
  AsyncLLM(const ModelDescription& model, const LLMOptions& options, std::future<Tokenizer> tokenizer);

  std::shared_ptr<DeviceRuntime> runtime_;  // before what is made with it, which is destroyed first
  std::future<void> matmul_library_;        // its destructor waits until the library has started
  Tokenizer tokenizer_;
  SamplingParams default_params_;
  std::unique_ptr<Model> model_;
  MemoryPlan memory_plan_;  // of the engine's pools
  std::unique_ptr<Engine> engine_;
  EngineLoop loop_;
  std::thread thread_;
};

}  // namespace headrace
