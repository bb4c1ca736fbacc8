// EngineLoop: an engine whose requests come from any thread and whose tokens leave by event queues.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "headrace/engine/engine.h"
#include "headrace/llm/event_queue.h"
#include "headrace/llm/generation_request.h"
#include "headrace/llm/step_recorder.h"

namespace headrace {

// Numbers of one moment: after the last step.
struct EngineStats {
  int32_t running = 0, waiting = 0;         // requests of the engine: one for each choice
  int64_t steps = 0, rows = 0, tokens = 0;  // since the start (EngineCounters)
  int64_t preemptions = 0;
  int32_t free_pages = 0, num_pages = 0;    // with evictable ones
  int32_t free_states = 0, num_states = 0;  // likewise; 0 of 0: the model has none
  // Counts the engine's turns. One that stands still while requests run or wait tells a watchdog of a step that hangs.
  int64_t heartbeat = 0;
};

// Has no thread of its own. One thread drives it: run_once() and wait_for_work(); all else is called from any thread.
// Driven by the thread that submits, it is deterministic.
class EngineLoop {
 public:
  // `engine` is not owned. Others use it only while the loop has no requests.
  explicit EngineLoop(Engine& engine);
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // See AsyncLLM.
  int64_t submit(GenerationRequest request, EventQueue& events);
  // Of one choice, or of all.
  void abort(int64_t request_id, std::optional<int32_t> choice = std::nullopt);
  void abort_waiting(int64_t request_id);
  EngineStats stats() const;
  void close();            // refuses new requests from now on
  void wait_until_idle();  // until all that were submitted have ended
  void stop();             // wait_for_work() returns false from now on

  // Does what was asked for since the last turn, runs one step, and delivers its events. Returns false, without effect,
  // if there is nothing to do.
  bool run_once();
  // Waits until there is something to do. Returns false after stop().
  bool wait_for_work();

 private:
  struct Add {
    int64_t request_id = 0;
    EngineRequest request;  // of the first choice
    int32_t n = 1;
    bool reports_steps = false, explains_cache = false;
    EventQueue* events = nullptr;  // not owned
  };
  struct Abort {
    int64_t request_id = 0;
    std::optional<int32_t> choice = {};
    bool only_waiting = false;
  };
  using Command = std::variant<Add, Abort>;

  // What one queue gets after a step, collected first so that the queue is locked once.
  struct Mailbox {
    EventQueue* queue = nullptr;  // not owned
    std::vector<EventQueue::News> news = {};
    int32_t num_choices = 0;
  };
  // A request of the engine. Its id is that of its GenerationRequest plus its number.
  struct Choice {
    int64_t request_id = 0;
    int32_t number = 0;
    int32_t num_forwards = 0;
    Mailbox* mailbox = nullptr;
    EventQueue::Source* source = nullptr;    // the queue owns it
    std::unique_ptr<StepRecorder> recorder;  // null: it reports no steps
    bool has_report = false;                 // of the step that runs
    bool explains_cache = false;             // with its next output
  };

  void post(Command command);
  std::optional<std::vector<Command>> begin_turn();  // nothing: there is nothing to do
  void end_turn();
  void run(Add& add);
  void run(Abort& abort);
  void add_choice(Add& add, int32_t number);
  void record_steps(Choice& choice);
  void run_step();
  void fail_ended(std::vector<StepOutput>& outputs);  // within a handler of what a step threw
  void note_fault();
  void observe(StepMoment moment, const Sequence& sequence, const StepPlan& plan);
  void publish_stats();
  // Queues events of outputs and reports. Forgets choices that have ended.
  void deliver(std::vector<StepOutput> outputs);
  void collect(Choice& choice, StepOutput&& output, std::unique_ptr<StepReport> report = nullptr);
  void collect_reports();
  void forget(int64_t id);

  Engine& engine_;  // not owned

  // Of the thread that drives.
  std::map<int64_t, Choice> choices_;  // by id of the engine
  std::map<EventQueue*, Mailbox> mailboxes_;
  std::vector<Mailbox*> full_;  // those with items, in order of the first
  int32_t num_reporting_ = 0;   // choices with a recorder

  std::atomic<int64_t> next_id_ = 1;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_, idle_;
  std::vector<Command> commands_;
  bool busy_ = false;  // there are choices, or a turn began
  bool closed_ = false, stopped_ = false;
  std::optional<Error> fault_;  // of the device
  EngineStats stats_;
};

}  // namespace headrace
