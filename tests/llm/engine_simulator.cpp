// Simulates an engine under load, with a model without weights: requests come, are given up, preempted and fail, pages
// and states run out, consumers are slow and steps throw, all by a seed. Every token is compared with the model's
// definition, and the ownership of pages and states is audited after every step.
#include <algorithm>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "engine/fake_model.h"
#include "headrace/core/device_runtime.h"
#include "headrace/core/scope_end.h"
#include "headrace/llm/engine_loop.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/penalty.h"
#include "support/fuzz.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr int32_t kMostSteps = 3000;
constexpr const char *kOfStep = FakePasses::kInjected, *kOfStrategy = "injected into a strategy";

struct Arrival {
  std::vector<int32_t> prompt;
  SamplingParams params;
  int32_t n = 1;
  std::string salt;
  bool reports_steps = false;
  size_t queue = 0;               // its consumer's
  int32_t step = 0;               // after which it comes
  std::optional<size_t> goes_on;  // behind the prompt and the answer, as far as it is there, of an earlier one
  // Tokens of the answer behind which it is given up or preempted.
  std::optional<size_t> given_up_at, preempted_at;
  std::optional<int32_t> given_up_after;  // steps since it came
  bool gives_up_all = false;              // choices, not one
  // Its strategy throws when it has so many tokens behind the prompt.
  enum class Throws : uint8_t { kNever, kInPlan, kInCommit } throws = Throws::kNever;
  int32_t throws_at = 0;
  bool left_out = false;  // by what makes a failing case smaller
};

constexpr int32_t kAtTheEnd = INT32_MAX;

struct StepFault {
  int32_t step = 0;
  ErrorCode code = ErrorCode::kInternal;
  int32_t passes = 1;  // that fail
  // On a fake device: work that is queued throws, in place of a pass.
  enum class Where : uint8_t { kInPass, kOnDevice } where = Where::kInPass;
};

struct Case {
  FakeText::States states = FakeText::States::kNone;
  std::optional<DiffusionInfo> diffusion;
  EngineConfig config;
  std::vector<Arrival> arrivals;
  std::vector<StepFault> faults;
  std::optional<int32_t> most_rows;  // steps of more run out of memory
  std::vector<int32_t> consumers;    // steps after which each takes its events
};

template <class T>
T pick(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.below(static_cast<int64_t>(values.size()))];
}

int32_t between(Random& random, int32_t first, int32_t last) {
  return first + static_cast<int32_t>(random.below(int64_t{last} - first + 1));
}

bool one_in(Random& random, int64_t n) { return random.below(n) == 0; }

int32_t draw_token(Random& random) { return between(random, 4, FakeText::kVocab - 1); }

// One of two beginnings that others have, too, and text of its own. A fatal one has no numbers some tokens later.
std::vector<int32_t> draw_prompt(Random& random, int32_t most) {
  std::vector<int32_t> prompt;
  const int32_t stem = between(random, 0, 1);
  const int32_t shared = pick(random, {0, 15, 16, 17, 32, 48, between(random, 0, 60)});
  for (int32_t i = 0; i < shared; ++i) prompt.push_back(4 + (i * (stem + 3) + stem) % (FakeText::kVocab - 4));
  for (int32_t i = between(random, 0, 20); i > 0; --i) prompt.push_back(draw_token(random));
  if (one_in(random, 12)) prompt.insert(prompt.end(), {FakeText::kFatal, between(random, 1, 20)});
  if (prompt.empty()) prompt.push_back(draw_token(random));
  if (std::ssize(prompt) > most) prompt.resize(static_cast<size_t>(most));
  return prompt;
}

SamplingParams draw_params(Random& random) {
  using EndOfText = SamplingParams::EndOfText;
  SamplingParams p{.max_tokens = pick(random, {1, 2, between(random, 1, 12), between(random, 1, 40)})};
  p.temperature = pick(random, {0.0f, 0.0f, 0.7f, 1.0f, 1.5f});
  if (p.temperature > 0) {
    p.top_k = pick(random, {0, 0, 1, 5, 20});
    p.top_p = pick(random, {1.0f, 1.0f, 0.9f, 0.5f});
    p.min_p = pick(random, {0.0f, 0.0f, 0.05f});
  }
  p.seed = random.next() % 1000;  // absent, it is drawn
  p.repetition_penalty = pick(random, {1.0f, 1.0f, 1.0f, 1.2f, 0.8f});
  p.end_of_text = pick(random, {EndOfText::kStops, EndOfText::kStops, EndOfText::kIgnored, EndOfText::kBanned});
  p.top_logprobs = pick(random, {0, 0, 0, 1, 5, FakeText::kVocab + 1});
  if (one_in(random, 6)) p.prompt_logprobs = pick(random, {0, 1, 3});
  for (int32_t i = pick(random, {0, 0, 0, 1, 4}); i > 0; --i) p.stop_token_ids.push_back(draw_token(random));
  return p;
}

Arrival draw_arrival(Random& random, int32_t most_prompt, size_t earlier) {
  Arrival a{.prompt = draw_prompt(random, most_prompt), .params = draw_params(random)};
  a.salt = pick(random, {"", "", "", "a", "b"});
  a.n = pick(random, {1, 1, 1, 2, 4});
  a.reports_steps = a.n == 1 && one_in(random, 6);
  if (earlier > 0 && one_in(random, 3)) a.goes_on = static_cast<size_t>(random.below(static_cast<int64_t>(earlier)));
  if (one_in(random, 5)) a.given_up_at = static_cast<size_t>(between(random, 0, 12));
  if (one_in(random, 8)) a.given_up_after = between(random, 0, 12);
  a.gives_up_all = one_in(random, 2);
  if (one_in(random, 3)) a.preempted_at = static_cast<size_t>(between(random, 0, 12));
  if (one_in(random, 12)) {
    a.throws = pick(random, {Arrival::Throws::kInPlan, Arrival::Throws::kInCommit});
    a.throws_at = between(random, 0, 12);
  }
  return a;
}

void draw_engine(Random& random, Case& c) {
  RunnerConfig& runner = c.config.runner;
  runner.page_size = pick(random, {1, 16, 16, 16, 32});
  c.config.max_context_len = between(random, 64, 144);
  c.config.max_requests = pick(random, {1, 2, 3, 4, 6, 12});
  const int32_t of_context = (c.config.max_context_len + runner.page_size - 1) / runner.page_size;
  runner.num_pages = of_context + between(random, 0, of_context * pick(random, {1, 1, 4}));
  runner.num_states = pick(random, {c.config.max_requests, between(random, 1, c.config.max_requests + 4)});
  runner.max_tokens = pick(random, {between(random, 1, 12), between(random, 12, 100)});
  runner.context.determinism = pick(random, {Determinism::kFast, Determinism::kStrict});
  if (one_in(random, 3)) runner.graphs = RunnerConfig::Graphs::kOff;
  c.config.keep_text = one_in(random, 3) ? SchedulerConfig::KeepText::kNo : SchedulerConfig::KeepText::kYes;
  using StepsAhead = EngineConfig::StepsAhead;
  c.config.steps_ahead = pick(random, {StepsAhead::kNever, StepsAhead::kAlways, StepsAhead::kAlways});
  if (one_in(random, 4)) c.config.vocab = FakeText::kVocab - 5;
}

void draw_faults(Random& random, Case& c, int32_t last_step) {
  if (one_in(random, 8)) c.most_rows = between(random, 1, 24);
  for (int32_t i = pick(random, {0, 0, 0, 1, 2}); i > 0; --i) {
    StepFault fault{.step = between(random, 0, last_step + 20), .passes = pick(random, {1, 1, 2, 5})};
    fault.code = pick(random, {ErrorCode::kOutOfMemory, ErrorCode::kOutOfMemory, ErrorCode::kInternal});
    if (one_in(random, 6)) fault.code = ErrorCode::kCuda;
    const bool on_device = fault.code != ErrorCode::kOutOfMemory && one_in(random, 2);
    if (on_device) fault.where = StepFault::Where::kOnDevice;
    c.faults.push_back(fault);
  }
}

// A strategy of a diffusion model, and what its requests may ask for.
void draw_diffusion(Random& random, Case& c) {
  EngineConfig& config = c.config;
  config.strategy = pick(random, {"multi_bd", "multi_bd", "full_attention", "dual_cache", "d2f"});
  const bool blocks = config.strategy == "multi_bd";
  c.states = FakeText::States::kNone;
  c.diffusion = DiffusionInfo{.mask_token_id = FakeText::kMask, .block_size = 4, .sub_block_size = 4};
  c.diffusion->attention = blocks ? DiffusionInfo::Attention::kBlockCausal : DiffusionInfo::Attention::kFull;
  c.diffusion->threshold = pick(random, {0.1f, 0.2f, 0.9f});
  if (blocks || config.strategy == "d2f") config.decoding.num_blocks = between(random, 1, 3);
  config.runner.max_tokens = blocks ? between(random, 8 * config.decoding.num_blocks + 1, 100) : 400;
}

void draw_arrivals(Random& random, Case& c) {
  int32_t step = 0;
  for (int32_t i = pick(random, {between(random, 1, 4), between(random, 4, 12)}); i > 0; --i) {
    Arrival a = draw_arrival(random, c.config.max_context_len / 2, c.arrivals.size());
    if (c.diffusion) a.params.top_logprobs = 0, a.params.prompt_logprobs.reset();
    a.step = step;
    a.queue = static_cast<size_t>(random.below(std::ssize(c.consumers)));
    c.arrivals.push_back(std::move(a));
    step += pick(random, {0, 0, 1, between(random, 0, 20)});
  }
  draw_faults(random, c, step);
}

Case draw(uint64_t seed) {
  Random random(seed);
  Case c{.states = pick(random, {FakeText::States::kNone, FakeText::States::kRecurrent})};
  draw_engine(random, c);
  if (one_in(random, 5)) draw_diffusion(random, c);
  for (int32_t i = between(random, 1, 3); i > 0; --i)
    c.consumers.push_back(pick(random, {1, 1, between(random, 2, 30), kAtTheEnd}));
  draw_arrivals(random, c);
  return c;
}

// Thrown by what is wrong.
struct Wrong {
  std::string text;
};

template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) throw Wrong{str(parts...)};
}

struct Answer {
  struct Token {
    TokenLogprob token;
    std::vector<TokenLogprob> top;
  };
  std::vector<Token> tokens;
  std::vector<PromptToken> prompt;
  FinishReason reason = FinishReason::kError;
};

int32_t vocab_of(const Case& c) { return c.config.vocab > 0 ? c.config.vocab : FakeText::kVocab; }

// What the logits become before a token is chosen.
std::vector<float> changed(std::vector<float> row, const SamplingParams& p, std::span<const int32_t> text) {
  const float never = -std::numeric_limits<float>::infinity();
  if (p.end_of_text == SamplingParams::EndOfText::kBanned) {
    for (const int32_t id : FakeText::kEosIds) row[static_cast<size_t>(id)] = never;
  }
  for (const int32_t id : std::set(text.begin(), text.end())) {
    float& logit = row[static_cast<size_t>(id)];
    if (p.repetition_penalty != 1) logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  }
  return row;
}

int32_t chosen(std::vector<float> row, const SamplingParams& p, int32_t vocab, size_t position) {
  if (p.temperature == 0) return static_cast<int32_t>(std::max_element(row.begin(), row.begin() + vocab) - row.begin());
  SamplingParams draws{.temperature = p.temperature, .top_k = p.top_k, .top_p = p.top_p, .min_p = p.min_p};
  draws.seed = p.seed.value_or(0);
  const SampleSpot spot{.params = &draws, .position = static_cast<int64_t>(position) - 1};
  const TensorView logits(row.data(), DType::kF32, {1, std::ssize(row)});
  return Sampler(cpu::select_kernel_set(), {}, vocab).sample(logits, {&spot, 1}).front().id;
}

TokenLogprob logprob_of(std::span<const float> row, int32_t id) {
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit));
  return {id, static_cast<float>(static_cast<double>(row[static_cast<size_t>(id)]) - std::log(sum))};
}

std::vector<TokenLogprob> likeliest(std::span<const float> row, int32_t vocab, int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::sort(ids, std::greater(), [row](int32_t id) { return row[static_cast<size_t>(id)]; });
  ids.resize(static_cast<size_t>(std::min(count, vocab)));
  std::vector<TokenLogprob> top;
  for (const int32_t id : ids) top.push_back(logprob_of(row, id));
  return top;
}

bool ends(const SamplingParams& p, int32_t id) {
  const bool is_eos = std::ranges::find(FakeText::kEosIds, id) != FakeText::kEosIds.end();
  return (is_eos && p.end_of_text == SamplingParams::EndOfText::kStops) ||
         std::ranges::find(p.stop_token_ids, id) != p.stop_token_ids.end();
}

// The answer to a prompt, by the model's definition alone.
Answer answer_of(const Case& c, const std::vector<int32_t>& prompt, const SamplingParams& p) {
  const int32_t vocab = vocab_of(c);
  FakeText model(c.states);
  Answer answer;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i > 0 && p.prompt_logprobs) {
      const std::vector<float> row = model.logits();
      if (std::isnan(row.front())) return answer;
      answer.prompt.push_back({logprob_of(row, prompt[i]), likeliest(row, vocab, *p.prompt_logprobs)});
    }
    model.push(prompt[i]);
  }
  std::vector<int32_t> text = prompt;
  for (;;) {
    const std::vector<float> row = model.logits();
    if (std::isnan(row.front())) return answer;
    const int32_t id = chosen(changed(row, p, text), p, vocab, text.size());
    answer.tokens.push_back({logprob_of(row, id), likeliest(row, vocab, p.top_logprobs)});
    text.push_back(id), model.push(id);
    if (ends(p, id)) answer.reason = FinishReason::kStop;
    else if (std::ssize(answer.tokens) >= p.max_tokens) answer.reason = FinishReason::kLength;
    else if (std::ssize(text) >= c.config.max_context_len) answer.reason = FinishReason::kContext;
    else continue;
    return answer;
  }
}

// The answer of an engine that runs the request alone, with room for all of it.
Answer answer_alone(const Case& c, const std::vector<int32_t>& prompt, const SamplingParams& params) {
  const FakeModel model(c.states, nullptr, c.diffusion);
  EngineConfig config{.max_context_len = c.config.max_context_len, .vocab = c.config.vocab};
  config.strategy = c.config.strategy, config.decoding = c.config.decoding;
  config.runner = {.ops = &FakeModel::kernels(), .num_pages = 40, .page_size = 16, .max_tokens = 400};
  Engine engine(model, config);
  engine.add(prompt, params);
  Answer answer;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) {
      if (!out.error) answer.tokens.push_back({{out.token.id, out.token.logprob}, {}});
      if (out.finish_reason) answer.reason = *out.finish_reason;
    }
  }
  return answer;
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
    throw std::runtime_error(kOfStrategy);
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
    std::erase_if(request.params.stop_token_ids, [this](int32_t id) { return id >= vocab_of(case_); });
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
      live.expected = case_.diffusion ? answer_alone(case_, prompt, params) : answer_of(case_, prompt, params);
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
      const auto is_its = [&](const Live& l) {
        return l.request_id == event->request_id && l.choice == event->choice;
      };
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
    if (says(kOfStrategy)) {
      const auto fault = strategy_faults_.find(live.id());
      return require(fault != strategy_faults_.end() && fault->second.thrown, name_of(live), " fails by another's fault");
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
    loop_.wait_until_idle();
    for (size_t i = 0; i < queues_.size(); ++i) take_events(i);
    for (const Live& live : lives_) require(live.ended.has_value(), name_of(live), " has not ended");
    require(engine_.idle(), "the engine is not idle");
    const EngineStats stats = loop_.stats();
    require(stats.free_pages == stats.num_pages && stats.num_pages == case_.config.runner.num_pages, stats.free_pages,
            " pages are free of ", stats.num_pages);
    const bool recurrent = case_.states == FakeText::States::kRecurrent;
    require(!recurrent || stats.free_states == case_.config.runner.num_states, stats.free_states,
            " states are free of ", case_.config.runner.num_states);
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

std::string summary_of(const Case& c) {
  return str(c.config.strategy, c.states == FakeText::States::kNone ? ", dense, " : ", hybrid, ", c.arrivals.size(), " requests, ",
             c.config.max_requests, " at once, context ", c.config.max_context_len, ", ", c.config.runner.num_pages,
             " pages of ", c.config.runner.page_size, ", ", c.config.runner.num_states, " states, ",
             c.config.runner.max_tokens, " rows a step",
             c.config.keep_text == SchedulerConfig::KeepText::kYes ? ", text is kept" : "",
             c.config.steps_ahead == EngineConfig::StepsAhead::kAlways ? ", steps ahead" : "",
             c.config.runner.graphs == RunnerConfig::Graphs::kOff ? ", no graphs" : "", ", ", c.faults.size(),
             " faults");
}

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
    a.left_out = without.empty();
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
  const Case c = draw(seed);
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
