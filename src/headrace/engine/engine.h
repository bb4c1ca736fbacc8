// Runs requests to their end, several at a time.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "headrace/core/log.h"
#include "headrace/engine/batch_builder.h"
#include "headrace/engine/host_reasons.h"
#include "headrace/engine/model_runner.h"
#include "headrace/engine/scheduler.h"
#include "headrace/engine/warm_up.h"
#include "headrace/sampling/sampler.h"

namespace headrace {

struct EngineConfig {
  RunnerConfig runner;
  int32_t max_requests = 1;
  int32_t max_context_len = 4096;
  std::string context_name = SchedulerConfig().context_name;
  int32_t vocab = 0;  // ids that may be sampled: the tokenizer's; 0: the model's
  std::string strategy = "autoregressive";
  SchedulerConfig::KeepText keep_text = SchedulerConfig::KeepText::kNo;
  StrategyConfig decoding;  // its `model` is the engine's to set
  // Whether steps that decide one token of each request are queued before the host has read the tokens of the step
  // before. A request that ends by a token has then run once in vain: it pays where the host is another processor.
  enum class StepsAhead : uint8_t { kNever, kOnDevice, kAlways } steps_ahead = StepsAhead::kOnDevice;
  LogCallback log;
};

// Seen twice per sequence and step: as planned, and after the tokens of the step are in it.
enum class StepMoment : uint8_t { kPlanned, kCommitted };
using StepObserver = std::function<void(StepMoment moment, const Sequence& sequence, const StepPlan& plan)>;

// A token that became final in a step.
struct StepOutput {
  int64_t sequence_id = 0;
  SampledToken token;
  std::optional<FinishReason> finish_reason;  // set with the last token
  int32_t num_forwards = 0;                   // of the sequence so far; prompt chunks do not count
  int32_t num_reused = 0;                     // of its prompt, tokens that were not computed for it
};

// What the engine did so far; warm-up is not counted.
struct EngineCounters {
  int64_t steps = 0;
  int64_t rows = 0;          // tokens that went through the model
  int64_t tokens = 0;        // that were handed out
  int64_t device_steps = 0;  // of `steps`: that the device ended by itself
};

// Not thread-safe, and one thread at a time for all engines of one CUDA device (DeviceRuntime).
class Engine {
 public:
  // `model` is not owned and outlives the engine. Errors as ModelRunner and make_strategy.
  Engine(const Model& model, const EngineConfig& config);
  // The same with a strategy that need not be in the registry: `config.strategy` says whose options requests may state.
  Engine(const Model& model, const EngineConfig& config, std::unique_ptr<DecodingStrategy> strategy);

  // Queues a request and returns its id. Error kInvalidArgument, and nothing changes, for bad parameters, ids outside
  // the vocabulary, or a request that could never run. While the runner's metadata source is warming up, requests of
  // any length are accepted, run and forgotten: see WarmUpQueue. The two kinds do not mix: Error kInvalidArgument.
  int64_t add(std::vector<int32_t> prompt, const SamplingParams& params);
  void abort(int64_t id);                                         // frees what it holds; an unknown id is ignored
  bool has(int64_t id) const { return sequences_.contains(id); }  // whether it waits or runs
  // Forward passes of a request that waits or runs, as StepOutput counts them; 0 for another id.
  int32_t num_forwards(int64_t id) const { return has(id) ? sequences_.at(id)->num_forwards : 0; }
  bool idle() const { return scheduler_.idle() && warm_up_.empty(); }

  // One step of every sequence that fits: schedule, build, run, sample, commit. Nothing is handed out of a warm-up.
  // Where the device denoises blocks by itself, the next step runs already when this one returns.
  // What it throws, whatever it is, ends the requests that were in the step, which may have changed their states in
  // part, or the one whose step could not be planned: a server fails those that has() no longer knows with that error.
  // The others go on with the next step.
  // An Error kCuda is the device's last word: every request is dropped, and from then on add(), step() and score()
  // throw it again. A server fails all its requests with it and ends, to be started anew.
  std::vector<StepOutput> step();
  // What the device's error was; none while it works.
  const std::optional<std::string>& fault() const { return fault_; }

  // Called within step(); an empty function stops it.
  void observe(StepObserver observer) { observer_ = std::move(observer); }

  // Natural-log probabilities of tokens[1..] given those before: one sequence, run at once and forgotten. Errors as
  // add() and step().
  std::vector<float> score(const std::vector<int32_t>& tokens);

  const EngineCounters& counters() const { return counters_; }
  // Where the device denoises blocks by itself: why it did not.
  const HostReasons& host_reasons() const { return host_reasons_; }
  const EngineConfig& config() const { return config_; }  // with every default resolved
  const Scheduler& scheduler() const { return scheduler_; }
  ModelRunner& runner() { return runner_; }

 private:
  // Runs what has steps; should it throw, the requests in these end.
  template <class Run>
  auto guarded(const Run& run);
  void note(const std::vector<ScheduledStep>& steps);  // for the time that a call of guarded() takes
  void fail_step();
  void give_up(const std::string& fault);
  void check_device() const;
  std::vector<ScheduledStep> next_steps(Scheduler::Admits admits = Scheduler::Admits::kWhoFits);
  // Of a flight, in the order that it took off with, which the device keeps: the scheduler's changes when the last of a
  // prompt is cached.
  std::vector<ScheduledStep> next_in_order(const std::vector<ScheduledStep>& before, Scheduler::Admits admits);
  std::vector<StepOutput> run_step();
  void step_warm_up();
  // Starts a step that the device ends by itself, if all of `steps` are of that kind.
  bool take_off(const std::vector<ScheduledStep>& steps, const ForwardBatch& batch);
  // What of these requests keeps all of them from it.
  void note_host(const std::vector<ScheduledStep>& steps);
  // Waits for the step in flight, starts the next one where nothing stands against it, and commits.
  std::vector<StepOutput> land();
  // The same of single tokens. Starts a step whose tokens a device reads, if all of `steps` decide one each.
  bool take_off_tokens(const std::vector<ScheduledStep>& steps, const ForwardBatch& batch);
  // Queues the next step, where nothing stands against it, then waits for the one in flight, and commits.
  std::vector<StepOutput> land_tokens();
  bool goes_on(const std::vector<ScheduledStep>& steps) const;
  void queue_next(const std::vector<ScheduledStep>& before);
  void drop_flight();
  // `spots` are those of the steps.
  void queue(const std::vector<ScheduledStep>& steps, std::span<const SampleSpot> spots, const ForwardBatch& batch,
             ModelRunner::Inputs inputs, Tensor* logits = nullptr);
  void show_planned(const std::vector<ScheduledStep>& steps) const;
  std::vector<SampledToken> run(const std::vector<ScheduledStep>& steps, const ForwardBatch& batch);
  using StepFilter = bool (*)(const ScheduledStep&);
  // The tokens of all rows of logits on the host, the model's; the sequences of steps for which `keeps` holds keep what
  // they need.
  std::vector<SampledToken> read(const std::vector<ScheduledStep>& steps, Tensor logits, StepFilter keeps);
  // One for each row of logits; what is drawn of guides is nobody's.
  std::vector<SampleSpot> spots_of(const std::vector<ScheduledStep>& steps) const;
  // `unguided`: as Sampler::sample has it.
  std::vector<SampledToken> sample(const std::vector<ScheduledStep>& steps, const Tensor& logits,
                                   const TensorView& unguided) const;
  // kAssumed: the strategy has committed some token of each step already, whose place is known.
  enum class Committed : uint8_t { kNothing, kAssumed };
  std::vector<StepOutput> commit(const std::vector<ScheduledStep>& steps, std::span<const SampledToken> sampled,
                                 Committed before = Committed::kNothing);
  // What sequences keep of the logits of their rows, which lie in the order of the steps, where `of` holds.
  static std::vector<KeptRows> kept_rows(const std::vector<ScheduledStep>& steps, StepFilter of);
  static void keep_logits(std::span<const KeptRows> kept, const Tensor& logits, DType dtype);
  void keep_candidates(const std::vector<ScheduledStep>& steps, const Tensor& logits,
                       std::span<const SampledToken> sampled) const;
  void publish(Sequence& sequence, std::vector<StepOutput>& outputs) const;
  std::optional<FinishReason> finish_reason_of(const Sequence& sequence, int32_t token) const;

  const Model& model_;
  EngineConfig config_;
  std::unique_ptr<DecodingStrategy> strategy_;
  ModelRunner runner_;
  Scheduler scheduler_;
  BatchBuilder builder_;
  WarmUpQueue warm_up_;
  EngineCounters counters_;
  HostReasons host_reasons_;
  Sampler sampler_;
  StepObserver observer_;
  std::map<int64_t, std::unique_ptr<Sequence>> sequences_;
  int64_t next_id_ = 1;
  std::optional<std::string> fault_;
  std::vector<int64_t> in_step_;  // ids of the requests whose steps guarded() runs
  // Of denoise_loop(), or of single tokens: what is in flight, in the order of its rows; a sequence that was aborted
  // since is null.
  std::vector<ScheduledStep> flight_;
  enum class Flight : uint8_t { kBlocks, kTokens } flight_of_ = Flight::kBlocks;
  bool flight_ends_ = false;  // its requests are no longer those of the next step
};

}  // namespace headrace
