// Defects of the origin (docs/defects.md) that a decoding strategy could repeat, and what it lacked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

// Before the toy model, whose namespace would hide ::testing from them.
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/tolerances.h"

#include "engine/golden_device.h"
#include "engine/strategy_pairs.h"
#include "engine/toy_diffusion_model.h"
#include "engine/with_end_tokens.h"
#include "headrace/attention/attention.h"
#include "headrace/cache/kv_pool.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"

namespace headrace {
namespace {

using testing_support::golden_folder;
using testing_support::Random;
using testing_support::random_tensor;
using testing_support::ToyDiffusionModel;
using Rule = DecodingParams::Rule;

bool masked(const Sequence& s, int32_t position) {
  return position >= s.num_tokens() || std::ranges::any_of(s.blocks, [position](const DecodingBlock& b) {
           return b.begin() <= position && position < b.end() && b.masked(position);
         });
}

// What a request's passes decided: position, token, confidence.
struct Decision {
  int32_t position = 0, id = 0;
  float confidence = 0;
  bool operator==(const Decision&) const = default;
};

struct Decoded {
  std::vector<SampledToken> tokens;
  std::vector<std::vector<Decision>> passes;
  std::optional<FinishReason> reason;

  std::vector<int32_t> ids() const {
    std::vector<int32_t> ids;
    for (const SampledToken& token : tokens) ids.push_back(token.id);
    return ids;
  }
};

std::vector<Decoded> decode(const Model& model, const EngineConfig& config, const std::vector<Request>& requests) {
  Engine engine(model, config);
  std::map<int64_t, Decoded> result;
  engine.observe([&result](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kPlanned || plan.sample.empty()) return;
    auto& pass = result[s.id].passes.emplace_back();
    for (const SampleRow& row : plan.sample) {
      if (row.position >= s.num_tokens()) continue;
      const auto token = static_cast<size_t>(row.position);
      const SampledToken& chosen = s.chosen[token - static_cast<size_t>(s.prompt_len)];
      pass.push_back({row.position, s.tokens[token], chosen.confidence});
    }
  });
  for (const Request& r : requests) engine.add(r.prompt, r.params);
  constexpr int kMostSteps = 2000;  // far more than any of these requests takes
  for (int step = 0; !engine.idle(); ++step) {
    if (step == kMostSteps) {
      ADD_FAILURE() << "a request goes on for ever";
      break;
    }
    for (const StepOutput& out : engine.step()) {
      result[out.sequence_id].tokens.push_back(out.token);
      if (out.finish_reason) result[out.sequence_id].reason = out.finish_reason;
    }
  }
  EXPECT_EQ(engine.scheduler().free_pages(), config.runner.num_pages);
  std::vector<Decoded> decoded;
  for (auto& [id, each] : result) decoded.push_back(std::move(each));
  return decoded;
}

// Four requests at once, not all of them in each step, decide what each decides alone: to the bit. `runtime` runs them,
// with `ops`; null: the CPU.
void expect_decisions_of_their_own(const Pair& pair, const OpSet* ops, DeviceRuntime* runtime) {
  OpContext strict{.threads = 2, .determinism = Determinism::kStrict};
  if (runtime != nullptr) strict.stream = runtime->stream();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto model =
        load_model(golden_folder(pair.family), {.dtype = dtype, .ops = ops, .context = strict, .runtime = runtime});
    std::vector<Request> requests;
    for (int32_t i = 0; i < 4; ++i)
      requests.push_back({prompt_of(5 + 9 * i, i), greedy(18, 0.02f + 0.01f * static_cast<float>(i))});
    EngineConfig one = config_of(pair.strategy, 1, strict), together = config_of(pair.strategy, 4, strict);
    one.runner.runtime = together.runner.runtime = runtime;
    together.runner.max_tokens = 100;
    const std::vector<Decoded> got = decode(*model, together, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Decoded alone = decode(*model, one, {requests[i]}).front();
      EXPECT_EQ(got[i].ids(), alone.ids()) << name_of(dtype) << ", request " << i;
      EXPECT_EQ(got[i].passes, alone.passes) << name_of(dtype) << ", request " << i;
    }
  }
}

TEST_P(DiffusionDefects, B25_ThresholdDecisionsDoNotDependOnTheBatchUnderStrict) {
  expect_decisions_of_their_own(GetParam(), nullptr, nullptr);
}

TEST_P(CudaDiffusionDefects, B25_ThresholdDecisionsDoNotDependOnTheBatchUnderStrict) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  expect_decisions_of_their_own(GetParam(), &cuda_module().ops("cuda"), &testing_support::gpu());
}

// In strict mode, which alone promises that company changes no bit: a draw may lie as near to a boundary as it likes.
TEST_P(DiffusionDefects, B27_ASeedDecidesEverything) {
  const OpContext strict{.threads = 1, .determinism = Determinism::kStrict};
  const auto model = golden(GetParam().family, DType::kF32, strict);
  const auto run = [&](uint64_t seed, int32_t others) {
    SamplingParams params = greedy(16, 0.05f);
    params.temperature = 1;
    params.seed = seed;
    std::vector<Request> requests = {{prompt_of(9), params}};
    for (int32_t i = 0; i < others; ++i) requests.push_back({prompt_of(12, i), params});
    return decode(*model, config_of(GetParam().strategy, 4, strict), requests).front().ids();
  };
  EXPECT_EQ(run(1, 0), run(1, 0));
  EXPECT_EQ(run(1, 0), run(1, 2));
  EXPECT_NE(run(1, 0), run(2, 0));
}

TEST_P(DiffusionDefects, B13_EveryKnobOfARequestIsHonoured) {
  if (GetParam().strategy == "diffusion_gemma") return;  // it has others: CanvasGolden
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  const auto run = [&](const SamplingParams& params) {
    return decode(*model, config_of(GetParam().strategy, 1), {{prompt_of(9), params}}).front();
  };
  // Two thresholds in the middle: of a flat network every probability passes the one, of another none the other.
  EXPECT_LT(run(greedy(24, 0.0f)).passes.size(), run(greedy(24, 0.045f)).passes.size());
  EXPECT_LT(run(greedy(24, 0.03f)).passes.size(), run(greedy(24, 0.99f)).passes.size());
  SamplingParams one = greedy(24, 0.03f);
  one.temperature = 3;
  EXPECT_NE(run(one).ids(), run(greedy(24, 0.03f)).ids());
  one.top_k = 1;
  EXPECT_EQ(run(one).ids(), run(greedy(24, 0.03f)).ids());
  one.top_k = 0;
  one.top_p = 1e-3f;
  EXPECT_EQ(run(one).ids(), run(greedy(24, 0.03f)).ids());
  if (GetParam().strategy == "dmax") {  // one rule, and others are refused
    one.decoding.rule = Rule::kMargin;
    EXPECT_THROW(run(one), Error);
    return;
  }
  SamplingParams drawn = greedy(24, 0.99f);
  drawn.decoding.order_temperature = 100;
  EXPECT_NE(run(drawn).passes, run(greedy(24, 0.99f)).passes);
  drawn.decoding = {.rule = Rule::kRandom};
  EXPECT_NE(run(drawn).passes, run(greedy(24, 0.99f)).passes);
  std::set<size_t> counts;
  for (const Rule rule : {Rule::kConfidence, Rule::kMargin, Rule::kEntropy}) {
    SamplingParams by_rule = greedy(24, rule == Rule::kEntropy ? 5.6f : 1);
    by_rule.decoding.rule = rule;
    counts.insert(run(by_rule).passes.size());
  }
  EXPECT_EQ(counts.size(), 2u);  // of 256 ids every entropy passes 5.6, no probability or margin passes 1
}

// Two ids that no pass of these runs wrote.
std::vector<int32_t> absent_from(const std::vector<Decoded>& runs) {
  std::set<int32_t> seen;
  for (const Decoded& run : runs) {
    for (const auto& pass : run.passes) {
      for (const Decision& decision : pass) seen.insert(decision.id);
    }
  }
  std::vector<int32_t> absent;
  for (int32_t id = 0; absent.size() < 2; ++id) {
    if (!seen.contains(id)) absent.push_back(id);
  }
  return absent;
}

// A token of the text ends it, whichever place it has in the list of end tokens, and all others go on as if it were the
// only one. `runtime` runs them, with `ops`; null: the CPU.
void expect_an_end_at_any_end_token(const Pair& pair, const OpSet* ops, DeviceRuntime* runtime) {
  OpContext strict{.threads = 1, .determinism = Determinism::kStrict};
  if (runtime != nullptr) strict.stream = runtime->stream();
  const auto model =
      load_model(golden_folder(pair.family), {.dtype = DType::kF32, .ops = ops, .context = strict, .runtime = runtime});
  EngineConfig config = config_of(pair.strategy, 1, strict);
  config.runner.runtime = runtime;
  SamplingParams params = greedy(40, 0.045f);
  const auto until = [&](const std::vector<int32_t>& ends) {
    return decode(testing_support::WithEndTokens(*model, ends), config, {{prompt_of(9), params}}).front();
  };
  const Decoded all = until({});
  ASSERT_EQ(all.tokens.size(), 40u);
  params.end_of_text = SamplingParams::EndOfText::kStops;
  const int32_t end = all.tokens[17].id;
  const Decoded one = until({end});
  ASSERT_FALSE(one.tokens.empty());
  EXPECT_EQ(one.tokens.back().id, end);
  EXPECT_EQ(one.reason, FinishReason::kStop);
  EXPECT_EQ(std::ranges::count(one.ids(), end), 1) << "something came behind it";
  const std::vector<int32_t> absent = absent_from({all, one});
  for (const std::vector<int32_t>& ends :
       {std::vector{absent[0], end}, {end, absent[0]}, {absent[0], end, absent[1]}}) {
    const Decoded several = until(ends);
    EXPECT_EQ(several.ids(), one.ids());
    EXPECT_EQ(several.passes, one.passes);
    EXPECT_EQ(several.reason, FinishReason::kStop);
  }
}

TEST_P(DiffusionDefects, AnyOfSeveralEndTokensEndsARequest) {
  expect_an_end_at_any_end_token(GetParam(), nullptr, nullptr);
}

TEST_P(CudaDiffusionDefects, AnyOfSeveralEndTokensEndsARequest) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  expect_an_end_at_any_end_token(GetParam(), &cuda_module().ops("cuda"), &testing_support::gpu());
}

// Where end tokens are banned, no pass writes one, and the request goes on to its length; alone and beside one that
// ends by one of them, which does as it does alone. `runtime` runs them, with `ops`; null: the CPU.
void expect_no_end_token_where_banned(const Pair& pair, const OpSet* ops, DeviceRuntime* runtime) {
  OpContext strict{.threads = 1, .determinism = Determinism::kStrict};
  if (runtime != nullptr) strict.stream = runtime->stream();
  const auto model =
      load_model(golden_folder(pair.family), {.dtype = DType::kF32, .ops = ops, .context = strict, .runtime = runtime});
  EngineConfig one = config_of(pair.strategy, 1, strict), two = config_of(pair.strategy, 2, strict);
  one.runner.runtime = two.runner.runtime = runtime;
  const Request ignoring{prompt_of(9), greedy(30, 0.045f)};
  const std::vector<int32_t> ids = decode(*model, one, {ignoring}).front().ids();
  const testing_support::WithEndTokens ended(*model, {ids[3], ids[14]});
  Request banning = ignoring, stopping{prompt_of(21, 1), greedy(30, 0.045f)};
  banning.params.end_of_text = SamplingParams::EndOfText::kBanned;
  stopping.params.end_of_text = SamplingParams::EndOfText::kStops;
  const Decoded alone = decode(ended, one, {banning}).front();
  EXPECT_EQ(alone.tokens.size(), 30u);
  EXPECT_EQ(alone.reason, FinishReason::kLength);
  std::vector<int32_t> written = alone.ids();
  for (const auto& pass : alone.passes) {
    if (pair.strategy == "diffusion_gemma") break;  // noise, which nothing chose, stands where it is not decided
    for (const Decision& d : pass) written.push_back(d.id);
  }
  EXPECT_EQ(std::ranges::count(written, ids[3]) + std::ranges::count(written, ids[14]), 0);
  const std::vector<Decoded> got = decode(ended, two, {banning, stopping});
  const Decoded other = decode(ended, one, {stopping}).front();
  EXPECT_EQ(got[0].ids(), alone.ids());
  EXPECT_EQ(got[0].passes, alone.passes);
  EXPECT_EQ(got[1].ids(), other.ids());
  EXPECT_EQ(got[1].passes, other.passes);
}

TEST_P(DiffusionDefects, NoEndTokenIsChosenWhereTheyAreBanned) {
  expect_no_end_token_where_banned(GetParam(), nullptr, nullptr);
}

TEST_P(CudaDiffusionDefects, NoEndTokenIsChosenWhereTheyAreBanned) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  expect_no_end_token_where_banned(GetParam(), &cuda_module().ops("cuda"), &testing_support::gpu());
}

// A network that shows its last logits.
class ShowingLogits final : public Model {
 public:
  explicit ShowingLogits(const Model& model) : model_(model) {}
  const ModelInfo& info() const override { return model_.info(); }
  Tensor forward(const ForwardBatch& batch) const override {
    Tensor out = model_.forward(batch);
    logits.assign(out.data_as<float>(), out.data_as<float>() + out.numel());
    return out;
  }
  mutable std::vector<float> logits;

 private:
  const Model& model_;
};

// Of `id` in a row of logits that the plan reads, at a temperature: of 1, the model's.
double logprob_of(std::span<const float> row, int32_t id, const StepPlan& plan, float temperature) {
  const auto logit = [&](size_t v) { return static_cast<double>(row[v]) / static_cast<double>(temperature); };
  double sum = 0;
  for (size_t v = 0; v < row.size(); ++v) {
    if (static_cast<int32_t>(v) != plan.excluded_id) sum += std::exp(logit(v));
  }
  return logit(static_cast<size_t>(id)) - std::log(sum);
}

// Drawn at another temperature than 1, by which no probability is changed, and not always the likeliest token.
TEST_P(DiffusionDefects, LogProbabilitiesAreThoseOfTheFinalTokensWhenTheyWereChosen) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  const ShowingLogits showing(*model);
  Engine engine(showing, config_of(GetParam().strategy, 1));
  std::map<int32_t, double> chosen, by;  // by position: the model's, and the ones that chose it
  std::map<int32_t, int32_t> ids;
  engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kPlanned) return;
    const size_t vocab = plan.sample.empty() ? 0 : showing.logits.size() / plan.sample.size();
    for (size_t i = 0; i < plan.sample.size(); ++i) {
      const int32_t p = plan.sample[i].position;
      if (masked(s, p)) continue;
      const int32_t id = s.tokens[static_cast<size_t>(p)];
      const float now = s.chosen[static_cast<size_t>(p - s.prompt_len)].logprob;
      const std::span row = std::span(showing.logits).subspan(i * vocab, vocab);
      const double own = logprob_of(row, id, plan, 1);
      const bool kept = ids.contains(p) && ids[p] == id && std::abs(static_cast<double>(now) - own) > 1e-4;
      if (kept) continue;
      ids[p] = id, chosen[p] = own,
      by[p] = logprob_of(row, id, plan, plan.temperature);  // a token that stays keeps what it was chosen with
    }
  });
  SamplingParams params = greedy(24, 0.02f);
  params.temperature = 1.5f, params.seed = 3;
  const std::vector<int32_t> prompt = prompt_of(9);
  engine.add(prompt, params);
  std::vector<SampledToken> tokens;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) tokens.push_back(out.token);
  }
  ASSERT_EQ(tokens.size(), 24u);
  int unlikely = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto p = static_cast<int32_t>(prompt.size() + i);
    ASSERT_TRUE(ids.contains(p)) << i;
    EXPECT_EQ(tokens[i].id, ids[p]) << i;
    EXPECT_NEAR(static_cast<double>(tokens[i].logprob), chosen[p], 1e-4) << i;
    EXPECT_NEAR(static_cast<double>(tokens[i].confidence), std::exp(by[p]), 1e-4) << i;
    unlikely += tokens[i].logprob < tokens[i].best_model_logprob ? 1 : 0;
  }
  EXPECT_EQ(unlikely > 0, GetParam().strategy != "diffusion_gemma") << "which ends with the likeliest";
}

TEST_P(DiffusionDefects, B04_ARequestThatOutgrowsThePoolFailsAlone) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  EngineConfig config = config_of(GetParam().strategy, 4);
  config.runner.num_pages = 4;
  Engine engine(*model, config);
  engine.add(prompt_of(9), greedy(16, 0.03f));
  engine.step();
  EXPECT_THROW(engine.add(prompt_of(9), greedy(90, 0.03f)), Error);
  engine.add(prompt_of(11), greedy(20, 0.03f));
  std::map<int64_t, size_t> count;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) ++count[out.sequence_id];
  }
  EXPECT_EQ(count.rbegin()->second, 20u);
  EXPECT_EQ(engine.scheduler().free_pages(), 4);
}

// Strategies lay out their blocks behind the prompt when a request begins.
TEST_P(DiffusionDefects, APromptThatFillsTheContextIsRefusedBeforeItsBlocksAreMade) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  EngineConfig config = config_of(GetParam().strategy, 1);
  config.context_name = "a context of the test";
  Engine engine(*model, config);
  for (const int32_t beyond : {0, 1, 40}) {
    const int32_t length = config.max_context_len + beyond;
    const auto refusal = testing_support::refusal_of([&] { engine.add(prompt_of(length), greedy(4, 0.03f)); });
    EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refusal.sentence, str("request 1: the prompt has ", length, " tokens, a context of the test holds ",
                                    config.max_context_len, " with at least one new token"));
  }
  EXPECT_TRUE(engine.idle());
}

TEST_P(DiffusionDefects, B24_TwoEnginesInOneProcessKnowNothingOfEachOther) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  const auto other_model = golden("sdar", DType::kF32, {.threads = 1});
  const Request request{prompt_of(9), greedy(20, 0.03f)};
  const std::vector<int32_t> want = decode(*model, config_of(GetParam().strategy, 1), {request}).front().ids();
  Engine engine(*model, config_of(GetParam().strategy, 1)), other(*other_model, config_of("multi_bd", 1));
  engine.add(request.prompt, request.params);
  other.add(prompt_of(30), greedy(40, 0.99f));
  std::vector<int32_t> ids;
  while (!engine.idle()) {
    other.step();
    for (const StepOutput& out : engine.step()) ids.push_back(out.token.id);
  }
  EXPECT_EQ(ids, want);
}

// A network that checks what the source fetches in a step, and counts how often its layers fetch.
class CountingReads final : public Model {
 public:
  explicit CountingReads(const Model& model) : model_(model) {}
  const ModelInfo& info() const override { return model_.info(); }
  Tensor forward(const ForwardBatch& batch) const override {
    EXPECT_EQ(&source->fetch_attn_metadata(), &batch.attn);
    source->set_fetch_fn_for_attn_metadata([this, &batch]() -> const AttnMetadata& {
      ++reads;
      return batch.attn;
    });
    ++passes;
    return model_.forward(batch);
  }
  AttnMetadataSource* source = nullptr;  // the engine's
  mutable int64_t reads = 0, passes = 0;

 private:
  const Model& model_;
};

// A network that counts the rows of its head.
class CountingHead final : public Model {
 public:
  explicit CountingHead(const Model& model) : model_(model) {}
  const ModelInfo& info() const override { return model_.info(); }
  Tensor forward(const ForwardBatch& batch) const override {
    rows += batch.logits_rows.size();
    return model_.forward(batch);
  }
  mutable size_t rows = 0;

 private:
  const Model& model_;
};

TEST_P(DiffusionDefects, B18_TheHeadRunsOnWhatCanChangeAlone) {
  const bool edits = std::set<std::string>{"multi_bd_edit", "dmax", "diffusion_gemma"}.contains(GetParam().strategy);
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  const CountingHead counting(*model);
  Engine engine(counting, config_of(GetParam().strategy, 2));
  size_t planned = 0, wasted = 0;
  engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kCommitted) return;
    for (const SampleRow& row : plan.sample) {
      const bool open = edits ? row.position >= s.num_cached : masked(s, row.position);
      ++planned;
      wasted += open && row.position >= s.prompt_len ? 0 : 1;
    }
  });
  engine.add(prompt_of(37), greedy(40, 0.03f));
  engine.add(prompt_of(9, 1), greedy(30, 0.045f));
  while (!engine.idle() && wasted == 0) engine.step();
  EXPECT_EQ(wasted, 0u);
  EXPECT_EQ(counting.rows, planned);
}

// LLaDA's loop decides them as it does its own masks, of which there are then too few passes: here a prompt stays.
TEST_P(DiffusionDefects, AMaskInAPromptIsRefusedWhereThePublishedLoopWouldDecideIt) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  const std::optional<int32_t> mask = model->info().diffusion->mask_token_id;
  if (!mask) GTEST_SKIP() << "it has no mask token";
  Engine engine(*model, config_of(GetParam().strategy, 1));
  std::vector<int32_t> prompt = prompt_of(20);
  prompt[7] = *mask;
  SamplingParams params = greedy(8, 0.5f);
  params.decoding = {.schedule = DecodingParams::Schedule::kReference};
  const auto refusal = testing_support::refusal_of([&] { engine.add(prompt, params); });
  EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument);
  if (!refusal.sentence.starts_with("prompt: ")) GTEST_SKIP() << refusal.sentence;  // it has no published loop
  EXPECT_EQ(refusal.sentence,
            "prompt: token 7 is the mask, expected none with the schedule 'reference': the published loop would decide "
            "it, and a prompt is never changed here");
}

// What spells the mask is text, in the middle of a prompt and at its end, where a block goes on behind it.
TEST_P(DiffusionDefects, B33_MaskIdsOfAPromptStayAndExactlyTheNewPositionsAreDecided) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  const std::optional<int32_t> mask = model->info().diffusion->mask_token_id;
  if (!mask) GTEST_SKIP() << "it has no mask token";
  constexpr int32_t kPrompt = 21, kOutput = 19;
  std::vector<int32_t> prompt = prompt_of(kPrompt), ids;
  for (const size_t p : {0, 3, 15, 19, 20}) prompt[p] = *mask;
  Engine engine(*model, config_of(GetParam().strategy, 1));
  std::set<int32_t> decided, wanted;
  engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    EXPECT_TRUE(std::ranges::equal(std::span(s.tokens).first(kPrompt), prompt));
    for (const SampleRow& row : plan.sample) {
      if (moment == StepMoment::kCommitted && !masked(s, row.position)) decided.insert(row.position);
    }
  });
  engine.add(prompt, greedy(kOutput, 0.03f));
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) ids.push_back(out.token.id);
  }
  for (int32_t p = kPrompt; p < kPrompt + kOutput; ++p) wanted.insert(p);
  EXPECT_EQ(decided, wanted);
  EXPECT_EQ(ids.size(), wanted.size());
}

TEST_P(DiffusionDefects, TheSourceHasTheStepsMetadataAndLayersAreGivenIt) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  CountingReads counting(*model);
  Engine engine(counting, config_of(GetParam().strategy, 2));
  counting.source = &engine.runner().metadata_source();
  engine.add(prompt_of(21), greedy(20, 0.03f));
  engine.add(prompt_of(9, 1), greedy(12, 0.045f));
  while (!engine.idle()) engine.step();
  EXPECT_GE(counting.passes, 2);
  EXPECT_EQ(counting.reads, 0);  // the batch is an argument
}

// A device's attention may read what a step calls cached before the step has stored anything.
TEST_P(DiffusionDefects, NoStepCallsCachedWhatItStores) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  Engine engine(*model, config_of(GetParam().strategy, 2));
  int steps = 0;
  engine.observe([&steps](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kCommitted) return;
    ++steps;
    EXPECT_FALSE(plan.calls_cached_what_it_stores()) << "request " << s.id << ", pass " << s.num_forwards;
  });
  engine.add(prompt_of(37), greedy(40, 0.03f));
  engine.add(prompt_of(9, 1), greedy(30, 0.045f));
  while (!engine.idle()) engine.step();
  EXPECT_GT(steps, 4);
}

// Of prompts whose decisions are no near ties: one in twelve has another token of a canvas by the last bits of sums.
void expect_every_implementation_to_decode_the_same(const Model& model, EngineConfig config) {
  const std::vector<Request> requests = {{prompt_of(21, 3), greedy(20, 0.03f)}, {prompt_of(9, 4), greedy(12, 0.045f)}};
  std::vector<std::vector<int32_t>> want;
  for (const AttnImpl impl : {AttnImpl::kReference, AttnImpl::kOptimized, AttnImpl::kGrouped}) {
    SCOPED_TRACE(name_of(impl));
    config.runner.attn_impl = impl;
    EXPECT_NE(Engine(model, config).runner().describe().find(str("(", name_of(impl), ")")), std::string::npos);
    std::vector<std::vector<int32_t>> got;
    for (const auto& decoded : decode(model, config, requests)) got.push_back(decoded.ids());
    if (impl == AttnImpl::kReference) want = got;
    EXPECT_EQ(got, want);
  }
}

TEST_P(DiffusionDefects, EveryAttentionImplementationDecodesTheSameTokens) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1});
  expect_every_implementation_to_decode_the_same(*model, config_of(GetParam().strategy, 2));
}

TEST_P(DiffusionDefects, EveryAttentionImplementationDecodesTheSameTokensOnADevice) {
  if (!testing_support::has_cuda()) GTEST_SKIP() << "no CUDA device";
  const auto model = testing_support::golden_model(GetParam().family, testing_support::GoldenDevice::kCuda);
  EngineConfig config = config_of(GetParam().strategy, 2);
  config.runner = testing_support::golden_runner(testing_support::GoldenDevice::kCuda);
  expect_every_implementation_to_decode_the_same(*model, config);
}

INSTANTIATE_TEST_SUITE_P(Strategies, DiffusionDefects,
                         ::testing::Values(Pair{"multi_bd", "sdar"}, Pair{"multi_bd", "sdar_moe"},
                                           Pair{"multi_bd", "llada2"}, Pair{"multi_bd", "stable_diffcoder"},
                                           Pair{"multi_bd", "fast_dllm_v2"}, Pair{"full_attention", "llada_moe"},
                                           Pair{"full_attention", "dream"}, Pair{"full_attention", "diffucoder"},
                                           Pair{"dual_cache", "llada"}, Pair{"dual_cache", "dream"},
                                           Pair{"fast_dllm_v2", "fast_dllm_v2"}, Pair{"d2f", "dream"},
                                           Pair{"d2f", "llada"}, Pair{"multi_bd_edit", "llada2"},
                                           Pair{"dmax", "llada2"}, Pair{"diffusion_gemma", "diffusion_gemma"}),
                         [](const auto& pair) { return pair.param.strategy + "_" + pair.param.family; });

INSTANTIATE_TEST_SUITE_P(Strategies, CudaDiffusionDefects,
                         ::testing::Values(Pair{"multi_bd", "sdar"}, Pair{"multi_bd", "sdar_moe"},
                                           Pair{"multi_bd", "llada2"}, Pair{"full_attention", "dream"},
                                           Pair{"dual_cache", "llada"}, Pair{"fast_dllm_v2", "fast_dllm_v2"},
                                           Pair{"d2f", "dream"}, Pair{"multi_bd_edit", "llada2"},
                                           Pair{"dmax", "llada2"}, Pair{"diffusion_gemma", "diffusion_gemma"}),
                         [](const auto& pair) { return pair.param.strategy + "_" + pair.param.family; });

// A guided request among others decides what it decides alone, and so do they: to the bit. `runtime` runs them, with
// `ops`; null: the CPU.
void expect_guidance_of_its_own(const OpSet* ops, DeviceRuntime* runtime) {
  OpContext strict{.threads = 2, .determinism = Determinism::kStrict};
  if (runtime != nullptr) strict.stream = runtime->stream();
  for (const char* family : {"llada", "llada_moe"}) {
    const auto model =
        load_model(golden_folder(family), {.dtype = DType::kF32, .ops = ops, .context = strict, .runtime = runtime});
    std::vector<Request> requests;
    for (int32_t i = 0; i < 4; ++i) {
      requests.push_back({prompt_of(5 + 9 * i, i), greedy(18, 0.04f)});
      requests.back().params.decoding.cfg_scale = i % 2 == 0 ? 0.0f : 1.5f * static_cast<float>(i);
      if (i == 3) requests.back().params.temperature = 0.9f;
    }
    EngineConfig one = config_of("full_attention", 1, strict), together = config_of("full_attention", 4, strict);
    one.runner.runtime = together.runner.runtime = runtime;
    together.runner.max_tokens = 140;  // of 23 + 2 * 32 + 41 + 2 * 50 rows
    const std::vector<Decoded> got = decode(*model, together, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Decoded alone = decode(*model, one, {requests[i]}).front();
      EXPECT_EQ(got[i].ids(), alone.ids()) << family << ", request " << i;
      EXPECT_EQ(got[i].passes, alone.passes) << family << ", request " << i;
      requests[i].params.decoding.cfg_scale = requests[i].params.decoding.cfg_scale > 0 ? 0.0f : 1.0f;
      EXPECT_NE(decode(*model, one, {requests[i]}).front().ids(), alone.ids()) << family << ", request " << i;
    }
  }
}

TEST(Guidance, AGuidedRequestAndOthersOfItsBatchDoNotDisturbEachOther) { expect_guidance_of_its_own(nullptr, nullptr); }

TEST(Guidance, AGuidedRequestAndOthersOfItsBatchDoNotDisturbEachOtherOnADevice) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  expect_guidance_of_its_own(&cuda_module().ops("cuda"), &testing_support::gpu());
}

// A network that shows what came in.
class ShowingTokens final : public Model {
 public:
  explicit ShowingTokens(const Model& model) : model_(model) {}
  const ModelInfo& info() const override { return model_.info(); }
  Tensor forward(const ForwardBatch& batch) const override {
    const auto ids = batch.input_ids.as<const int32_t, 1>("ids");
    const auto slots = batch.attn.write_slots.as<const int64_t, 1>("slots");
    tokens.clear(), stored.clear();
    for (int64_t i = 0; i < ids.dim(0); ++i) {
      tokens.push_back(ids(i));
      stored.push_back(slots(i) != kDoNotStore);
    }
    logits_rows = batch.logits_rows;
    return model_.forward(batch);
  }
  mutable std::vector<int32_t> tokens, logits_rows;
  mutable std::vector<bool> stored;

 private:
  const Model& model_;
};

// The mask may stand in the prompt itself, and an output may have decided tokens: it is the prompt that is hidden.
TEST(Guidance, TheSecondTextIsTheFirstWithItsPromptMaskedAndIsNotStored) {
  const auto llada = golden("llada", DType::kF32, {.threads = 1});
  const int32_t mask = *llada->info().diffusion->mask_token_id;
  const ShowingTokens model(*llada);
  Engine engine(model, config_of("full_attention", 1));
  SamplingParams params = greedy(12, 0.5f);
  params.decoding.cfg_scale = 1;
  engine.add(prompt_of(7), params);
  int passes = 0;
  engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kPlanned) return;
    ++passes;
    ASSERT_EQ(model.tokens.size(), 38u);
    for (size_t p = 0; p < 19; ++p) {
      EXPECT_EQ(model.tokens[19 + p], p < 7 ? mask : model.tokens[p]) << p;
      if (p < 7) {
        EXPECT_EQ(model.tokens[p], s.tokens[p]) << p;
      }
      EXPECT_TRUE(model.stored[p]) << p;
      EXPECT_FALSE(model.stored[19 + p]) << p;
    }
    ASSERT_EQ(model.logits_rows.size(), 2 * plan.sample.size());
    for (size_t i = 0; i < plan.sample.size(); ++i) {
      EXPECT_EQ(model.logits_rows[i], plan.sample[i].position);
      EXPECT_EQ(model.logits_rows[plan.sample.size() + i], 19 + plan.sample[i].position);
    }
  });
  while (!engine.idle()) engine.step();
  EXPECT_GT(passes, 2);
  EXPECT_EQ(engine.counters().rows, 38 * passes);
}

// A network whose published sampler filters in another order.
class FilteredAsOthers final : public Model {
 public:
  explicit FilteredAsOthers(const Model& model) : model_(model), info_(model.info()) {
    info_.diffusion->filters = DiffusionInfo::Filters::kTopKFirst;
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override { return model_.forward(batch); }

 private:
  const Model& model_;
  ModelInfo info_;
};

TEST(Dream, TopPComesBeforeTopK) {
  const auto dream = golden("dream", DType::kF32, {.threads = 1});
  EXPECT_EQ(dream->info().diffusion->filters, DiffusionInfo::Filters::kTopPFirst);
  const FilteredAsOthers other(*dream);
  const auto differs = [&](int32_t top_k) {
    SamplingParams params{.max_tokens = 24, .temperature = 1, .top_k = top_k, .top_p = 0.5f, .seed = 3};
    params.decoding.threshold = 0.03f;
    const EngineConfig config = config_of("full_attention", 1);
    const std::vector<Request> requests = {{prompt_of(9), params}};
    return decode(*dream, config, requests).front().ids() != decode(other, config, requests).front().ids();
  };
  EXPECT_TRUE(differs(4));
  EXPECT_FALSE(differs(0));
}

// Rows that a router saw; no other product of the checkpoint has as many outputs as there are experts.
int64_t routed_rows = 0;

void counting_linear(const LinearArgs& args, const OpContext& context) {
  if (args.weight.dim(0) == 8) routed_rows += args.x.dim(0);
  cpu::select_kernel_set().linear(args, context);
}

TEST(MultiBD, B20_ExpertsRunOnPlannedRowsAloneAndNoneIsADummy) {
  OpSet ops = cpu::select_kernel_set();
  ops.linear = counting_linear;
  const OpContext strict{.threads = 1, .determinism = Determinism::kStrict};  // every product is an op of the set
  const auto model = load_model(golden_folder("sdar_moe"), {.dtype = DType::kF32, .ops = &ops, .context = strict});
  EngineConfig config = config_of("multi_bd", 1, strict);
  config.decoding.num_blocks = 4;
  Engine engine(*model, config);
  int64_t planned = 0;
  engine.observe([&planned](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kCommitted) return;
    planned += plan.num_rows();
    const KeySpan& keys = plan.spans.front().keys;
    EXPECT_LE(keys.phys0 + keys.q_len, s.blocks.back().end());  // rows of opened blocks
    EXPECT_TRUE(plan.sample.empty() || !s.blocks.back().complete() ||
                keys.phys0 + keys.q_len < s.blocks.back().end());  // none of a finished one that waits
  });
  engine.add(prompt_of(21), greedy(30, 0.03f));
  routed_rows = 0;
  while (!engine.idle()) engine.step();
  EXPECT_EQ(routed_rows, model->info().num_layers * planned);
}

TEST(MultiBD, B31_PaddedIdsAreNeverChosen) {
  const ToyDiffusionModel model({});  // it is sure of tokens up to 89
  EngineConfig config = config_of("multi_bd", 1);
  config.vocab = 50;
  const std::vector<int32_t> ids = decode(model, config, {{prompt_of(7), greedy(40, 0.9f)}}).front().ids();
  EXPECT_LT(*std::ranges::max_element(ids), 50);
}

TEST(MultiBD, AnyOfSeveralEndTokensEndsARequest) {
  const testing_support::ToyScript script{
      .more_eos = {ToyDiffusionModel::token_at(14), ToyDiffusionModel::token_at(40)}};
  const ToyDiffusionModel model(script);
  SamplingParams params = greedy(60, 0.9f);
  params.end_of_text = SamplingParams::EndOfText::kStops;
  const Decoded stopped = decode(model, config_of("multi_bd", 1), {{prompt_of(8), params}}).front();
  EXPECT_EQ(stopped.tokens.size(), 7u);
  EXPECT_EQ(stopped.reason, FinishReason::kStop);
  params.end_of_text = SamplingParams::EndOfText::kIgnored;
  EXPECT_EQ(decode(model, config_of("multi_bd", 1), {{prompt_of(8), params}}).front().tokens.size(), 60u);
}

TEST(MultiBD, LogProbabilitiesAreThoseOfTheFinalTokensWhenTheyWereChosen) {
  // Of 97 ids the mask is none, and 95 others have the logit 0 beside the one that is preferred.
  const auto logprob = [](double logit) { return logit - std::log(std::exp(logit) + 95); };
  const ToyDiffusionModel model({.sure_masks = 1});
  const Decoded r = decode(model, config_of("multi_bd", 1), {{prompt_of(8), greedy(12, 0.05f)}}).front();
  ASSERT_EQ(r.tokens.size(), 12u);
  for (size_t i = 0; i < 12; ++i) {  // a threshold of 0.05 takes all four of a block at once
    const double logit = i % 4 == 0 ? 20.0 : 4.0 - 0.1 * static_cast<double>(i % 4);
    EXPECT_NEAR(r.tokens[i].logprob, logprob(logit), 1e-5) << i;
    EXPECT_NEAR(r.tokens[i].confidence, std::exp(logprob(logit)), 1e-5) << i;
  }
}

TEST(StrategyRegistry, B29_AnUnknownNameIsAnErrorThatListsWhatIsBuilt) {
  const std::vector<std::string_view> names = strategy_names();
  EXPECT_EQ(std::set<std::string_view>(names.begin(), names.end()).size(), names.size());
  try {
    make_strategy("d3f", {});
    FAIL() << "an unknown strategy was made";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(std::string_view(e.what()).starts_with("strategy 'd3f' is unknown, expected one of autoregressive, "));
    for (const std::string_view name : names) EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << name;
  }
}

TEST(StrategyRegistry, WhatIsComparedWithAModelsOwnStrategyDecodesIt) {
  using Names = std::vector<std::string_view>;
  const auto compared = [](const std::string& family) {
    const DiffusionInfo info = *golden(family, DType::kF32, {.threads = 1})->info().diffusion;
    Names names = compared_strategies(info);
    EXPECT_EQ(std::ranges::count(names, default_strategy(info)), 1) << family;
    for (const std::string_view name : names) {
      EXPECT_TRUE(decodes(name, info)) << name;
      EXPECT_FALSE(requires_adapter(name, info)) << name << " would need an adapter for " << family;
    }
    return names;
  };
  EXPECT_EQ(compared("sdar"), (Names{"autoregressive", "multi_bd", "d2f", "dmax"}));
  EXPECT_EQ(compared("llada"), (Names{"full_attention", "dual_cache"}));
  EXPECT_EQ(compared("dream"), (Names{"full_attention", "dual_cache"}));
  EXPECT_EQ(compared("fast_dllm_v2"), (Names{"autoregressive", "fast_dllm_v2"}));
  EXPECT_EQ(compared("diffusion_gemma"), Names{"diffusion_gemma"});
  EXPECT_TRUE(requires_adapter("d2f", *golden("llada", DType::kF32, {.threads = 1})->info().diffusion));
}

TEST(StrategyRegistry, B29_EachFamilyHasOneDefaultWhichIsBuilt) {
  const std::vector<std::string_view> names = strategy_names();
  const std::map<std::string, std::string> kDefaults = {
      {"sdar", "multi_bd"},
      {"llada2", "multi_bd"},
      {"stable_diffcoder", "multi_bd"},
      {"llada", "full_attention"},
      {"dream", "full_attention"},
      {"fast_dllm_v2", "fast_dllm_v2"},
      {"qwen3", "autoregressive"},
      {"diffusion_gemma", "diffusion_gemma"},
  };
  for (const auto& [family, strategy] : kDefaults) {
    const auto model = golden(family, DType::kF32, {.threads = 1});
    EXPECT_EQ(default_strategy(model->info().diffusion), strategy) << family;
    EXPECT_EQ(make_strategy(strategy, {.model = model->info().diffusion})->name(), strategy);
    EXPECT_EQ(std::ranges::count(names, strategy), 1) << family;
  }
}

}  // namespace
}  // namespace headrace
