// Block diffusion through the whole engine, over a toy model: the specification's golden traces, and what must not
// happen.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "headrace/engine/engine.h"
#include "parity_multi_bd.h"
#include "toy_diffusion_model.h"

namespace headrace {
namespace {

using testing_support::ParityMultiBD;
using testing_support::prompt_of;
using testing_support::ToyDiffusionModel;
using testing_support::ToyScript;

enum class Pipeline : uint8_t { kTight, kParity };

struct Setup {
  int32_t num_blocks = 1;
  Pipeline pipeline = Pipeline::kTight;
  int32_t max_requests = 1;
  int64_t rows_per_step = 128;
};

EngineConfig buffer_config(const Setup& s) {
  return {.runner = {.num_pages = 64, .page_size = ToyDiffusionModel::kPageSize, .max_tokens = s.rows_per_step},
          .max_requests = s.max_requests,
          .max_context_len = 128,
          .strategy = "multi_bd",
          .decoding = {.num_blocks = s.num_blocks}};
}

std::unique_ptr<DecodingStrategy> strategy_of(const Setup& s, const Model& model) {
  const StrategyConfig config{.model = model.info().diffusion, .num_blocks = s.num_blocks};
  if (s.pipeline == Pipeline::kParity) return std::make_unique<ParityMultiBD>(config);
  return make_strategy("multi_bd", config);
}

std::string buffer_of(const Sequence& s, int32_t block_size) {
  std::string text;
  for (const DecodingBlock& block : s.blocks) {
    if (block.is_prompt()) continue;
    text += (text.empty() ? "" : " ") + std::to_string(block.begin() / block_size) + (block.is_active() ? "A" : "T") +
            std::to_string(block.num_masked());
  }
  return text;
}

// One line per pass: context, first position + rows, stored blocks, the buffer before the pass, new tokens.
struct BufferDecoded {
  std::vector<std::string> trace;
  std::vector<int32_t> ids;
  std::optional<FinishReason> reason;
  int64_t forwards() const { return static_cast<int64_t>(trace.size()); }
  int64_t visible() const { return static_cast<int64_t>(ids.size()) - (reason == FinishReason::kStop ? 1 : 0); }
};

BufferDecoded decode_buffer(const ToyScript& script, const Setup& setup, int32_t prompt_len,
                            const SamplingParams& params) {
  const ToyDiffusionModel model(script);
  Engine engine(model, buffer_config(setup), strategy_of(setup, model));
  BufferDecoded result;
  int32_t masks = 0;
  const auto count_masks = [](const Sequence& s, const StepPlan& plan) {
    int32_t count = 0;
    for (const SampleRow& row : plan.sample)
      count += s.tokens[static_cast<size_t>(row.position)] == ToyDiffusionModel::kMask ? 1 : 0;
    return count;
  };
  engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kPlanned) {
      const PlannedSpan& span = plan.spans.front();
      std::string stored;
      for (int32_t p = span.store.begin; p < span.store.end; p += script.block_size) {
        stored += (stored.empty() ? "" : ",") + std::to_string(p / script.block_size);
      }
      result.trace.push_back(str("c", span.keys.ctx_len, " rows ", span.keys.phys0, "+", span.keys.q_len, " store ",
                                 stored.empty() ? "-" : stored, " | ", buffer_of(s, script.block_size)));
      masks = count_masks(s, plan);
    } else if (s.blocks.size() > 0 || masks > 0) {
      int32_t left = 0;
      for (const SampleRow& row : plan.sample) {
        const bool dropped = row.position >= s.num_tokens();
        left += !dropped && s.tokens[static_cast<size_t>(row.position)] == ToyDiffusionModel::kMask ? 1 : 0;
      }
      result.trace.back() += " | " + std::to_string(masks - left);
    }
  });
  engine.add(prompt_of(prompt_len), params);
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) {
      result.ids.push_back(out.token.id);
      if (out.finish_reason) result.reason = out.finish_reason;
    }
  }
  return result;
}

using Trace = std::vector<std::string>;

TEST(MultiBD, GoldenTrace1InParity) {
  const BufferDecoded r =
      decode_buffer({.eos_at = 13}, {.num_blocks = 2, .pipeline = Pipeline::kParity}, 6, {.temperature = 0});
  EXPECT_EQ(r.trace, (Trace{"c0 rows 0+12 store 0 | 1A2 2A4 | 4", "c4 rows 4+8 store 1 | 1T0 2A2 | 2",
                            "c8 rows 8+8 store 2 | 2T0 3A4 | 2", "c12 rows 12+4 store - | 3A2 | 2"}));
  EXPECT_EQ(r.visible(), 7);
  EXPECT_EQ(r.reason, FinishReason::kStop);
}

TEST(MultiBD, GoldenTrace2InParity) {
  const BufferDecoded r =
      decode_buffer({.eos_at = 13}, {.num_blocks = 1, .pipeline = Pipeline::kParity}, 8, {.temperature = 0});
  EXPECT_EQ(r.trace, (Trace{"c0 rows 0+8 store 0,1 |  | 0", "c8 rows 8+4 store - | 2A4 | 2",
                            "c8 rows 8+4 store - | 2A2 | 2", "c8 rows 8+4 store 2 | 2T0 | 0",
                            "c12 rows 12+4 store - | 3A4 | 2", "c12 rows 12+4 store - | 3A2 | 2"}));
  EXPECT_EQ(r.visible(), 5);
}

TEST(MultiBD, GoldenTrace3InParityButItsMasksAreNoTokens) {
  const BufferDecoded r =
      decode_buffer({}, {.num_blocks = 2, .pipeline = Pipeline::kParity}, 8, {.max_tokens = 16, .temperature = 0});
  ASSERT_GE(r.forwards(), 5);
  EXPECT_EQ(Trace(r.trace.begin(), r.trace.begin() + 4),
            (Trace{"c0 rows 0+8 store 0,1 |  | 0", "c8 rows 8+4 store - | 2A4 | 2", "c8 rows 8+8 store - | 2A2 3A4 | 4",
                   "c8 rows 8+8 store 2 | 2T0 3A2 | 2"}));
  EXPECT_EQ(r.ids.size(), 16u);
}

TEST(MultiBD, Trace1WithoutBubblesTakesTwoForwards) {
  const BufferDecoded r = decode_buffer({.eos_at = 13}, {.num_blocks = 2}, 6, {.temperature = 0});
  EXPECT_EQ(r.trace, (Trace{"c0 rows 0+12 store 0 | 1A2 2A4 | 4", "c4 rows 4+12 store 1 | 1T0 2A2 3A4 | 4"}));
  EXPECT_EQ(r.visible(), 7);
}

TEST(MultiBD, B06_Trace2TakesThreeForwardsInsteadOfSix) {
  const BufferDecoded r = decode_buffer({.eos_at = 13}, {.num_blocks = 1}, 8, {.temperature = 0});
  EXPECT_EQ(r.trace, (Trace{"c0 rows 0+12 store 0,1 | 2A4 | 2", "c8 rows 8+4 store - | 2A2 | 2",
                            "c8 rows 8+8 store 2 | 2T0 3A4 | 2"}));
  EXPECT_EQ(r.visible(), 5);
  EXPECT_EQ(r.reason, FinishReason::kStop);
}

TEST(MultiBD, B01_Trace3ReturnsSixteenRealTokens) {
  const BufferDecoded r = decode_buffer({}, {.num_blocks = 2}, 8, {.max_tokens = 16, .temperature = 0});
  std::vector<int32_t> want;
  for (int32_t p = 8; p < 24; ++p) want.push_back(ToyDiffusionModel::token_at(p));
  EXPECT_EQ(r.ids, want);
  EXPECT_EQ(r.forwards(), 5);
  EXPECT_EQ(r.reason, FinishReason::kLength);
}

TEST(MultiBD, B01_MaxTokensCountsFinalTokensWhateverTheBlocks) {
  for (const int32_t num_blocks : {1, 2, 4}) {
    for (const int32_t prompt_len : {5, 8}) {
      for (const int32_t max_tokens : {1, 3, 7, 16, 33}) {
        const BufferDecoded r =
            decode_buffer({}, {.num_blocks = num_blocks}, prompt_len, {.max_tokens = max_tokens, .temperature = 0});
        ASSERT_EQ(static_cast<int32_t>(r.ids.size()), max_tokens) << num_blocks << " blocks, prompt of " << prompt_len;
        for (int32_t i = 0; i < max_tokens; ++i) {
          EXPECT_EQ(r.ids[static_cast<size_t>(i)], ToyDiffusionModel::token_at(prompt_len + i));
        }
      }
    }
  }
}

TEST(MultiBD, B05_AnAlignedPromptDecidesTokensInItsOwnPass) {
  EXPECT_EQ(decode_buffer({}, {}, 8, {.max_tokens = 2, .temperature = 0}).forwards(), 1);
  EXPECT_EQ(decode_buffer({}, {}, 7, {.max_tokens = 1, .temperature = 0}).forwards(), 1);
}

TEST(MultiBD, B07_NothingBehindAnEndTokenIsDenoised) {
  // The end token stands first in its block: the pass that finds it is the last, though three masks are left behind it.
  const BufferDecoded r = decode_buffer({.sure_masks = 1, .eos_at = 8}, {.num_blocks = 1}, 8, {.temperature = 0});
  EXPECT_EQ(r.forwards(), 1);
  EXPECT_EQ(r.visible(), 0);
  // With masks left before it, those alone are looked at: the rows of its own block do not run again.
  const BufferDecoded two = decode_buffer({.sure_masks = 1, .eos_at = 12}, {.num_blocks = 3}, 10, {.temperature = 0});
  EXPECT_EQ(two.trace, (Trace{"c0 rows 0+16 store 0,1 | 2A2 3A4 | 2", "c8 rows 8+4 store - | 2A1 3A0 | 1"}));
  EXPECT_EQ(two.visible(), 2);
}

TEST(MultiBD, B33_MaskIdsInThePromptAndAsPlainTokensAreNoMasks) {
  const ToyDiffusionModel model({});
  Engine engine(model, buffer_config({}));
  std::vector<int32_t> prompt = prompt_of(10);
  prompt[3] = prompt[9] = ToyDiffusionModel::kMask;
  engine.add(prompt, {.max_tokens = 6, .temperature = 0});
  std::vector<int32_t> ids;
  engine.observe([&](StepMoment, const Sequence& s, const StepPlan& plan) {
    EXPECT_EQ(s.tokens[3], ToyDiffusionModel::kMask);
    for (const SampleRow& row : plan.sample) EXPECT_GE(row.position, 10);
  });
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) ids.push_back(out.token.id);
  }
  ASSERT_EQ(ids.size(), 6u);
  for (int32_t p = 10; p < 16; ++p) EXPECT_EQ(ids[static_cast<size_t>(p - 10)], ToyDiffusionModel::token_at(p));
}

TEST(MultiBD, B31_TheMaskIsNeverChosen) {  // the toy model wants it above everything else
  for (const float temperature : {0.0f, 1.5f}) {
    const BufferDecoded r = decode_buffer({}, {}, 5, {.max_tokens = 40, .temperature = temperature, .seed = 4});
    EXPECT_EQ(std::ranges::count(r.ids, ToyDiffusionModel::kMask), 0);
  }
}

TEST(MultiBD, ModelsThatPredictTheNextTokenReadTheRowBefore) {
  for (const int32_t prompt_len : {3, 8, 9}) {
    for (const int32_t num_blocks : {1, 2}) {
      const BufferDecoded r = decode_buffer({.logits_of = DiffusionInfo::LogitsOf::kBefore}, {.num_blocks = num_blocks},
                                            prompt_len, {.max_tokens = 13, .temperature = 0});
      ASSERT_EQ(r.ids.size(), 13u);
      for (int32_t i = 0; i < 13; ++i)
        EXPECT_EQ(r.ids[static_cast<size_t>(i)], ToyDiffusionModel::token_at(prompt_len + i));
    }
  }
}

TEST(MultiBD, B05_AShiftedModelRepeatsTheLastCachedRowOnlyWhileItsSuccessorIsMasked) {
  const BufferDecoded r = decode_buffer({.sure_masks = 1, .logits_of = DiffusionInfo::LogitsOf::kBefore}, {}, 8,
                                        {.max_tokens = 6, .temperature = 0});
  EXPECT_EQ(r.trace, (Trace{"c0 rows 0+12 store 0,1 | 2A4 | 1", "c8 rows 8+4 store - | 2A3 | 1",
                            "c8 rows 8+4 store - | 2A2 | 1", "c8 rows 8+4 store - | 2A1 | 1",
                            "c8 rows 8+8 store 2 | 2T0 3A2 | 1", "c12 rows 12+4 store - | 3A1 | 1"}));
}

TEST(MultiBD, B18_TheHeadRunsOnUndecidedPositionsAlone) {
  const ToyDiffusionModel model({});
  Engine engine(model, buffer_config({.num_blocks = 2}));
  engine.add(prompt_of(10), {.max_tokens = 12, .temperature = 0});
  while (!engine.idle()) engine.step();
  EXPECT_EQ(model.logits_rows, (std::vector<int64_t>{6, 6, 4}));
  EXPECT_EQ(model.rows, (std::vector<int64_t>{16, 12, 12}));  // B20: no row of a block that is not opened
}

TEST(MultiBD, B19_PromptsInChunksOfWholeBlocksShareStepsWithDenoisingAndChangeNothing) {
  const ToyScript script{.sure_masks = 1};
  const BufferDecoded alone = decode_buffer(script, {.num_blocks = 2}, 41, {.max_tokens = 20, .temperature = 0});
  for (const int64_t rows : {17, 20, 31, 64}) {
    const ToyDiffusionModel model(script);
    Engine engine(model, buffer_config({.num_blocks = 2, .max_requests = 3, .rows_per_step = rows}));
    std::map<int64_t, std::vector<int32_t>> ids;
    engine.observe([](StepMoment, const Sequence& s, const StepPlan& plan) {
      const PlannedSpan& span = plan.spans.front();
      EXPECT_EQ(span.keys.ctx_len, span.keys.phys0);
      EXPECT_TRUE(span.store.end % 4 == 0 || span.store.end == s.num_tokens());
    });
    for (int i = 0; i < 3; ++i) engine.add(prompt_of(41), {.max_tokens = 20, .temperature = 0});
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) ids[out.sequence_id].push_back(out.token.id);
    }
    ASSERT_EQ(ids.size(), 3u);
    for (const auto& [id, tokens] : ids) EXPECT_EQ(tokens, alone.ids) << rows << " rows";
    EXPECT_EQ(engine.scheduler().free_pages(), 64);
  }
}

TEST(MultiBD, APassThatOnlyStoresOpensNoBlock) {  // or what is decided would depend on how a prompt is cut
  for (const char* strategy : {"multi_bd", "multi_bd_edit", "dmax"}) {
    const ToyDiffusionModel model({});
    EngineConfig config = buffer_config({.num_blocks = 3, .rows_per_step = 25});
    config.strategy = strategy;
    Engine engine(model, config);
    int32_t opened = 0, only_stored = 0;
    engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan& plan) {
      if (moment == StepMoment::kPlanned) opened = s.num_tokens();
      if (moment == StepMoment::kPlanned || !plan.sample.empty()) return;
      EXPECT_EQ(s.num_tokens(), opened) << strategy;
      ++only_stored;
    });
    SamplingParams params{.max_tokens = 20, .temperature = 0};
    params.decoding.add_block = 0;
    engine.add(prompt_of(41), params);
    while (!engine.idle()) engine.step();
    EXPECT_GT(only_stored, 0) << strategy;
  }
}

TEST(MultiBD, B04_ARequestThatOutgrowsThePoolOrTheStepFailsAlone) {
  const ToyDiffusionModel model({});
  Engine narrow(model, buffer_config({.rows_per_step = 7}));
  EXPECT_THROW(narrow.add(prompt_of(4), {.max_tokens = 4}), Error);  // a step has up to 8 rows
  narrow.add(prompt_of(3), {.max_tokens = 1});                       // or as many as there are tokens
  EngineConfig few = buffer_config({});
  few.runner.num_pages = 2;
  Engine engine(model, few);
  EXPECT_THROW(engine.add(prompt_of(8), {.max_tokens = 40}), Error);
  engine.add(prompt_of(8), {.max_tokens = 20, .temperature = 0});
  size_t count = 0;
  while (!engine.idle()) count += engine.step().size();
  EXPECT_EQ(count, 20u);
}

TEST(MultiBD, StepsOfTwoBlocksAreAllThatARequestNeeds) {
  for (const auto logits_of : {DiffusionInfo::LogitsOf::kSame, DiffusionInfo::LogitsOf::kBefore}) {
    const ToyDiffusionModel model({.logits_of = logits_of});
    Engine engine(model, buffer_config({.rows_per_step = 8}));
    for (const int32_t prompt_len : {3, 4, 13}) {
      engine.add(prompt_of(prompt_len), {.max_tokens = 20, .temperature = 0});
      std::vector<int32_t> ids;
      while (!engine.idle()) {
        for (const StepOutput& out : engine.step()) ids.push_back(out.token.id);
      }
      EXPECT_EQ(ids, ToyDiffusionModel::tokens(prompt_len, 20)) << prompt_len;
    }
  }
}

TEST(MultiBD, B32_TheNextBlockOpensOnceATenthIsDecided) {
  // One token per pass and block of 8: the second block opens behind the first token, and not before.
  const BufferDecoded r =
      decode_buffer({.block_size = 8, .sure_masks = 1}, {.num_blocks = 2}, 8, {.max_tokens = 16, .temperature = 0});
  EXPECT_EQ(r.trace.at(0), "c0 rows 0+16 store 0 | 1A8 | 1");
  EXPECT_EQ(r.trace.at(1), "c8 rows 8+16 store - | 1A7 2A8 | 2");
}

TEST(MultiBD, MaxPassesSharesABlocksMasksOutEvenly) {
  SamplingParams params{.max_tokens = 12, .temperature = 0};
  params.decoding.max_passes = 3;  // of four masks: two, one, one
  const BufferDecoded r = decode_buffer({.sure_masks = 0}, {}, 8, params);
  EXPECT_EQ(r.trace,
            (Trace{"c0 rows 0+12 store 0,1 | 2A4 | 2", "c8 rows 8+4 store - | 2A2 | 1", "c8 rows 8+4 store - | 2A1 | 1",
                   "c8 rows 8+8 store 2 | 2T0 3A4 | 2", "c12 rows 12+4 store - | 3A2 | 1",
                   "c12 rows 12+4 store - | 3A1 | 1", "c12 rows 12+8 store 3 | 3T0 4A4 | 2",
                   "c16 rows 16+4 store - | 4A2 | 1", "c16 rows 16+4 store - | 4A1 | 1"}));
  EXPECT_EQ(decode_buffer({.sure_masks = 4}, {}, 8, params).forwards(),
            3);  // what passes the threshold is kept besides
}

TEST(MultiBD, MaxPassesIsRefusedWhereNothingReadsIt) {
  const ToyDiffusionModel model({});
  SamplingParams params{.max_tokens = 4, .temperature = 0};
  params.decoding.max_passes = 3;
  for (const char* strategy : {"multi_bd_edit", "dmax"}) {
    EngineConfig config = buffer_config({});
    config.strategy = strategy;
    Engine engine(model, config);
    EXPECT_THROW(engine.add(prompt_of(8), params), Error) << strategy;
  }
  params.decoding.schedule = DecodingParams::Schedule::kReference;
  Engine engine(model, buffer_config({}));
  EXPECT_THROW(engine.add(prompt_of(8), params), Error);
}

TEST(MultiBD, ACausalModelIsRefusedInASentence) {
  try {
    make_strategy("multi_bd", {});
    FAIL() << "a causal model was taken";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "strategy 'multi_bd': the model names no mask token; is it a diffusion model?");
  }
}

}  // namespace
}  // namespace headrace
