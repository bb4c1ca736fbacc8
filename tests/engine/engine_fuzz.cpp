// Random traffic through an engine in strict mode: requests that come at any step, share beginnings and cached text,
// wait for room, are preempted and given up, and strategies that are asked for all that they read. Each answer is what
// the request is told alone, to the bit of its probabilities.
#include <algorithm>
#include <limits>
#include <map>

#include "engine/strategy_pairs.h"
#include "engine/test_device.h"
#include "engine/with_end_tokens.h"
#include "headrace/core/device_runtime.h"
#include "headrace/decoding/decoding_option.h"
#include "support/fuzz.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr int32_t kPage = 16, kMostSteps = 5000;

struct Traffic {
  Request request;
  std::optional<uint64_t> constraint;  // its seed
  int32_t first_step = 0;              // after which it comes
  std::optional<size_t> goes_on;       // behind the prompt and the answer, as far as it is there, of an earlier one
  std::optional<size_t> gives_up_at;   // tokens
  std::optional<size_t> preempted_at;
};

struct Case {
  Pair pair;
  DType dtype = DType::kF32;
  std::optional<DType> kv_dtype;
  EngineConfig config;
  std::vector<int32_t> eos_ids;  // besides the model's
  std::vector<Traffic> traffic;
};

// Allows about two thirds of the ids, others after each token.
class Drawn final : public TokenConstraint {
 public:
  explicit Drawn(uint64_t seed) : state_(seed) {}
  void fill(std::span<uint32_t> bits) override {
    Random random(state_);
    for (uint32_t& word : bits) word = static_cast<uint32_t>(random.next() | (random.next() & random.next()));
  }
  void accept(int32_t id) override { state_ = Random(state_ + static_cast<uint64_t>(id)).next(); }

 private:
  uint64_t state_;
};

struct Answer {
  std::vector<SampledToken> tokens;
  std::optional<FinishReason> reason;
};

bool is_causal(const Pair& pair) { return pair.strategy == "autoregressive"; }

Pair draw_pair(Random& random, const std::string& backend) {
  if (random.below(2) == 0) {
    const std::vector<std::string> families = golden_families();
    return {"autoregressive", families[static_cast<size_t>(random.below(std::ssize(families)))]};
  }
  const Pair pair =
      pick(random, {Pair{"multi_bd", "sdar"}, Pair{"multi_bd", "sdar_moe"}, Pair{"multi_bd", "llada2"},
                    Pair{"full_attention", "dream"}, Pair{"full_attention", "llada"}, Pair{"dual_cache", "llada"},
                    Pair{"fast_dllm_v2", "fast_dllm_v2"}, Pair{"d2f", "dream"}, Pair{"multi_bd_edit", "llada2"},
                    Pair{"dmax", "llada2"}, Pair{"diffusion_gemma", "diffusion_gemma"}});
  return backend != kOnCpu && pair.strategy == "diffusion_gemma" ? Pair{"multi_bd", "sdar"} : pair;
}

// That the backend runs.
Pair draw_runnable_pair(Random& random, const std::string& backend) {
  Pair pair = draw_pair(random, backend);
  while (backend == kOnFakeDevice && has_experts(pair.family)) pair = draw_pair(random, backend);
  return pair;
}

// A beginning that others have, too, and text of its own.
std::vector<int32_t> draw_prompt(Random& random, int32_t most) {
  std::vector<int32_t> prompt =
      prompt_of(std::min(most, pick(random, {0, 15, 16, 33, 48, between(random, 0, 90)})), between(random, 0, 1));
  const int32_t own = between(random, prompt.empty() ? 1 : 0, std::max(1, std::min(40, most - 1)));
  for (int32_t i = 0; i < own && std::ssize(prompt) < most; ++i) prompt.push_back(between(random, 6, 200) % 60 + 6);
  return prompt;
}

bool reads(const Pair& pair, DecodingOption option) { return reads_option(pair.strategy, option); }

// How many blocks, and how large; rows of a step that may cut prompts, where the strategy lets them be cut.
void draw_blocks(Random& random, const Pair& pair, EngineConfig& config) {
  if (reads(pair, DecodingOption::kNumBlocks)) config.decoding.num_blocks = between(random, 1, 3);
  if (!reads(pair, DecodingOption::kNumBlocks) || pair.strategy == "d2f") return;
  config.decoding.block_size = pick(random, {2, 4, 8});
  config.runner.max_tokens = between(random, 2 * config.decoding.num_blocks * *config.decoding.block_size + 1, 100);
}

// What the published loops read in place of thresholds and passes.
DecodingParams draw_published_loop(Random& random, const Pair& pair, DecodingParams d) {
  d.schedule = DecodingParams::Schedule::kReference;
  d.threshold.reset(), d.max_passes.reset(), d.remask_threshold.reset();
  if (reads(pair, DecodingOption::kSteps) && random.below(2) == 0) d.steps = between(random, 1, 6);
  return d;
}

DecodingParams draw_decoding(Random& random, const Pair& pair, DecodingParams d) {
  using Rule = DecodingParams::Rule;
  if (reads(pair, DecodingOption::kStability)) d.stability = pick(random, {0.0f, 0.5f, 1.0f});
  if (reads(pair, DecodingOption::kAddBlock)) d.add_block = pick(random, {0.1f, 0.0f, 0.5f});
  if (reads(pair, DecodingOption::kSemiComplete)) d.semi_complete = pick(random, {0.9f, 0.0f});
  if (reads(pair, DecodingOption::kMaxPasses) && random.below(3) == 0) d.max_passes = between(random, 1, 4);
  if (reads(pair, DecodingOption::kEditThreshold)) d.edit_threshold = pick(random, {0.5f, 0.03f});
  if (reads(pair, DecodingOption::kRemaskThreshold) && random.below(4) == 0) d.remask_threshold = 0.03f;
  if (reads(pair, DecodingOption::kMaxEdits)) d.max_edits = between(random, 0, 6);
  if (reads(pair, DecodingOption::kMergeCandidates)) d.merge_candidates = between(random, 1, 3);
  if (reads(pair, DecodingOption::kOrderTemperature)) {
    d.rule = pick(random, {Rule::kConfidence, Rule::kConfidence, Rule::kMargin, Rule::kLeftmost, Rule::kRandom});
    if (d.rule == Rule::kLeftmost || d.rule == Rule::kRandom) d.threshold.reset();
  }
  if (reads(pair, DecodingOption::kCopyPenalty)) d.copy_penalty = pick(random, {0.0f, 0.0f, 1.5f});
  if (reads(pair, DecodingOption::kCfgScale) && pair.family == "llada") d.cfg_scale = pick(random, {0.0f, 0.5f, 2.0f});
  const bool published = reads(pair, DecodingOption::kSchedule) && random.below(3) == 0;
  return published ? draw_published_loop(random, pair, d) : d;
}

void draw_changes(Random& random, SamplingParams& params) {
  params.presence_penalty = pick(random, {0.0f, 0.0f, 1.5f, -0.5f});
  params.frequency_penalty = pick(random, {0.0f, 0.0f, 0.4f});
  if (random.below(4) == 0) params.min_tokens = between(random, 0, params.max_tokens);
  const float most = pick(random, {3.0f, 100.0f});
  for (int32_t id = 6; id < 250 && random.below(4) == 0; id += between(random, 1, 90)) {
    params.logit_bias.push_back({id, pick(random, {most, -most, 0.5f, -std::numeric_limits<float>::infinity()})});
  }
  if (random.below(4) == 0) params.stop_token_ids = {between(random, 6, 200), between(random, 6, 200)};
}

SamplingParams draw_params(Random& random, const Pair& pair, int32_t most) {
  SamplingParams params = greedy(between(random, 1, most), pick(random, {0.02f, 0.1f, 0.5f}));
  using EndOfText = SamplingParams::EndOfText;
  params.end_of_text = pick(random, {EndOfText::kStops, EndOfText::kStops, EndOfText::kIgnored, EndOfText::kBanned});
  if (random.below(2) == 0) params.temperature = 0.9f, params.seed = random.next() % 1000;
  params.repetition_penalty = pick(random, {1.0f, 1.0f, 1.2f});
  draw_changes(random, params);
  params.decoding = draw_decoding(random, pair, params.decoding);
  if (!is_causal(pair)) return params;
  params.decoding = {};
  if (params.temperature == 0) return params;
  params.top_k = pick(random, {0, 0, 5, 40});
  params.top_p = pick(random, {1.0f, 0.9f});
  return params;
}

Case draw(uint64_t seed, const std::string& backend) {
  Random random(seed);
  Case c{.pair = draw_runnable_pair(random, backend)};
  const bool causal = is_causal(c.pair);
  c.dtype = pick(random, {DType::kF32, DType::kBF16});
  const int64_t keys = random.below(8);
  if (keys % 4 == 0) c.kv_dtype = keys == 0 && backend == kOnCpu ? DType::kI8 : DType::kE4M3;
  const int32_t context = causal ? 192 : 128;
  const int32_t pages = between(random, context / kPage, 40);
  c.config = config_of(c.pair.strategy, between(random, 1, 5));
  c.config.max_context_len = context;
  c.config.keep_text = random.below(3) > 0 ? SchedulerConfig::KeepText::kYes : SchedulerConfig::KeepText::kNo;
  c.config.runner.num_pages = pages;
  c.config.runner.num_states = c.config.max_requests + between(random, 0, 4);
  if (causal) c.config.runner.max_tokens = between(random, 8, 200);
  draw_blocks(random, c.pair, c.config);
  for (int32_t i = pick(random, {0, 2, 20}); i > 0; --i) c.eos_ids.push_back(between(random, 6, 249));
  if (random.below(2) == 0) c.config.steps_ahead = EngineConfig::StepsAhead::kAlways;
  if (backend != kOnCpu && random.below(4) == 0) c.config.runner.graphs = RunnerConfig::Graphs::kOff;
  for (int32_t i = between(random, 2, 8), step = 0; i > 0; --i) {
    Traffic one{.request = {draw_prompt(random, context / 2), {}}, .first_step = step};
    one.request.params = draw_params(random, c.pair, 40);
    if (causal && random.below(4) == 0) one.constraint = random.next();
    if (random.below(4) == 0) one.gives_up_at = static_cast<size_t>(between(random, 0, 20));
    if (random.below(2) == 0) one.preempted_at = static_cast<size_t>(between(random, 0, 20));
    if (!c.traffic.empty() && random.below(3) == 0)
      one.goes_on = static_cast<size_t>(random.below(std::ssize(c.traffic)));
    c.traffic.push_back(std::move(one));
    step += pick(random, {0, 0, 1, between(random, 0, 40)});
  }
  return c;
}

// Thrown by what is wrong.
struct Wrong {
  std::string text;
};

// What a request that goes on is told: nothing where the context has no room.
std::vector<int32_t> text_so_far(const Traffic& one, const Answer& answer, int64_t room) {
  std::vector<int32_t> text = one.request.prompt;
  for (const SampledToken& token : answer.tokens) text.push_back(token.id);
  return std::ssize(text) <= room ? text : std::vector<int32_t>{};
}

// Prompts of requests that go on are completed.
std::vector<Answer> answers_of(const Model& model, const EngineConfig& config, std::vector<Traffic>& traffic) {
  Engine engine(model, config);
  std::map<int64_t, size_t> who;
  std::vector<Answer> answers(traffic.size());
  engine.observe([&](StepMoment, const Sequence& s, const StepPlan&) {
    const std::vector<SampledToken>& tokens = answers[who.at(s.id)].tokens;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (s.tokens[static_cast<size_t>(s.prompt_len) + i] != tokens[i].id)
        throw Wrong{str("token ", i, " of request ", who.at(s.id), " changed after it was handed out")};
    }
  });
  size_t next = 0;
  for (int32_t step = 0; next < traffic.size() || !engine.idle(); ++step) {
    if (step > kMostSteps) throw Wrong{str("not over after ", kMostSteps, " steps")};
    for (; next < traffic.size() && (traffic[next].first_step <= step || engine.idle()); ++next) {
      Traffic& one = traffic[next];
      std::vector<int32_t>& prompt = one.request.prompt;
      if (one.goes_on) {
        const int64_t room = config.max_context_len - one.request.params.max_tokens - std::ssize(prompt) - kPage;
        const std::vector<int32_t> text = text_so_far(traffic[*one.goes_on], answers[*one.goes_on], room);
        prompt.insert(prompt.begin(), text.begin(), text.end());
      }
      EngineRequest request{.prompt = prompt, .params = one.request.params};
      if (one.constraint) request.constraint = std::make_shared<Drawn>(*one.constraint);
      who[engine.add(std::move(request))] = next;
    }
    for (const StepOutput& out : engine.step()) {
      Answer& answer = answers[who.at(out.sequence_id)];
      answer.tokens.push_back(out.token);
      answer.reason = out.finish_reason;
    }
    engine.scheduler().audit();
    for (const auto& [id, i] : who) {
      std::optional<size_t>& preempted_at = traffic[i].preempted_at;
      if (preempted_at && answers[i].tokens.size() >= *preempted_at && engine.preempt(id)) preempted_at.reset();
      const std::optional<size_t> most = traffic[i].gives_up_at;
      if (most && answers[i].tokens.size() >= *most && !answers[i].reason) engine.abort(id);
    }
  }
  if (engine.scheduler().free_pages() != config.runner.num_pages) throw Wrong{"pages are lost"};
  if (model.info().num_gdn_layers > 0 && engine.scheduler().free_states() != config.runner.num_states)
    throw Wrong{"states are lost"};
  return answers;
}

// Of a request that was given up, what had come until then.
void expect_same(const Answer& got, const Answer& want, const Traffic& traffic, size_t request) {
  const std::string what = str("request ", request, " (prompt of ", traffic.request.prompt.size(), ", at most ",
                               traffic.request.params.max_tokens, " tokens)");
  const bool whole = !traffic.gives_up_at || got.reason;
  if (whole ? got.tokens.size() != want.tokens.size() : got.tokens.size() > want.tokens.size())
    throw Wrong{str(what, " has ", got.tokens.size(), " tokens, alone ", want.tokens.size())};
  for (size_t i = 0; i < got.tokens.size(); ++i) {
    const SampledToken &g = got.tokens[i], &w = want.tokens[i];
    if (g.id != w.id || g.logprob != w.logprob)
      throw Wrong{str(what, ", token ", i, ": got ", g.id, " with ", g.logprob, ", alone ", w.id, " with ", w.logprob)};
  }
  if (whole && got.reason != want.reason) throw Wrong{what + " ended for another reason than alone"};
}

void check(Case c, const OpSet& ops, DeviceRuntime* device) {
  OpContext strict{.threads = 2, .determinism = Determinism::kStrict};
  if (device != nullptr) strict.stream = device->stream();
  const auto loaded =
      load_model(golden_folder(c.pair.family), {.dtype = c.dtype, .ops = &ops, .context = strict, .runtime = device});
  std::vector<int32_t> eos_ids = loaded->info().eos_ids;
  eos_ids.insert(eos_ids.end(), c.eos_ids.begin(), c.eos_ids.end());
  for (Traffic& traffic : c.traffic) {  // none can be banned where there is none
    using EndOfText = SamplingParams::EndOfText;
    EndOfText& end = traffic.request.params.end_of_text;
    if (eos_ids.empty() && end == EndOfText::kBanned) end = EndOfText::kIgnored;
  }
  const WithEndTokens model(*loaded, std::move(eos_ids));
  RunnerConfig& runner = c.config.runner;
  runner.context = strict, runner.runtime = device, runner.kv_dtype = c.kv_dtype;
  if (device == nullptr) {
    runner.kernel_set = std::string(ops.name);
  } else {
    runner.ops = &ops;
  }
  EngineConfig alone = c.config;
  alone.max_requests = alone.runner.num_states = 1;
  alone.keep_text = SchedulerConfig::KeepText::kNo;
  alone.runner.max_tokens = 256;
  const std::vector<Answer> together = answers_of(model, c.config, c.traffic);
  for (size_t i = 0; i < c.traffic.size(); ++i) {
    std::vector<Traffic> one = {{.request = c.traffic[i].request, .constraint = c.traffic[i].constraint}};
    expect_same(together[i], answers_of(model, alone, one).front(), c.traffic[i], i);
  }
}

std::string summary_of(const Case& c) {
  return str(c.pair, ", ", name_of(c.dtype), c.kv_dtype ? str(", keys in ", name_of(*c.kv_dtype)) : "", ", ",
             c.traffic.size(), " requests, ", c.config.max_requests, " at once, ", c.config.decoding.num_blocks,
             " blocks of ", c.config.decoding.block_size.value_or(0), ", ", c.eos_ids.size(), " end tokens, ",
             c.config.runner.num_pages, " pages, ", c.config.runner.num_states, " states, ", c.config.runner.max_tokens,
             " rows a step", c.config.keep_text == SchedulerConfig::KeepText::kYes ? ", text is kept" : "",
             c.config.steps_ahead == EngineConfig::StepsAhead::kAlways ? ", steps ahead" : "",
             c.config.runner.graphs == RunnerConfig::Graphs::kOff ? ", no graphs" : "");
}

std::string wrong_with(const Case& c, const OpSet& ops, DeviceRuntime* device) {
  try {
    check(c, ops, device);
  } catch (const Wrong& wrong) {
    return wrong.text;
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// One of the CPU's kernel sets, by the seed.
const OpSet& kernel_set_of(uint64_t seed) {
  std::vector<const OpSet*> sets;
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (set.runs_here()) sets.push_back(set.ops);
  }
  return *sets[seed % sets.size()];
}

FuzzCase fuzz_case(uint64_t seed, const FuzzArguments& arguments) {
  const std::optional<TestDevice> place = test_device(arguments.backend);
  HR_REQUIRE(place, ErrorCode::kNoDevice, "no CUDA device for the backend '", arguments.backend, "'");
  const OpSet* ops = place->ops != nullptr ? place->ops : &kernel_set_of(seed);
  DeviceRuntime* device = place->ops != nullptr ? place->runtime : nullptr;
  const Case c = draw(seed, arguments.backend);
  return {.summary = str(ops->name, ", ", summary_of(c)), .wrong = [=] { return wrong_with(c, *ops, device); }};
}

}  // namespace
}  // namespace headrace::testing_support

int main(int argc, char** argv) {
  return headrace::testing_support::fuzz_main("engine_fuzz", argc, argv, headrace::testing_support::fuzz_case);
}
