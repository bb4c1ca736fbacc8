#include "llm/simulated_case.h"

#include <algorithm>
#include <limits>

#include "support/random.h"

namespace headrace::testing_support {
namespace {

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
  if (one_in(random, 4)) p.min_tokens = between(random, 1, p.max_tokens);
  p.presence_penalty = pick(random, {0.0f, 0.0f, 0.0f, 0.5f, -0.25f});  // exact in float32, as their multiples are
  p.frequency_penalty = pick(random, {0.0f, 0.0f, 0.0f, 0.25f, -0.5f});
  for (int32_t id = 4 + pick(random, {1000, 1000, 0, 1, 2}); id < FakeText::kVocab; id += 3)
    p.logit_bias.push_back({id, pick(random, {-std::numeric_limits<float>::infinity(), -2.0f, 0.5f, 3.0f})});
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
  if (a.n == 1 && one_in(random, 6)) {
    a.constraint_salt = random.next();
    if (one_in(random, 4)) a.constraint_throws_at = between(random, 0, 6);
  }
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

// Its strategies decide several tokens in a pass.
void keep_what_diffusion_reads(Arrival& a) {
  a.params.top_logprobs = a.params.min_tokens = 0;
  a.params.presence_penalty = a.params.frequency_penalty = 0;
  a.params.prompt_logprobs.reset(), a.params.logit_bias.clear(), a.constraint_salt.reset();
}

void draw_arrivals(Random& random, Case& c) {
  int32_t step = 0;
  for (int32_t i = pick(random, {between(random, 1, 4), between(random, 4, 12)}); i > 0; --i) {
    Arrival a = draw_arrival(random, c.config.max_context_len / 2, c.arrivals.size());
    if (c.diffusion) keep_what_diffusion_reads(a);
    a.step = step;
    a.queue = static_cast<size_t>(random.below(std::ssize(c.consumers)));
    c.arrivals.push_back(std::move(a));
    step += pick(random, {0, 0, 1, between(random, 0, 20)});
  }
  draw_faults(random, c, step);
}

}  // namespace

Case draw_case(uint64_t seed) {
  Random random(seed);
  Case c{.states = pick(random, {FakeText::States::kNone, FakeText::States::kRecurrent})};
  draw_engine(random, c);
  if (one_in(random, 5)) draw_diffusion(random, c);
  for (int32_t i = between(random, 1, 3); i > 0; --i)
    c.consumers.push_back(pick(random, {1, 1, between(random, 2, 30), kAtTheEnd}));
  draw_arrivals(random, c);
  return c;
}

std::string summary_of(const Case& c) {
  return str(c.config.strategy, c.states == FakeText::States::kNone ? ", dense, " : ", hybrid, ", c.arrivals.size(),
             " requests, ", c.config.max_requests, " at once, context ", c.config.max_context_len, ", ",
             c.config.runner.num_pages, " pages of ", c.config.runner.page_size, ", ", c.config.runner.num_states,
             " states, ", c.config.runner.max_tokens, " rows a step",
             c.config.keep_text == SchedulerConfig::KeepText::kYes ? ", text is kept" : "",
             c.config.steps_ahead == EngineConfig::StepsAhead::kAlways ? ", steps ahead" : "",
             c.config.runner.graphs == RunnerConfig::Graphs::kOff ? ", no graphs" : "", ", ", c.faults.size(),
             " faults");
}

}  // namespace headrace::testing_support
