// Simulates an engine under load, with a model without weights: requests come, are given up, preempted and fail, pages
// and states run out, consumers are slow and steps throw, all by a seed. Every token is compared with the model's
// definition, and the ownership of pages and states is audited after every step.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <stdexcept>

#include "headrace/core/device_runtime.h"
#include "headrace/llm/engine_loop.h"
#include "llm/simulated_answer.h"
#include "llm/simulated_case.h"
#include "support/fuzz.h"

namespace headrace::testing_support {
namespace {

constexpr int32_t kMostSteps = 3000;
constexpr const char* kOfStep = FakePasses::kInjected;

// Thrown by what is wrong.
struct Wrong {
  std::string text;
};

template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) throw Wrong{str(parts...)};
}

// A strategy that throws for requests that are to fail in it.
class ThrowingStrategy final : public DecodingStrategy {
 public:
  struct Fault {
    Arrival::Throws where = Arrival::Throws::kNever;
    int32_t at = 0;  // tokens behind the prompt
    bool thrown = false;
  };
  ThrowingStrategy(const Case& c, std::map<int64_t, Fault>& faults) : ThrowingStrategy(made(c), faults) {}

  void start(Sequence& s) const override { inner_->start(s); }
  StepPlan plan(const Sequence& s, int32_t budget) const override {
    throw_if_due(s, Arrival::Throws::kInPlan);
    return inner_->plan(s, budget);
  }
  bool may_preempt(const Sequence& s) const override { return inner_->may_preempt(s); }
  void restart(Sequence& s) const override { inner_->restart(s); }
  void commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const override {
    throw_if_due(s, Arrival::Throws::kInCommit);
    inner_->commit(s, plan, sampled);
  }

 private:
  ThrowingStrategy(std::unique_ptr<DecodingStrategy> inner, std::map<int64_t, Fault>& faults)
      : DecodingStrategy(inner->name(), inner->traits()), inner_(std::move(inner)), faults_(faults) {}
  static std::unique_ptr<DecodingStrategy> made(const Case& c) {
    StrategyConfig config = c.config.decoding;
    config.model = c.diffusion;
    return make_strategy(c.config.strategy, config);
  }
  void throw_if_due(const Sequence& s, Arrival::Throws where) const {
    const auto found = faults_.find(s.id);
    if (found == faults_.end() || found->second.where != where || s.num_tokens() - s.prompt_len < found->second.at)
      return;
    found->second.thrown = true;
    throw std::runtime_error(kOfRequest);
  }

  std::unique_ptr<DecodingStrategy> inner_;
  std::map<int64_t, Fault>& faults_;
};

void require_same(const std::string& what, const TokenLogprob& got, const TokenLogprob& expected) {
  require(got.id == expected.id && std::abs(got.logprob - expected.logprob) < 1e-3f, what, ": got ", got.id, " with ",
          got.logprob, ", expected ", expected.id, " with ", expected.logprob);
}

void require_same(const std::string& what, const PromptToken& got, const PromptToken& expected);

template <class T>
void require_same(const std::string& what, const std::vector<T>& got, const std::vector<T>& expected) {
  require(got.size() == expected.size(), what, ": got ", got.size(), " entries, expected ", expected.size());
  for (size_t i = 0; i < got.size(); ++i) require_same(str(what, ", ", i), got[i], expected[i]);
}

void require_same(const std::string& what, const PromptToken& got, const PromptToken& expected) {
  require_same(what + " of the prompt", got.token, expected.token);
  require_same(what + " of the prompt, top", got.top, expected.top);
}

// A choice of a request that came.
struct Live {
  size_t arrival = 0;
  int32_t choice = 0;
  int64_t request_id = 0;
  int32_t came_at = 0;
  std::vector<int32_t> prompt;
  Answer expected;
  std::vector<int32_t> tokens;        // as far as its consumer has taken them
  std::optional<FinishReason> ended;  // likewise
  std::shared_ptr<HashConstraint> constraint;
  bool given_up = false, preempted = false;

  int64_t id() const { return request_id + choice; }  // of the engine
};

// Driven by one thread, so that a seed repeats it.
class Simulation {
 public:
  Simulation(const Case& c, bench::FakeDevice* device)
      : case_(c),
        device_(device),
        model_(c.states, device, c.diffusion),
        engine_(model_, config_of(c, device), std::make_unique<ThrowingStrategy>(c, strategy_faults_)),
        queues_(c.consumers.size()),
        loop_(engine_) {
    model_.passes().most_rows = c.most_rows;
  }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;
  // Queued work refers to the model.
  ~Simulation() {
    while (device_ != nullptr) {
      try {
        device_->synchronize();
        return;
      } catch (const Error&) {  // injected, and not read by the engine
      }
    }
  }

  void run() {
    bool busy = true;
    for (step_ = 0; busy || next_ < case_.arrivals.size(); ++step_) {
      require(step_ < kMostSteps, "not over after ", kMostSteps, " steps");
      take_arrivals(busy);
      arm_faults();
      busy = loop_.run_once();
      engine_.scheduler().audit();
      check_stats();
      for (size_t i = 0; i < queues_.size(); ++i) {
        if (step_ % case_.consumers[i] == 0) take_events(i);
      }
      give_up_and_preempt();
      engine_.scheduler().audit();
    }
    check_end();
  }

 private:
  static EngineConfig config_of(const Case& c, bench::FakeDevice* device) {
    EngineConfig config = c.config;
    config.runner.ops = device != nullptr ? &device->ops() : &FakeModel::kernels();
    config.runner.runtime = device;
    config.runner.backend = device != nullptr ? "cuda" : "cpu";
    if (device != nullptr) config.runner.context.stream = device->stream();
    return config;
  }

  static std::string name_of(const Live& live) {
    return str("choice ", live.choice, " of request ", live.arrival, " (prompt of ", live.prompt.size(), ", ",
               live.tokens.size(), " tokens so far)");
  }

  // Those whose time has come, or that nothing runs before.
  void take_arrivals(bool busy) {
    for (; next_ < case_.arrivals.size() && (case_.arrivals[next_].step <= step_ || !busy); ++next_) {
      if (case_.arrivals[next_].left_out) continue;
      submit(next_);
      busy = true;
    }
  }

  std::vector<int32_t> prompt_of(const Arrival& a) const {
    std::vector<int32_t> prompt;
    const auto before = std::ranges::find(lives_, a.goes_on.value_or(SIZE_MAX), &Live::arrival);
    if (a.goes_on && before != lives_.end()) {
      prompt = before->prompt;
      prompt.insert(prompt.end(), before->tokens.begin(), before->tokens.end());
    }
    prompt.insert(prompt.end(), a.prompt.begin(), a.prompt.end());
    return std::ssize(prompt) < case_.config.max_context_len ? prompt : a.prompt;
  }

  void submit(size_t i) {
    const Arrival& a = case_.arrivals[i];
    GenerationRequest request{.prompt_ids = prompt_of(a), .params = a.params, .n = a.n, .cache_salt = a.salt};
    request.reports_steps = a.reports_steps;
    std::shared_ptr<HashConstraint> constraint;
    if (a.constraint_salt) constraint = std::make_shared<HashConstraint>(*a.constraint_salt, a.constraint_throws_at);
    request.constraint = constraint;
    const auto never_chosen = [this](int32_t id) { return id >= vocab_of(case_); };
    std::erase_if(request.params.stop_token_ids, never_chosen);
    std::erase_if(request.params.logit_bias, [&](const LogitBias& one) { return never_chosen(one.id); });
    const std::vector<int32_t> prompt = request.prompt_ids;
    SamplingParams params = request.params;
    int64_t id = 0;
    try {
      id = loop_.submit(std::move(request), queues_[a.queue]);
    } catch (const Error& e) {
      const bool too_large = case_.diffusion && e.code() == ErrorCode::kInvalidArgument;  // its blocks
      return require(too_large || (dead_ && e.code() == ErrorCode::kCuda), "request ", i, " is refused: ", e.what());
    }
    require(!dead_, "an engine whose device failed takes requests");
    for (int32_t choice = 0; choice < a.n; ++choice) {
      params.seed = seed_of_choice(*a.params.seed, choice);
      Live live{.arrival = i, .choice = choice, .request_id = id, .came_at = step_, .prompt = prompt};
      live.expected = answer_of(case_, a, prompt, params);
      live.constraint = constraint;
      if (a.throws != Arrival::Throws::kNever) strategy_faults_[live.id()] = {a.throws, a.throws_at};
      lives_.push_back(std::move(live));
    }
  }

  void arm_faults() {
    for (const StepFault& fault : case_.faults) {
      if (fault.step != step_) continue;
      if (fault.where == StepFault::Where::kOnDevice && device_ != nullptr) {
        device_->run([this, code = fault.code] {
          ++device_faults_;
          throw Error(code, kOfStep);
        });
      } else {
        model_.passes().fails = fault.passes, model_.passes().error = fault.code;
      }
    }
  }

  void check_stats() {
    dead_ = engine_.fault().has_value();
    const EngineStats stats = loop_.stats();
    const Scheduler& scheduler = engine_.scheduler();
    require(stats.free_pages == scheduler.free_pages() && stats.free_states == scheduler.free_states(),
            "the statistics have ", stats.free_pages, " free pages and ", stats.free_states, " states, the engine ",
            scheduler.free_pages(), " and ", scheduler.free_states());
    int32_t left = 0;
    for (const Live& live : lives_) left += engine_.has(live.id()) ? 1 : 0;
    require(stats.running + stats.waiting == left, "the statistics have ", stats.running, " running and ",
            stats.waiting, " waiting requests, the engine ", left);
  }

  void take_events(size_t queue) {
    while (const std::optional<GenerationEvent> event = queues_[queue].poll()) {
      const auto is_its = [&](const Live& l) { return l.request_id == event->request_id && l.choice == event->choice; };
      const auto found = std::ranges::find_if(lives_, is_its);
      require(found != lives_.end(), "an event of the unknown request ", event->request_id);
      const Arrival& a = case_.arrivals[found->arrival];
      require(a.queue == queue, name_of(*found), " has an event in another's queue");
      require(event->seed == seed_of_choice(*a.params.seed, event->choice), name_of(*found), " has the seed ",
              event->seed);
      require(!event->outputs.empty() || a.reports_steps, name_of(*found), " has an event without outputs");
      for (const StepOutput& out : event->outputs) take(*found, out);
    }
  }

  void take(Live& live, const StepOutput& out) {
    require(out.sequence_id == live.id(), name_of(live), " has an output of ", out.sequence_id);
    require(!live.ended, name_of(live), " has an output after its last one");
    live.ended = out.finish_reason;
    if (out.finish_reason == FinishReason::kAborted) return require(live.given_up, name_of(live), " was not given up");
    require(out.error.has_value() == (out.finish_reason == FinishReason::kError), name_of(live),
            " has an error without its reason, or the reason alone");
    if (out.error) return check_failed(live, *out.error);
    take_token(live, out);
  }

  void take_token(Live& live, const StepOutput& out) {
    const Answer& expected = live.expected;
    const size_t at = live.tokens.size();
    require(at < expected.tokens.size(), name_of(live), ": got ", out.token.id, ", expected ",
            expected.reason == FinishReason::kError ? "an error" : "no more");
    const Answer::Token& token = expected.tokens[at];
    require_same(name_of(live), TokenLogprob{out.token.id, out.token.logprob}, token.token);
    require_same(name_of(live) + ", top_logprobs", out.top, token.top);
    require_same(name_of(live), out.prompt_logprobs, at == 0 ? expected.prompt : std::vector<PromptToken>());
    live.tokens.push_back(out.token.id);
    ++num_tokens_;
    const bool last = live.tokens.size() == expected.tokens.size() && expected.reason != FinishReason::kError;
    require(out.finish_reason == (last ? std::optional(expected.reason) : std::nullopt), name_of(live),
            last ? " did not end" : " ended too early", ", or for another reason");
  }

  // A request may fail alone if its logits are no numbers, its strategy threw or it ran out of memory alone, and with
  // others if a step of it threw.
  void check_failed(const Live& live, const Error& error) {
    const std::string_view what = error.what();
    const auto says = [what](std::string_view part) { return what.find(part) != std::string_view::npos; };
    if (says(kOfRequest)) {
      const auto fault = strategy_faults_.find(live.id());
      const bool strategy_threw = fault != strategy_faults_.end() && fault->second.thrown;
      return require(strategy_threw || (live.constraint && live.constraint->has_thrown()), name_of(live),
                     " failed by another's fault");
    }
    if (!says(kOfStep)) {
      const Answer& expected = live.expected;
      return require(expected.reason == FinishReason::kError && live.tokens.size() == expected.tokens.size(),
                     name_of(live), " failed without a fault: ", what);
    }
    const ErrorCode code = error.code();
    if (code == ErrorCode::kCuda) return require(dead_, name_of(live), " failed, but the device works: ", what);
    const auto ends_it = [&](const FakePasses::Pass& pass) {
      const bool alone = pass.spans == 1 && (case_.diffusion || pass.rows == 1);
      const bool shown = device_ == nullptr && !case_.diffusion;  // otherwise the host does not know its rows
      return (code != ErrorCode::kOutOfMemory || alone) && (!shown || may_be_of(pass, live));
    };
    const bool by_device = device_faults_ > 0 && code != ErrorCode::kOutOfMemory;
    require(by_device || std::ranges::any_of(model_.passes().failed, ends_it), name_of(live),
            " failed without a step of its own that failed: ", what);
  }

  // True if rows of a pass, or of the one before it that ran beside it, may be the request's.
  static bool may_be_of(const FakePasses::Pass& pass, const Live& live) {
    std::vector<int32_t> text = live.prompt;
    for (const Answer::Token& token : live.expected.tokens) text.push_back(token.token.id);
    return std::ranges::any_of(pass.requests, [&text](const FakePasses::Rows& rows) {
      return rows.position + std::ssize(rows.tokens) <= std::ssize(text) &&
             std::equal(rows.tokens.begin(), rows.tokens.end(), text.begin() + rows.position);
    });
  }

  void give_up_and_preempt() {
    for (Live& live : lives_) {
      const Arrival& a = case_.arrivals[live.arrival];
      if (live.ended || live.given_up) continue;
      if (a.preempted_at && live.tokens.size() >= *a.preempted_at && !live.preempted)
        live.preempted = engine_.preempt(live.id());
      const bool enough = a.given_up_at && live.tokens.size() >= *a.given_up_at;
      const bool long_enough = a.given_up_after && step_ >= live.came_at + *a.given_up_after;
      if (enough || long_enough) give_up(live, a);
    }
  }

  void give_up(const Live& live, const Arrival& a) {
    if (a.gives_up_all) {
      loop_.abort(live.request_id);
    } else {
      loop_.abort(live.request_id, live.choice);
    }
    for (Live& one : lives_) {
      if (one.request_id == live.request_id && (a.gives_up_all || one.choice == live.choice)) one.given_up = true;
    }
  }

  void check_end() {
    while (loop_.run_once()) engine_.scheduler().audit();  // of requests that were given up last
    loop_.wait_until_idle();
    for (size_t i = 0; i < queues_.size(); ++i) take_events(i);
    for (const Live& live : lives_) require(live.ended.has_value(), name_of(live), " has not ended");
    require(engine_.idle(), "the engine is not idle");
    const EngineStats stats = loop_.stats();
    require(stats.free_pages == stats.num_pages && stats.num_pages == case_.config.runner.num_pages, stats.free_pages,
            " pages are free of ", stats.num_pages);
    const int32_t states = case_.states == FakeText::States::kRecurrent ? case_.config.runner.num_states : 0;
    require(stats.free_states == states && stats.num_states == states, stats.free_states, " states are free of ",
            stats.num_states, ", expected ", states);
    require(stats.tokens == num_tokens_ && stats.tokens <= stats.rows, "the statistics have ", stats.tokens,
            " tokens of ", stats.rows, " rows, consumers ", num_tokens_, " tokens");
    loop_.close();
    try {
      loop_.submit({.prompt_ids = {4}, .params = {.seed = 1}}, queues_.front());
    } catch (const Error& e) {
      return require(e.code() == ErrorCode::kCancelled || dead_, "a closed loop throws ", e.what());
    }
    throw Wrong{"a closed loop takes requests"};
  }

  const Case& case_;
  bench::FakeDevice* device_;  // not owned
  FakeModel model_;
  std::map<int64_t, ThrowingStrategy::Fault> strategy_faults_;  // by id
  Engine engine_;
  std::deque<EventQueue> queues_;
  EngineLoop loop_;
  std::vector<Live> lives_;
  size_t next_ = 0;  // arrival
  int32_t step_ = 0;
  int32_t device_faults_ = 0;
  int64_t num_tokens_ = 0;  // taken
  bool dead_ = false;       // its device has failed
};

std::string wrong_with(const Case& c, bench::FakeDevice* device) {
  try {
    Simulation(c, device).run();
  } catch (const Wrong& wrong) {
    return wrong.text;
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// Leaves out what the case does not need to fail.
std::string smallest_wrong(Case c, bench::FakeDevice* device, std::string wrong) {
  std::string left;
  for (Arrival& a : c.arrivals) {
    a.left_out = true;
    const std::string without = wrong_with(c, device);
    a.left_out = !without.empty();
    if (!without.empty()) wrong = without;
  }
  for (size_t i = 0; i < c.arrivals.size(); ++i) {
    if (!c.arrivals[i].left_out) left += (left.empty() ? "" : ", ") + std::to_string(i);
  }
  return str(wrong, "\nwith the requests ", left, " alone");
}

FuzzCase fuzz_case(uint64_t seed, const FuzzArguments& arguments) {
  static bench::FakeDevice fake(FakeModel::kernels());
  HR_REQUIRE(arguments.backend == "cpu" || arguments.backend == "fake", ErrorCode::kInvalidArgument, "backend is '",
             arguments.backend, "', expected cpu or fake");
  bench::FakeDevice* device = arguments.backend == "fake" ? &fake : nullptr;
  const Case c = draw_case(seed);
  return {.summary = summary_of(c), .wrong = [=] {
            const std::string wrong = wrong_with(c, device);
            return wrong.empty() ? wrong : smallest_wrong(c, device, wrong);
          }};
}

}  // namespace
}  // namespace headrace::testing_support

int main(int argc, char** argv) {
  return headrace::testing_support::fuzz_main("engine_simulator", argc, argv, headrace::testing_support::fuzz_case);
}
