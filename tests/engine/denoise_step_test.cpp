// Blocks that a device goes on with by itself, against the strategy's own state machine and the engine's own batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>

#include "headrace/core/device_runtime.h"
#include "headrace/decoding/device_state.h"
#include "headrace/engine/batch_builder.h"
#include "headrace/engine/batch_padding.h"
#include "headrace/engine/denoise_loop.h"
#include "headrace/engine/host_reasons.h"
#include "headrace/engine/scheduled_step.h"
#include "headrace/engine/scheduler.h"
#include "headrace/ops/reference/reference_ops.h"
#include "headrace/sampling/sampler.h"
#include "support/device_mirror.h"
#include "support/random.h"

namespace headrace {
namespace {

using testing_support::Random;

constexpr int32_t kVocab = 24, kMask = 23, kPage = 16, kMaxContext = 640;

struct Problem {
  std::string strategy = "multi_bd";
  DiffusionInfo::LogitsOf logits_of = DiffusionInfo::LogitsOf::kSame;
  int32_t block_size = 4, requests = 3;
  int32_t part_size = 0;  // 0: blocks have no parts
  std::optional<StrategyConfig::BlockCache> block_cache = {};
  DecodingParams decoding;
  DiffusionInfo::Acceptance acceptance = DiffusionInfo::Acceptance::kAbove;
  DiffusionInfo::Filters filters = DiffusionInfo::Filters::kTopKFirst;
  uint64_t seed = 1;
};

// Rows as a softmax and a draw might have them, from few values, so that ties and thresholds are met.
ChosenRows random_rows(int64_t count, Random& random) {
  const auto one_of = [&random](std::initializer_list<float> values) {
    return values.begin()[random.next() % values.size()];
  };
  ChosenRows rows{Tensor(DType::kI32, {count}), Tensor(DType::kF32, {count, 4}), Tensor(DType::kI32, {count}),
                  Tensor(DType::kF32, {count})};
  for (int64_t i = 0; i < count; ++i) {
    float* stats = rows.stats.data_as<float>() + 4 * i;
    rows.best.data_as<int32_t>()[i] = static_cast<int32_t>(random.next() % kMask);
    stats[0] = one_of({-1.5f, 0.0f, 7.25f});
    stats[1] = one_of({0.0f, 0.05f, 0.10536052f, 0.5f, 0.69314718f, 2.0f});
    stats[2] = stats[0] - one_of({0.0f, 0.25f, 3.0f});
    stats[3] = one_of({0.0f, 0.1f, 0.3f, 0.5f, 1.5f});
    const bool drawn = random.next() % 2 == 0;
    rows.ids.data_as<int32_t>()[i] =
        drawn ? static_cast<int32_t>(random.next() % kMask) : rows.best.data_as<int32_t>()[i];
    rows.logits.data_as<float>()[i] = stats[0] - (drawn ? one_of({0.0f, 0.25f, 1.0f}) : 0);
  }
  return rows;
}

// The memory that a DeviceBatch and a DenoiseLoop would have, on the host.
struct Memory {
  Tensor states, tokens, counter, sizes, spans, ids, positions, slots, logits, num_rows, report, results, draws;
  ChosenRows chosen;
  std::vector<int32_t> block_sizes, canvas_sizes;
  // `canvas`: tokens of one at most; 0: there are none.
  Memory(int32_t requests, int32_t block, int32_t canvas = 0) {
    const int32_t most = canvas > 0 ? requests * canvas : 2 * requests * block;
    const int64_t rows = most, results_rows = int64_t{requests} * block;
    for (int32_t size = block; size < 2 * requests * block; size += 3 * block) block_sizes.push_back(size);
    if (canvas == 0) block_sizes.push_back(most);
    for (int32_t size = 2 * block; canvas > 0 && size < most; size += 2 * block + 1) canvas_sizes.push_back(size);
    if (canvas > 0) canvas_sizes.push_back(most);
    states = Tensor::zeros(DType::kU8, {requests * int64_t{sizeof(DenoiseState)}});
    tokens = Tensor::zeros(DType::kI32, {requests, std::max(2 * block, canvas)});
    counter = Tensor::zeros(DType::kI32, {2});
    sizes = Tensor(DType::kI32, {static_cast<int64_t>(block_sizes.size() + canvas_sizes.size())});
    std::ranges::copy(block_sizes, sizes.data_as<int32_t>());
    std::ranges::copy(canvas_sizes, sizes.data_as<int32_t>() + block_sizes.size());
    spans = Tensor::zeros(DType::kU8, {(requests + 1) * int64_t{sizeof(KeySpan)}});
    ids = Tensor::zeros(DType::kI32, {rows}), positions = Tensor::zeros(DType::kI32, {rows});
    num_rows = Tensor::zeros(DType::kI32, {1});
    slots = Tensor::zeros(DType::kI64, {rows}), logits = Tensor::zeros(DType::kI32, {rows});
    report = Tensor::zeros(DType::kU8, {256}), results = Tensor::zeros(DType::kI32, {2, results_rows, kResultWords});
    draws = Tensor::zeros(DType::kU8, {results_rows, static_cast<int64_t>(sizeof(TokenDraw))});
    chosen = {Tensor::zeros(DType::kI32, {results_rows}), Tensor::zeros(DType::kF32, {results_rows, 4}),
              Tensor::zeros(DType::kI32, {results_rows}), Tensor::zeros(DType::kF32, {results_rows})};
  }
  DenoiseStepArgs args(int32_t block, const TensorView& page_table) const {
    return {.best = chosen.best,
            .stats = chosen.stats,
            .ids = chosen.ids,
            .logits = chosen.logits,
            .draws = draws,
            .states = states,
            .tokens = tokens,
            .counter = counter,
            .sizes = sizes,
            .block_sizes = static_cast<int32_t>(block_sizes.size()),
            .most_rows = static_cast<int32_t>(ids.numel()),
            .block_size = block,
            .mask_token_id = kMask,
            .page_size = kPage,
            .rows = {spans, ids, positions, slots, logits, num_rows, page_table},
            .report = report,
            .results = results};
  }
  // The one that steps of so many rows have.
  int32_t size_of(int32_t rows, bool canvases) const {
    const auto found = std::ranges::lower_bound(block_sizes, rows);
    return !canvases && found != block_sizes.end() ? *found : *std::ranges::lower_bound(canvas_sizes, rows);
  }
  const DenoiseReport& said() const { return *static_cast<const DenoiseReport*>(report.data()); }
};

class BlockTrace {
 public:
  BlockTrace(const Problem& problem, const OpSet& ops)
      : problem_(problem),
        ops_(ops),
        random_(problem.seed),
        memory_(problem.requests, problem.block_size, canvases() ? 9 * problem.block_size : 0) {
    using Attention = DiffusionInfo::Attention;
    const DiffusionInfo info{.mask_token_id = kMask,
                             .block_size = problem.block_size,
                             .sub_block_size = problem.part_size > 0 ? problem.part_size : problem.block_size,
                             .attention = canvases() ? Attention::kFull : Attention::kBlockCausal,
                             .logits_of = problem.logits_of,
                             .threshold = 0.9f,
                             .acceptance = problem.acceptance,
                             .filters = problem.filters};
    strategy_ = make_strategy(problem.strategy, {.model = info, .block_cache = problem.block_cache});
    scheduler_.emplace(SchedulerConfig{.num_pages = 256 + 4 * problem.requests,
                                       .page_size = kPage,
                                       .max_requests = problem.requests,
                                       .max_context_len = kMaxContext,
                                       .max_tokens_per_step = 2048 + 40 * problem.requests},
                       *strategy_);
    for (int32_t r = 0; r < problem.requests; ++r) add(r);
  }

  // Steps that the op ended.
  int run() {
    do {  // the first step admits them
      const auto steps = next_steps();
      if (steps.empty()) return 0;
      commit(steps, random_rows(samples_of(steps), random_));
    } while (!all_loaded());
    load();
    auto steps = next_steps();
    int count = 0;
    while (!steps.empty() && !testing::Test::HasFailure()) {
      const ChosenRows rows = random_rows(samples_of(steps), random_);
      for (const auto part : {&ChosenRows::best, &ChosenRows::stats, &ChosenRows::ids, &ChosenRows::logits}) {
        const TensorView from = rows.*part;
        std::memcpy((memory_.chosen.*part).data(), from.data(), static_cast<size_t>(from.bytes()));
      }
      ops_.denoise_step(memory_.args(problem_.block_size, scheduler_->table().page_table()), {});
      commit(steps, rows);
      steps = next_steps();
      compare(steps, rows, ++count);
    }
    return count;
  }

 private:
  bool canvases() const { return problem_.strategy == "full_attention" || problem_.strategy == "dual_cache"; }
  void add(int32_t r) {
    auto s = std::make_unique<Sequence>();
    s->id = r;
    s->prompt_len = 1 + static_cast<int32_t>(random_.next() % (3 * problem_.block_size));
    for (int32_t p = 0; p < s->prompt_len; ++p) s->tokens.push_back(static_cast<int32_t>(random_.next() % kVocab));
    s->params = {
        .temperature = r % 2 == 0 ? 0 : 0.7f, .top_k = r, .top_p = 0.9f, .min_p = 0.1f, .seed = random_.next()};
    s->params.decoding = problem_.decoding;
    s->limit = s->prompt_len + 1 + static_cast<int32_t>(random_.next() % (5 * problem_.block_size));
    if (random_.next() % 3 > 0) s->eos_ids = {3, 9};
    strategy_->start(*s);
    scheduler_->add(*s);
    sequences_.push_back(std::move(s));
  }
  // In the order of the states, which is that of the ids.
  std::vector<ScheduledStep> next_steps() {
    auto steps = scheduler_->next();
    std::ranges::sort(steps, {}, [](const ScheduledStep& step) { return step.sequence->id; });
    return steps;
  }
  static int64_t samples_of(const std::vector<ScheduledStep>& steps) {
    int64_t count = 0;
    for (const ScheduledStep& step : steps) count += static_cast<int64_t>(step.plan.sample.size());
    return count;
  }
  bool all_loaded() const {
    return std::ranges::all_of(sequences_, [this](const auto& s) { return !s || strategy_->denoise_state(*s); });
  }
  void commit(const std::vector<ScheduledStep>& steps, const ChosenRows& rows) {
    const auto sampled = Sampler::describe(rows);
    size_t next = 0;
    for (const ScheduledStep& step : steps) {
      Sequence& s = *step.sequence;
      strategy_->commit(s, step.plan, std::span(sampled).subspan(next, step.plan.sample.size()));
      next += step.plan.sample.size();
      if (s.num_final < s.limit) continue;
      scheduler_->release(s);
      sequences_[static_cast<size_t>(s.id)].reset();
    }
  }
  void load() {
    auto* states = static_cast<DenoiseState*>(memory_.states.data());
    int32_t logits = 0;
    size_t next = 0;
    for (const auto& s : sequences_) {
      if (!s) continue;
      DenoiseState& state = states[next] = *strategy_->denoise_state(*s);
      state.first_logit = logits;
      logits += state.num_samples(problem_.block_size);
      auto* tokens = memory_.tokens.data_as<int32_t>() + static_cast<int64_t>(next++) * memory_.tokens.dim(1);
      const int32_t first = canvases() ? 0 : state.begin - problem_.block_size;
      const int32_t end = canvases() ? s->num_tokens() : first + 2 * problem_.block_size;
      for (int32_t p = first; p < end; ++p) tokens[p - first] = p < 0 ? 0 : s->tokens[static_cast<size_t>(p)];
    }
    memory_.counter.data_as<int32_t>()[1] = logits;
  }
  // What the op laid out against the batch that the engine builds of the strategy's plans.
  void compare(const std::vector<ScheduledStep>& steps, const ChosenRows& rows, int32_t step) {
    const DenoiseReport& said = memory_.said();
    const int32_t* result = memory_.results.data_as<int32_t>() + step % 2 * memory_.results.dim(1) * kResultWords;
    for (int64_t i = 0; i < rows.best.dim(0); ++i, result += kResultWords) {
      ASSERT_EQ(result[0], rows.best.data_as<int32_t>()[i]);
      for (int64_t j = 0; j < 4; ++j) {
        ASSERT_EQ(result[1 + j], std::bit_cast<int32_t>(rows.stats.data_as<float>()[4 * i + j]));
      }
      ASSERT_EQ(result[5], rows.ids.data_as<int32_t>()[i]);
      ASSERT_EQ(result[6], std::bit_cast<int32_t>(rows.logits.data_as<float>()[i]));
    }
    ASSERT_EQ(said.step, step);
    ASSERT_EQ(said.running, static_cast<int32_t>(steps.size()));
    if (steps.empty()) return;
    const ForwardBatch& batch = builder_.build(steps, scheduler_->table(), nullptr);
    ASSERT_EQ(said.rows, batch.num_tokens());
    ASSERT_EQ(*memory_.num_rows.data_as<int32_t>(), said.rows);
    ASSERT_EQ(said.logits_rows, static_cast<int32_t>(batch.logits_rows.size()));
    const bool any_canvas =
        std::ranges::any_of(batch.attn.spans, [this](const KeySpan& s) { return canvases() && s.ctx_len == 0; });
    ASSERT_EQ(said.size, memory_.size_of(said.rows, any_canvas));
    ASSERT_EQ(said.canvases, any_canvas || (!memory_.block_sizes.empty() && said.rows > memory_.block_sizes.back()));
    const ForwardBatch& padded = padding_.fill(
        batch, BatchPadding::Sizes{problem_.requests + 1, said.size, static_cast<int32_t>(memory_.logits.numel())});
    const auto same = [&](const char* what, const TensorView& want, const Tensor& got) {
      EXPECT_EQ(std::memcmp(want.data(), got.data(), static_cast<size_t>(want.bytes())), 0)
          << what << ", step " << step;
    };
    same("ids", padded.input_ids, memory_.ids);
    same("positions", padded.positions, memory_.positions);
    same("slots", padded.attn.write_slots, memory_.slots);
    EXPECT_TRUE(std::ranges::equal(
        padded.logits_rows, std::span(memory_.logits.data_as<int32_t>(), static_cast<size_t>(memory_.logits.numel()))));
    compare_spans(padded.attn.spans);
    compare_draws(steps);
  }
  // As the engine's sampler has them; who reads the other rows draws nothing.
  void compare_draws(const std::vector<ScheduledStep>& steps) {
    const auto* draw = static_cast<const TokenDraw*>(memory_.draws.data());
    const auto* end = draw + memory_.draws.dim(0);
    const TopPOf top_p_of = problem_.filters == DiffusionInfo::Filters::kTopPFirst ? TopPOf::kAll : TopPOf::kTopK;
    for (const ScheduledStep& step : steps) {
      const SamplingParams& params = step.sequence->params;
      for (const SampleRow& row : step.plan.sample) {
        const TokenDraw want =
            draw_of({.params = &params, .position = row.position - 1, .step = row.step, .top_p_of = top_p_of});
        EXPECT_EQ(draw->temperature, want.temperature);
        if (want.temperature > 0) {
          EXPECT_EQ(draw->uniform, want.uniform) << "position " << row.position << ", pass " << row.step;
          EXPECT_EQ(draw->top_k, want.top_k);
          EXPECT_EQ(draw->top_p, want.top_p);
          EXPECT_EQ(draw->min_p, want.min_p);
          EXPECT_EQ(draw->top_p_of, want.top_p_of);
        }
        ++draw;
      }
    }
    for (; draw != end; ++draw) EXPECT_EQ(draw->temperature, 0);
  }
  // Those of requests that are done stay where they are, without rows.
  void compare_spans(const std::vector<KeySpan>& want) {
    const auto* spans = static_cast<const KeySpan*>(memory_.spans.data());
    size_t next = 0;
    int32_t rows = 0;
    for (int32_t r = 0; r <= problem_.requests; ++r) {
      EXPECT_EQ(spans[r].q_off, rows);
      rows += spans[r].q_len;
      if (spans[r].q_len == 0) continue;
      while (want[next].q_len == 0) ++next;
      EXPECT_EQ(std::memcmp(&spans[r], &want[next++], sizeof(KeySpan)), 0) << "request " << r;
    }
  }

  Problem problem_;
  const OpSet& ops_;
  Random random_;
  Memory memory_;
  std::unique_ptr<DecodingStrategy> strategy_;
  std::optional<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  BatchBuilder builder_;
  BatchPadding padding_{BatchPadding::States::kNone, 1};
};

std::vector<Problem> problems() {
  using Rule = DecodingParams::Rule;
  std::vector<Problem> all;
  uint64_t seed = 1;
  for (const int32_t block : {1, 4, 8, 32, 64}) {
    for (const Rule rule : {Rule::kConfidence, Rule::kMargin, Rule::kEntropy, Rule::kLeftmost}) {
      for (const bool passes : {false, true}) {
        Problem p{.block_size = block, .requests = block > 8 ? 2 : 5, .seed = ++seed};
        p.decoding.rule = rule;
        p.decoding.threshold = rule == Rule::kEntropy ? 0.3f : rule == Rule::kMargin ? 0.4f : 0.5f;
        if (passes) {
          p.decoding.max_passes = 3;
          p.acceptance = DiffusionInfo::Acceptance::kAtLeast;
          p.filters = DiffusionInfo::Filters::kTopPFirst;
        }
        all.push_back(p);
      }
    }
  }
  // More than a device advances at a time.
  for (const int32_t requests : {128, 129, 300}) all.push_back({.requests = requests, .seed = ++seed});
  return all;
}

// The same, as canvases.
std::vector<Problem> canvas_problems() {
  std::vector<Problem> all;
  for (const char* strategy : {"full_attention", "dual_cache"}) {
    for (const auto logits_of : {DiffusionInfo::LogitsOf::kSame, DiffusionInfo::LogitsOf::kBefore}) {
      for (Problem p : problems()) {
        if (p.decoding.max_passes || p.requests > 8) continue;  // they do not read it; so many do not run at once
        p.strategy = strategy, p.logits_of = logits_of;
        all.push_back(p);
      }
    }
  }
  return all;
}

// The same, in parts.
std::vector<Problem> part_problems() {
  using BlockCache = StrategyConfig::BlockCache;
  std::vector<Problem> all;
  for (const BlockCache cache : {BlockCache::kYes, BlockCache::kNo}) {
    for (Problem p : problems()) {
      if (p.decoding.max_passes) continue;  // they do not read it
      p.strategy = "fast_dllm_v2", p.logits_of = DiffusionInfo::LogitsOf::kBefore;
      p.block_cache = cache;
      for (const int32_t parts : {1, 2, 4}) {
        if (p.block_size % parts != 0) continue;
        p.part_size = p.block_size / parts;
        ++p.seed;
        all.push_back(p);
      }
    }
  }
  return all;
}

void follow_the_strategy(const OpSet& ops, const std::vector<Problem>& all) {
  int steps = 0;
  for (const Problem& problem : all) {
    SCOPED_TRACE(testing::Message() << problem.strategy << ", blocks of " << problem.block_size << ", seed "
                                    << problem.seed);
    steps += BlockTrace(problem, ops).run();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(steps, 200);
}

TEST(BlockStep, FollowsTheStrategyAndItsBatches) { follow_the_strategy(reference::ops(), problems()); }

TEST(BlockStep, FollowsStrategiesOfCanvases) { follow_the_strategy(reference::ops(), canvas_problems()); }

TEST(BlockStep, FollowsStrategiesOfParts) { follow_the_strategy(reference::ops(), part_problems()); }

TEST(BlockStep, FollowsTheStrategyAndItsBatchesOnADevice) {
  const OpSet* ops = testing_support::mirrored_cuda_ops();
  if (ops == nullptr) GTEST_SKIP() << "no CUDA device";
  follow_the_strategy(*ops, problems());
  follow_the_strategy(*ops, canvas_problems());
  follow_the_strategy(*ops, part_problems());
}

TEST(BlockStep, RequestsWithARuleThatItCannotSayGoThroughTheHost) {
  const DiffusionInfo info{.mask_token_id = kMask, .block_size = 4, .sub_block_size = 4, .threshold = 0.9f};
  const auto one = make_strategy("multi_bd", {.model = info});
  const auto two = make_strategy("multi_bd", {.model = info, .num_blocks = 2});
  EXPECT_TRUE(one->device_blocks());
  EXPECT_EQ(one->host_because(), "");
  EXPECT_FALSE(two->device_blocks());
  EXPECT_EQ(two->host_because(), "num_blocks is 2, expected 1");
  Sequence s{.tokens = {1, 2, 3, 4, 5}, .prompt_len = 5, .limit = 20};
  s.params.temperature = 0;
  one->start(s);
  EXPECT_TRUE(one->denoise_state(s));  // the first block waits for its store
  s.params.temperature = 1;
  EXPECT_TRUE(one->denoise_state(s));
  for (const auto rule : {DecodingParams::Rule::kEntropyBound, DecodingParams::Rule::kRandom}) {
    s.params.decoding.rule = rule;
    EXPECT_FALSE(one->denoise_state(s));
  }
  s.params.decoding = {.schedule = DecodingParams::Schedule::kReference};
  EXPECT_FALSE(one->denoise_state(s));
  s.params.decoding = {};
  s.params.end_of_text = SamplingParams::EndOfText::kBanned;
  EXPECT_FALSE(one->denoise_state(s));
  s.params.end_of_text = SamplingParams::EndOfText::kIgnored;
  EXPECT_TRUE(one->denoise_state(s));
  DiffusionInfo other = info;
  other.logits_of = DiffusionInfo::LogitsOf::kBefore;
  EXPECT_EQ(make_strategy("multi_bd", {.model = other})->host_because(),
            "the model's logits decide the next position, expected their own");
  const auto edit = make_strategy("multi_bd_edit", {.model = info});
  EXPECT_FALSE(edit->device_blocks());
  EXPECT_EQ(edit->host_because(), "denoise_step has no rules of multi_bd_edit");
}

// One sentence for each, with the parameter's name; a request without one is the device's.
TEST(BlockStep, WhatOfARequestNeedsTheHostIsSaidByName) {
  const DiffusionInfo info{.mask_token_id = kMask, .block_size = 4, .sub_block_size = 4, .threshold = 0.9f};
  const auto strategy = make_strategy("multi_bd", {.model = info});
  using Decoding = DecodingParams;
  const SamplingParams greedy{.temperature = 0};
  const auto said = [&](const SamplingParams& params, size_t num_end_ids = 1) {
    Sequence s{.params = params, .tokens = {1, 2, 3, 4, 5}, .prompt_len = 5, .limit = 20};
    s.eos_ids.assign(num_end_ids, 3);
    strategy->start(s);
    const auto reason = needs_host(s, info);
    EXPECT_EQ(strategy->denoise_state(s).has_value(), !reason);
    return reason.value_or("");
  };
  const auto decoding = [&](const Decoding& d) { return said({.temperature = 0, .decoding = d}); };
  EXPECT_EQ(said(greedy), "");
  EXPECT_EQ(said(greedy, 8), "");
  EXPECT_EQ(said(greedy, 9), "there are 9 end tokens, expected at most 8");
  EXPECT_EQ(said({.temperature = 0.7f, .top_k = 20, .top_p = 0.9f, .min_p = 0.1f}), "");
  EXPECT_EQ(said({.temperature = 0, .repetition_penalty = 1.1f}), "repetition_penalty is 1.1, expected 1");
  EXPECT_EQ(decoding({.schedule = Decoding::Schedule::kReference}), "schedule is reference, expected threshold");
  EXPECT_EQ(decoding({.order_temperature = 0.5f}), "order_temperature is 0.5, expected 0");
  const std::string rules = ", expected confidence, margin, entropy or leftmost";
  EXPECT_EQ(decoding({.rule = Decoding::Rule::kRandom}), "rule is random" + rules);
  EXPECT_EQ(decoding({.rule = Decoding::Rule::kEntropyBound, .threshold = 1}), "rule is entropy_bound" + rules);
  EXPECT_EQ(decoding({.rule = Decoding::Rule::kMargin}), "");
}

// A device's statistics are of the model's distribution.
TEST(BlockStep, ScoresOfWhatFiltersLeaveNeedTheHost) {
  const DiffusionInfo info{.mask_token_id = kMask, .block_size = 4, .sub_block_size = 4};
  Sequence s{.params = {.temperature = 0.7f}, .scores_of = ScoresOf::kFiltered};
  EXPECT_EQ(needs_host(s, info).value_or(""),
            "scores are of what temperature and filters leave, expected of the model's distribution");
  EXPECT_FALSE((ScheduledStep{.sequence = &s, .plan = {}}.device_reads()));
  s.scores_of = ScoresOf::kModel;
  EXPECT_FALSE(needs_host(s, info));
  EXPECT_TRUE((ScheduledStep{.sequence = &s, .plan = {}}.device_reads()));
}

TEST(HostReasons, EachIsAWarningOnce) {
  std::vector<std::string> lines;
  HostReasons reasons([&lines](LogLevel level, std::string_view text) {
    EXPECT_EQ(level, LogLevel::kWarning);
    lines.emplace_back(text);
  });
  for (const char* one : {"cfg_scale is 0.7, expected 0", "rule is random", "cfg_scale is 0.7, expected 0"}) {
    reasons.add(one);
  }
  EXPECT_EQ(reasons.list(), (std::vector<std::string>{"cfg_scale is 0.7, expected 0", "rule is random"}));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].ends_with(": cfg_scale is 0.7, expected 0")) << lines[0];
  HostReasons({}).add("without a log");
}

TEST(BlockStep, CanvasesWithARuleThatItCannotSayGoThroughTheHost) {
  DiffusionInfo info{.mask_token_id = kMask,
                     .block_size = 4,
                     .sub_block_size = 4,
                     .attention = DiffusionInfo::Attention::kFull,
                     .threshold = 0.9f};
  for (const char* name : {"full_attention", "dual_cache"}) {
    info.block_size = 4;
    const auto strategy = make_strategy(name, {.model = info});
    EXPECT_TRUE(strategy->device_blocks());
    Sequence s{.tokens = {1, 2, 3, 4, 5}, .prompt_len = 5, .limit = 14};
    s.params.temperature = 0;
    strategy->start(s);
    const auto state = strategy->denoise_state(s);
    ASSERT_TRUE(state) << name;
    EXPECT_EQ(state->begin, 5);
    EXPECT_EQ(state->canvas_len, 14);
    s.params.decoding.rule = DecodingParams::Rule::kRandom;
    EXPECT_FALSE(strategy->denoise_state(s));
    s.params.decoding = {.order_temperature = 0.5f};
    EXPECT_FALSE(strategy->denoise_state(s));
    s.params.decoding = {.cfg_scale = 0.5f};
    EXPECT_FALSE(strategy->denoise_state(s));
    s.params.decoding = {.schedule = DecodingParams::Schedule::kReference};
    EXPECT_FALSE(strategy->denoise_state(s));
    info.block_size = DenoiseState::kMaxBlock + 1;
    const auto large = make_strategy(name, {.model = info});
    EXPECT_FALSE(large->device_blocks());
    EXPECT_EQ(large->host_because(), "block_size is 65, expected at most 64");
  }
}

// What runs next follows from which tokens are undecided: the block while a part's first one is, or while nothing of it
// has run, the part otherwise, and the complete block once more.
TEST(BlockStep, PartsRunAloneWhenTheirFirstTokenIsDecided) {
  const DiffusionInfo info{.mask_token_id = kMask,
                           .block_size = 8,
                           .sub_block_size = 4,
                           .logits_of = DiffusionInfo::LogitsOf::kBefore,
                           .threshold = 0.9f};
  const auto strategy = make_strategy("fast_dllm_v2", {.model = info});
  EXPECT_EQ(strategy->device_blocks()->most_rows, 8);
  Sequence s{.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .prompt_len = 9, .limit = 30};
  s.params.temperature = 0;
  strategy->start(s);
  EXPECT_FALSE(strategy->denoise_state(s));  // the prompt's first block is not cached
  s.num_cached = 8;
  s.blocks.erase(s.blocks.begin());
  DenoiseState state = *strategy->denoise_state(s);
  EXPECT_EQ(state.editable, 1);
  EXPECT_EQ(state.num_masked(8), 7);
  EXPECT_EQ(state.num_rows(8), 8);
  EXPECT_EQ(state.num_samples(8), 3);  // of the first part
  EXPECT_EQ(state.num_stored(8), 8);
  EXPECT_EQ(state.span(0, 8).ctx_len, 8);
  state.num_steps = 1;
  state.find_part(8);
  EXPECT_EQ(state.pass, DenoiseState::Pass::kPart);
  EXPECT_EQ(state.first_position(), 8);
  EXPECT_EQ(state.num_rows(8), 4);
  EXPECT_EQ(state.span(0, 8).ctx_len, 16);
  EXPECT_EQ(state.span(0, 8).hole_begin, 8);
  EXPECT_EQ(state.span(0, 8).hole_end, 12);
  for (int32_t p = 0; p < 4; ++p) state.set_masked(p, 0);
  state.find_part(8);
  EXPECT_EQ(state.pass, DenoiseState::Pass::kWhole);
  EXPECT_EQ(state.row_of(4), 3);
  for (int32_t p = 0; p < 8; ++p) state.set_masked(p, 0);
  state.find_part(8);
  EXPECT_EQ(state.pass, DenoiseState::Pass::kClean);
  EXPECT_EQ(state.num_samples(8), 1);
  EXPECT_EQ(state.row_of(8), 7);
  s.params.decoding = {.schedule = DecodingParams::Schedule::kReference};
  EXPECT_FALSE(strategy->denoise_state(s));
}

// Steps of canvases come and go, but never outgrow the largest graph.
TEST(DenoiseLoop, TakesCanvasesThatAlwaysFit) {
  const Memory memory(2, 4, 20);
  const Tensor table = Tensor::zeros(DType::kI32, {3, 4});
  const DenoiseLoop loop(
      reference::ops(), {}, cpu_runtime(),
      {.max_requests = 2,
       .block_size = 4,
       .mask_token_id = kMask,
       .vocab = kVocab,
       .page_size = kPage,
       .sizes = {4, 8},
       .canvas_len = 20,
       .canvas_sizes = {8, 16, 24}},
      {memory.spans, memory.ids, memory.positions, memory.slots, memory.logits, memory.num_rows, table});
  const auto canvas = [](int32_t length) {
    return DenoiseState{
        .running = 1, .sees = DenoiseState::Sees::kKeptCanvas, .begin = 4, .canvas_len = length, .num_steps = 1};
  };
  EXPECT_TRUE(loop.holds(std::array{canvas(20)}));
  EXPECT_TRUE(loop.holds(std::array{canvas(12), canvas(12)}));
  EXPECT_FALSE(loop.holds(std::array{canvas(12), canvas(13)}));  // rows, as soon as both begin a block
  EXPECT_FALSE(loop.holds(std::array{canvas(21)}));              // tokens
}

// The loop's own bookkeeping, on a device that is the host.
class BlockLoopOnTheHost : public ::testing::Test {
 protected:
  // A block all of whose tokens are masked.
  void load() {
    DenoiseState state{.running = 1, .begin = 4, .num_cached = 4, .limit = 8, .page_row = 1};
    state.rule.threshold = 0.5f;
    for (int32_t p = 0; p < 4; ++p) state.set_masked(p, 1);
    loop.load(std::array{state}, std::array<int32_t, 8>{0, 0, 0, 0, kMask, kMask, kMask, kMask});
  }
  // Of which three are sure.
  static Tensor first_logits() {
    Tensor logits = Tensor::zeros(DType::kF32, {8, kVocab});
    for (int64_t i = 0; i < 3; ++i) logits.data_as<float>()[i * kVocab + 5 + i] = 9;
    for (int64_t i = 0; i < 8; ++i) logits.data_as<float>()[i * kVocab + kMask] = 20;
    return logits;
  }

  const Memory memory{2, 4};
  const Tensor table = Tensor::zeros(DType::kI32, {3, 4});
  DenoiseLoop loop{reference::ops(),
                   {},
                   cpu_runtime(),
                   {.max_requests = 2,
                    .block_size = 4,
                    .mask_token_id = kMask,
                    .vocab = kVocab,
                    .page_size = kPage,
                    .sizes = memory.block_sizes},
                   {memory.spans, memory.ids, memory.positions, memory.slots, memory.logits, memory.num_rows, table}};
};

TEST_F(BlockLoopOnTheHost, ReportsWhatAStepDecidedAndWhatComesNext) {
  for (int round = 0; round < 2; ++round) {
    load();
    Tensor logits = first_logits();
    loop.started();
    loop.end_step(logits);
    const DenoiseReport next = loop.wait();
    EXPECT_EQ(next.running, 1);
    EXPECT_EQ(next.rows, 4);
    EXPECT_EQ(next.logits_rows, 1);
    loop.started();
    logits.data_as<float>()[9] = 15;  // of the row that is left
    loop.end_step(logits);            // is over before anybody asks what the first one decided
    const ChosenRows first = loop.decided();
    ASSERT_EQ(first.ids.dim(0), 4);
    for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(first.ids.data_as<int32_t>()[i], 5 + i);
    const DenoiseReport last = loop.wait();
    EXPECT_EQ(last.running, 0);
    EXPECT_EQ(last.size, 0);
    const ChosenRows second = loop.decided();
    ASSERT_EQ(second.ids.dim(0), 1);
    EXPECT_EQ(second.ids.data_as<int32_t>()[0], 9);
  }
  EXPECT_THROW(loop.wait(), Error);
}

TEST_F(BlockLoopOnTheHost, WaitsForTheLastOfTheStepsThatWereQueued) {
  load();
  Tensor logits = first_logits();
  loop.started();
  loop.end_step(logits);
  logits.data_as<float>()[9] = 15;
  loop.started();
  loop.end_step(logits);
  EXPECT_EQ(loop.wait().running, 0);
  EXPECT_THROW(loop.wait(), Error);
  load();
  loop.started();
  loop.end_step(first_logits());
  EXPECT_EQ(loop.wait().logits_rows, 1);
}

}  // namespace
}  // namespace headrace
