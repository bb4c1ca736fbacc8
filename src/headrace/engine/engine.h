// The engine: continuous batching of requests, from prompt ids to sampled ids.
#pragma once
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "headrace/core/error.h"
#include "headrace/core/log.h"
#include "headrace/engine/batch_builder.h"
#include "headrace/engine/model_runner.h"
#include "headrace/engine/scheduler.h"
#include "headrace/engine/warm_up.h"
#include "headrace/request/token_constraint.h"
#include "headrace/sampling/sampler.h"

namespace headrace {

struct EngineConfig {
  RunnerConfig runner;
  int32_t max_requests = 1;
  int32_t max_context_len = 4096;
  std::string context_name = SchedulerConfig().context_name;
  int32_t vocab = 0;  // ids below this may be sampled: the tokenizer's; 0: the model's
  std::string strategy = "autoregressive";
  SchedulerConfig::KeepText keep_text = SchedulerConfig::KeepText::kNo;
  // Times the first step of kRowsMultiple rows or more. Later steps have as many rows as take kStepSeconds, at least so
  // many and at most runner.max_tokens (step_rows.h). Absent: each has up to runner.max_tokens, and no clock is read.
  std::optional<int32_t> least_step_rows;
  StrategyConfig decoding;  // the engine sets its `model`
  // Asynchronous scheduling: launch the next step's forward pass before the host has read the tokens of the last one. A
  // request that ends by a token then runs one step too many, so it pays only if the model runs on a device.
  enum class StepsAhead : uint8_t { kNever, kOnDevice, kAlways } steps_ahead = StepsAhead::kOnDevice;
  LogCallback log;
};

// An observer is called twice per sequence and step: after planning, and after the step's tokens are committed. It may
// add and abort requests, the one it is shown, too; that ends the sequence's life. A planned one then does not run.
// It is not called for the commit of a sequence that fails. If it throws, all requests of the step end.
enum class StepMoment : uint8_t { kPlanned, kCommitted };
using StepObserver = std::function<void(StepMoment moment, const Sequence& sequence, const StepPlan& plan)>;

struct EngineRequest {
  std::vector<int32_t> prompt = {};
  SamplingParams params = {};
  std::string cache_salt = {};                            // cached text is shared with requests of the same salt only
  std::shared_ptr<TokenConstraint> constraint = nullptr;  // null: any token may come
  std::optional<int64_t> id = {};                         // absent: the engine gives the next one
};

// A token that became final in a step, or a request that failed.
struct StepOutput {
  int64_t sequence_id = 0;
  SampledToken token;                             // none for kError and kAborted
  std::vector<TokenLogprob> top = {};             // SamplingParams::top_logprobs of them, descending
  std::vector<PromptToken> prompt_logprobs = {};  // with the first token, if asked for: tokens 1.. of the prompt
  std::optional<FinishReason> finish_reason;      // set with the last token, and by kError
  int32_t num_forwards = 0;                       // forward passes of the sequence so far, without prompt chunks
  int32_t num_reused = 0;                         // prompt tokens taken from the prefix cache
  std::optional<Error> error = {};                // kError: why the request failed
};

// Returns `outputs`. Throws the error of the first failed request among them.
std::vector<StepOutput> throw_if_failed(std::vector<StepOutput> outputs);

// Totals since construction, without warm-up.
struct EngineCounters {
  int64_t steps = 0;
  int64_t rows = 0;    // tokens run through the model
  int64_t tokens = 0;  // tokens returned by step()
};

// Not thread-safe. Engines with runtimes of their own may have threads of their own (DeviceRuntime).
class Engine {
 public:
  // `model` is not owned and outlives the engine. Errors as ModelRunner and make_strategy.
  Engine(const Model& model, const EngineConfig& config);
  // As above, with a strategy that need not be in the registry. `config.strategy` names the registered one whose
  // options requests may set.
  Engine(const Model& model, const EngineConfig& config, std::unique_ptr<DecodingStrategy> strategy);

  // Throws what add() throws for a request that can never run. Callable from any thread: it reads only what never
  // changes.
  void check(const EngineRequest& request) const;
  // Queues a request and returns its id. Error kInvalidArgument, without effect, for invalid parameters, ids outside
  // the vocabulary, a request that could never run, or an id that waits or runs already.
  // While the runner's metadata source is warming up, requests of any length are accepted, run, and leave nothing
  // behind (WarmUpQueue). Warm-up and normal requests cannot be queued together: Error kInvalidArgument.
  int64_t add(EngineRequest request);
  int64_t add(std::vector<int32_t> prompt, const SamplingParams& params, std::string cache_salt = {}) {
    return add(EngineRequest{.prompt = std::move(prompt), .params = params, .cache_salt = std::move(cache_salt)});
  }
  void abort(int64_t id);  // frees its pages and states; ignores an unknown id
  // Preempts a running request before the next step of it is planned: it gives up its pages and state, waits at the
  // head of the queue, and then runs its text again, from what the prefix cache still has. In strict mode no bit of its
  // tokens changes. False, without effect, if it does not run, or if its strategy would then decide other tokens.
  bool preempt(int64_t id);
  bool has(int64_t id) const { return sequences_.contains(id); }  // true if it waits or runs
  bool is_waiting(int64_t id) const;                              // true if it has never run
  // Returns the forward passes of a waiting or running request, counted as in StepOutput; 0 for another id.
  int32_t num_forwards(int64_t id) const { return has(id) ? sequences_.at(id)->num_forwards : 0; }
  // Returns where and why the text that a request took from the prefix cache ended; nothing before it runs, and once
  // the step behind its last one has begun.
  std::optional<PrefixMiss> why_miss(int64_t id) const;
  bool idle() const { return scheduler_.idle() && warm_up_.empty() && !thrown_; }

  // Runs one step: schedule, build, run, sample, commit. Returns the tokens that became final; a warm-up step returns
  // none. With asynchronous scheduling the next step is already running when this returns.
  // A request fails alone if logits of its rows are NaN or infinite, or if its strategy throws: an output of reason
  // kError ends it and says why. The others of the step get their tokens.
  // If the step itself throws, it first ends the requests in it, whose states may be half updated. If nothing but the
  // reading of its tokens fails, those of the step behind it, which is running, end too. The caller fails every request
  // for which has() is now false. The others continue with the next step. If other requests ended in the call before
  // it threw, their outputs are returned, and the next call throws.
  // The prefix cache takes no text of a failed request.
  // Error kCuda is final: the engine drops every request, and add(), step() and score() throw the same error from then
  // on. A server should fail all requests and restart its process.
  std::vector<StepOutput> step();
  // Runs one step of as many tokens as any step may have, and keeps nothing of it. A device without memory for its
  // activations then fails here, not within a request. The engine must be idle. Errors as step().
  void run_largest_step();
  // The device's error; absent while it works.
  const std::optional<std::string>& fault() const { return fault_; }

  // Sets the observer, called within step(); an empty function removes it.
  void observe(StepObserver observer) { observer_ = std::move(observer); }

  // Returns the natural-log probability of each of tokens[1..] given those before it, size tokens.size() - 1. Runs one
  // sequence at once; the engine must be idle. Errors as add() and step().
  std::vector<float> score(const std::vector<int32_t>& tokens);
  // As score; returns the logits behind each of `tokens`, float32 [tokens, vocab] on the host, as the model gives them.
  Tensor logits(const std::vector<int32_t>& tokens);

  const EngineCounters& counters() const { return counters_; }
  const EngineConfig& config() const { return config_; }  // with every default resolved
  const Scheduler& scheduler() const { return scheduler_; }
  ModelRunner& runner() { return runner_; }

 private:
  std::unique_ptr<Sequence> sequence_of(EngineRequest request) const;  // checks all but its size
  void start(Sequence& sequence) const;                                // checks its size, too
  int64_t count(int64_t id);                                           // returns `id`; later ones are larger
  // Runs `tokens` as one step without other requests, which brings the logits of the first `num_rows` of them.
  StepResult run_alone(const std::vector<int32_t>& tokens, int32_t num_rows, const StepReads& reads);
  // Calls `run`. If it throws, ends the requests of the failed step, and drains.
  template <class Run>
  auto run_step_or_fail(const Run& run);
  void note(const std::vector<ScheduledStep>& steps);  // within a call of run_step_or_fail()
  // Returns the requests that end with a step that threw: those that note() named, and those being planned.
  std::vector<int64_t> requests_of_failed_step() const;
  void fail_step();
  // Plans to run the requests of the step in flight, which ran out of memory, in smaller steps. One that does so alone
  // ends. False if they cannot run again.
  bool split_step();
  enum class WasAlone : uint8_t { kNo, kUnlessOthers };
  void retry_apart(const std::vector<int64_t>& ids, int32_t rows, WasAlone was_alone);
  void end_retry();  // a step has run, or none could be planned
  // Within a handler of an exception that concerns this request alone: ends it with an output that holds the exception.
  // Rethrows Error kCuda, which concerns all.
  void fail_alone(int64_t id);
  void fail(int64_t id);  // as abort(), and its text is not cached
  void end(int64_t id, PageTable::Keeps keeps);
  void give_up(const std::string& fault);
  void check_device() const;
  // Plans the next step. Throws what the scheduler throws.
  std::vector<ScheduledStep> next_steps(Scheduler::Preempts preempts = Scheduler::Preempts::kIfNeeded);
  // As above. If requests cannot be planned, ends these and returns nothing; the others are unchanged.
  std::optional<std::vector<ScheduledStep>> try_next_steps(Scheduler::Preempts preempts);
  std::vector<StepOutput> run_step();
  std::vector<StepOutput> run_step_in_parts();  // if it runs out of memory

  // A step from its plan to its commit, in the order of its rows. The sequence of a request that has ended is null.
  struct InFlightStep {
    std::vector<ScheduledStep> steps;  // empty: a warm-up
    std::vector<double> orders = {};   // of its rows of logits, if the device chooses tokens
    std::vector<LogprobRow> logprobs = {};
    std::vector<size_t> logprob_steps = {};  // index in `steps` of each of them
    std::exception_ptr failed = nullptr;     // why it could not be launched or sampled; its turn comes in the next call
    bool has_placeholders = false;           // committed for its tokens: it cannot run again
  };
  // Launches the step that comes next, or one of a warm-up; nothing may be in flight. Returns false if there is none.
  bool launch_first();
  bool may_launch_next() const;
  // Commits placeholders for the tokens of the step in flight, and launches the forward pass of the step behind it. Its
  // input ids are those tokens, which the host does not know. Launches none if a request fails or nothing is to be run.
  void launch_next();
  // Returns false if a request fails.
  bool commit_placeholders(const std::vector<ScheduledStep>& steps);
  // Returns, for each token of the batch of `steps`, the index of the row of logits of the step in flight that decides
  // it, or -1.
  std::vector<int32_t> inputs_from(const std::vector<ScheduledStep>& before,
                                   const std::vector<ScheduledStep>& steps) const;
  void start_timer();                               // of a step that runs from now on
  void choose_step_rows(int32_t rows);              // by the time since then
  void launch(std::span<const int32_t> from = {});  // the newest step in flight, which is planned
  // Brings to date what spots are made of. Ends a request whose constraint fails or allows no token.
  void read_texts(const std::vector<ScheduledStep>& steps);
  void choose();  // its tokens; all tokens before them are known
  std::vector<LogprobRow> logprob_rows(InFlightStep& step) const;
  void keep_logprobs(const InFlightStep& step, std::vector<RowLogprobs> logprobs) const;
  void drain();  // waits for all steps in flight and drops their results

  void show_planned(const std::vector<ScheduledStep>& steps) const;
  // Returns one token per sample row of a retired step, in order.
  std::vector<SampledToken> sampled_tokens(const InFlightStep& in_flight, StepResult result);
  using StepFilter = bool (*)(const ScheduledStep&);
  // Samples every row of `logits`, as returned by the model, on the host. Sequences of steps for which `keeps` is true
  // keep the logits they need.
  std::vector<SampledToken> read(const std::vector<ScheduledStep>& steps, Tensor logits, StepFilter keeps);
  // Returns one spot per row of logits; those of steps for which `of` is false, and of scored and guide rows, are
  // nobody's: their tokens are unused.
  std::vector<SampleSpot> spots_of(const std::vector<ScheduledStep>& steps, StepFilter of) const;
  SampleSpot spot_of(const ScheduledStep& step, const SampleRow& row) const;
  // `unguided`: see Sampler::sample.
  std::vector<SampledToken> sample(const std::vector<ScheduledStep>& steps, const Tensor& logits,
                                   const TensorView& unguided) const;
  // kAssumed: the strategy has already committed placeholders for the tokens, which are overwritten.
  enum class Committed : uint8_t { kNothing, kAssumed };
  void commit(const std::vector<ScheduledStep>& steps, std::span<const SampledToken> sampled, Committed before);
  // Gives a sequence the tokens of its rows. Returns false if it fails.
  bool commit_or_fail(const ScheduledStep& step, std::span<const SampledToken> sampled, Committed before);
  // Rows of logits that sequences keep, for steps where `of` is true. Rows lie in the order of the steps.
  static std::vector<KeptRows> kept_rows(const std::vector<ScheduledStep>& steps, StepFilter of);
  static void keep_logits(std::span<const KeptRows> kept, const Tensor& logits, DType dtype);
  void keep_candidates(const std::vector<ScheduledStep>& steps, const Tensor& logits,
                       std::span<const SampledToken> sampled) const;
  void publish(Sequence& sequence);
  bool publish_or_fail(Sequence& sequence);  // returns false if it fails
  std::optional<FinishReason> finish_reason_of(const Sequence& sequence, int32_t token) const;

  const Model& model_;
  EngineConfig config_;
  std::unique_ptr<DecodingStrategy> strategy_;
  ModelRunner runner_;
  Scheduler scheduler_;
  BatchBuilder builder_;
  WarmUpQueue warm_up_;
  EngineCounters counters_;
  Sampler sampler_;
  StepObserver observer_;
  std::map<int64_t, std::unique_ptr<Sequence>> sequences_;
  int64_t next_id_ = 1;
  std::optional<std::string> fault_;
  std::map<int64_t, PrefixMiss> ended_misses_;         // of requests that ended in the last step
  std::deque<std::vector<int64_t>> retries_;           // requests of the next steps, each step's; empty: all
  int32_t rows_of_failed_step_ = 0;                    // 0: a request was found that ran out of memory alone
  std::vector<int64_t> in_step_;                       // ids of the requests that run_step_or_fail() runs
  std::vector<StepOutput> outputs_;                    // of the step that runs
  std::exception_ptr thrown_ = nullptr;                // by a step whose outputs were returned: the next call throws it
  std::deque<InFlightStep> in_flight_;                 // at most two, oldest first
  std::chrono::steady_clock::time_point launched_at_;  // of the step that runs, while steps are timed
  std::vector<int64_t> to_preempt_;                    // before the next step that is planned with nothing in flight
};

}  // namespace headrace
