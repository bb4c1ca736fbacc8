#include "headrace/llm/engine_loop.h"

#include <random>
#include <utility>

namespace headrace {
namespace {

uint64_t drawn_seed() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

void check(const GenerationRequest& request) {
  HR_REQUIRE(request.n >= 1, ErrorCode::kInvalidArgument, "n is ", request.n, ", expected 1 or more");
  HR_REQUIRE(request.n == 1 || !request.constraint, ErrorCode::kInvalidArgument, "n is ", request.n,
             ", expected 1 with a constraint, which has the state of one text");
  HR_REQUIRE(request.n == 1 || !request.reports_steps, ErrorCode::kInvalidArgument, "n is ", request.n,
             ", expected 1 with reports of steps");
}

StepOutput ending(int64_t id, FinishReason reason, int32_t num_forwards, std::optional<Error> error = std::nullopt) {
  return {.sequence_id = id, .finish_reason = reason, .num_forwards = num_forwards, .error = std::move(error)};
}

}  // namespace

// SplitMix64 (Steele, Lea and Flood 2014).
uint64_t seed_of_choice(uint64_t seed, int32_t choice) {
  if (choice == 0) return seed;
  uint64_t z = seed + static_cast<uint64_t>(choice) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

EngineLoop::EngineLoop(Engine& engine) : engine_(engine) { publish_stats(); }

int64_t EngineLoop::submit(GenerationRequest request, EventQueue& events) {
  check(request);
  if (!request.params.seed) request.params.seed = drawn_seed();
  Add add{.request_id = next_id_.fetch_add(request.n),
          .request = {.prompt = std::move(request.prompt_ids),
                      .params = std::move(request.params),
                      .cache_salt = std::move(request.cache_salt),
                      .constraint = std::move(request.constraint)},
          .n = request.n,
          .reports_steps = request.reports_steps,
          .explains_cache = request.explains_cache,
          .events = &events};
  const int64_t id = add.request_id;
  add.request.id = id;
  engine_.check(add.request);
  post(std::move(add));
  return id;
}

void EngineLoop::abort(int64_t request_id, std::optional<int32_t> choice) { post(Abort{request_id, choice}); }

void EngineLoop::abort_waiting(int64_t request_id) { post(Abort{.request_id = request_id, .only_waiting = true}); }

void EngineLoop::post(Command command) {
  const std::lock_guard lock(mutex_);
  if (std::holds_alternative<Add>(command)) {
    HR_REQUIRE(!closed_, ErrorCode::kCancelled, "the engine is being drained and takes no more requests");
    if (fault_) throw Error(*fault_);
  }
  commands_.push_back(std::move(command));
  wake_.notify_one();
}

EngineStats EngineLoop::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  for (const Command& command : commands_) {
    if (const Add* add = std::get_if<Add>(&command)) stats.waiting += add->n;
  }
  return stats;
}

void EngineLoop::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void EngineLoop::wait_until_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return !busy_ && commands_.empty(); });
}

void EngineLoop::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  wake_.notify_one();
}

bool EngineLoop::wait_for_work() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stopped_ || busy_ || !commands_.empty(); });
  return !stopped_;
}

bool EngineLoop::run_once() {
  std::optional<std::vector<Command>> commands = begin_turn();
  if (!commands) return false;
  for (Command& command : *commands) {
    std::visit([this](auto& one) { run(one); }, command);
  }
  if (!choices_.empty()) run_step();
  end_turn();
  return true;
}

std::optional<std::vector<EngineLoop::Command>> EngineLoop::begin_turn() {
  const std::lock_guard lock(mutex_);
  if (!busy_ && commands_.empty()) return std::nullopt;
  busy_ = true;
  ++stats_.heartbeat;
  return std::exchange(commands_, {});
}

// From here on the engine is not touched until there is something to do.
void EngineLoop::end_turn() {
  const std::lock_guard lock(mutex_);
  busy_ = !choices_.empty();
  if (!busy_) idle_.notify_all();
}

void EngineLoop::run(Add& add) {
  for (int32_t choice = 0; choice < add.n; ++choice) add_choice(add, choice);
}

void EngineLoop::add_choice(Add& add, int32_t number) {
  EngineRequest request = number + 1 == add.n ? std::move(add.request) : add.request;
  const int64_t id = add.request_id + number;
  const uint64_t seed = seed_of_choice(*request.params.seed, number);
  request.id = id, request.params.seed = seed;
  Mailbox& mailbox = mailboxes_[add.events];
  mailbox.queue = add.events, ++mailbox.num_choices;
  Choice& choice = choices_[id];
  choice.request_id = add.request_id, choice.number = number, choice.mailbox = &mailbox;
  choice.source = &add.events->open(add.request_id, number, seed);
  choice.explains_cache = add.explains_cache;
  if (add.reports_steps) record_steps(choice);
  try {
    engine_.add(std::move(request));
  } catch (...) {
    note_fault();
    deliver({ending(id, FinishReason::kError, 0, handled_error())});
  }
}

void EngineLoop::record_steps(Choice& choice) {
  choice.recorder = std::make_unique<StepRecorder>();
  if (++num_reporting_ > 1) return;
  engine_.observe([this](StepMoment m, const Sequence& s, const StepPlan& p) { observe(m, s, p); });
}

void EngineLoop::run(Abort& abort) {
  std::vector<StepOutput> ended;
  for (auto at = choices_.lower_bound(abort.request_id); at != choices_.end(); ++at) {
    const Choice& choice = at->second;
    if (choice.request_id != abort.request_id) break;
    if (abort.choice.value_or(choice.number) != choice.number) continue;
    if (abort.only_waiting && !engine_.is_waiting(at->first)) continue;
    ended.push_back(ending(at->first, FinishReason::kAborted, engine_.num_forwards(at->first)));
    engine_.abort(at->first);
  }
  if (!ended.empty()) deliver(std::move(ended));
}

void EngineLoop::run_step() {
  std::vector<StepOutput> outputs;
  try {
    outputs = engine_.step();
  } catch (...) {
    fail_ended(outputs);
  }
  deliver(std::move(outputs));
}

void EngineLoop::fail_ended(std::vector<StepOutput>& outputs) {
  const Error error = handled_error();
  for (const auto& [id, choice] : choices_) {
    if (!engine_.has(id)) outputs.push_back(ending(id, FinishReason::kError, choice.num_forwards, error));
  }
  note_fault();
}

void EngineLoop::note_fault() {
  if (!engine_.fault()) return;
  const std::lock_guard lock(mutex_);
  fault_.emplace(ErrorCode::kCuda, *engine_.fault());
}

void EngineLoop::observe(StepMoment moment, const Sequence& sequence, const StepPlan& plan) {
  const auto found = choices_.find(sequence.id);
  if (found == choices_.end() || !found->second.recorder) return;
  found->second.recorder->observe(moment, sequence, plan);
  found->second.has_report = moment == StepMoment::kCommitted;
}

void EngineLoop::publish_stats() {
  const Scheduler& scheduler = engine_.scheduler();
  const EngineCounters& counters = engine_.counters();
  const RunnerConfig& pools = engine_.config().runner;
  const std::lock_guard lock(mutex_);
  stats_ = {.running = static_cast<int32_t>(scheduler.num_running()),
            .waiting = static_cast<int32_t>(scheduler.num_waiting()),
            .steps = counters.steps,
            .rows = counters.rows,
            .tokens = counters.tokens,
            .preemptions = scheduler.num_preempted(),
            .free_pages = scheduler.free_pages(),
            .num_pages = pools.num_pages,
            .free_states = scheduler.free_states(),
            .num_states = scheduler.num_states(),
            .heartbeat = stats_.heartbeat};
}

// Whoever has the last event may look at the numbers.
void EngineLoop::deliver(std::vector<StepOutput> outputs) {
  publish_stats();
  if (num_reporting_ > 0) collect_reports();
  auto at = choices_.end();
  for (StepOutput& output : outputs) {
    if (at != choices_.end()) ++at;  // outputs are mostly in the order of their ids
    if (at == choices_.end() || at->first != output.sequence_id) at = choices_.find(output.sequence_id);
    if (at != choices_.end()) collect(at->second, std::move(output));
  }
  for (Mailbox* mailbox : full_) mailbox->queue->push(mailbox->news);
  full_.clear();
  for (const StepOutput& output : outputs) {
    if (output.finish_reason) forget(output.sequence_id);
  }
}

void EngineLoop::collect_reports() {
  for (auto& [id, choice] : choices_) {
    if (!std::exchange(choice.has_report, false)) continue;
    if (engine_.has(id)) choice.num_forwards = engine_.num_forwards(id);
    collect(choice, {.num_forwards = choice.num_forwards}, std::make_unique<StepReport>(choice.recorder->report()));
  }
}

void EngineLoop::collect(Choice& choice, StepOutput&& output, std::unique_ptr<StepReport> report) {
  Mailbox& mailbox = *choice.mailbox;
  if (mailbox.news.empty()) full_.push_back(&mailbox);
  choice.num_forwards = output.num_forwards;
  std::shared_ptr<const PrefixMiss> miss;
  if (!report && std::exchange(choice.explains_cache, false)) {
    if (auto why = engine_.why_miss(output.sequence_id)) miss = std::make_shared<PrefixMiss>(std::move(*why));
  }
  mailbox.news.push_back(
      {.from = choice.source, .output = std::move(output), .report = std::move(report), .miss = std::move(miss)});
}

void EngineLoop::forget(int64_t id) {
  const auto found = choices_.find(id);
  if (found == choices_.end()) return;
  Mailbox& mailbox = *found->second.mailbox;
  if (--mailbox.num_choices == 0) mailboxes_.erase(mailbox.queue);
  if (found->second.recorder && --num_reporting_ == 0) engine_.observe({});
  choices_.erase(found);
}

}  // namespace headrace
