// Fast-dLLM v2 through the whole engine, over a toy model: which passes run, and that they mix in one batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "headrace/decoding/block_buffer.h"
#include "headrace/engine/engine.h"
#include "toy_diffusion_model.h"

namespace headrace {
namespace {

using testing_support::prompt_of;
using testing_support::ToyDiffusionModel;
using testing_support::ToyScript;

const ToyScript kScript{
    .block_size = 32, .sub_block_size = 8, .sure_masks = 3, .logits_of = DiffusionInfo::LogitsOf::kBefore};

EngineConfig fast_config_of(int32_t max_requests, int64_t rows_per_step) {
  return {.runner = {.num_pages = 64, .page_size = ToyDiffusionModel::kPageSize, .max_tokens = rows_per_step},
          .max_requests = max_requests,
          .max_context_len = 192,
          .strategy = "fast_dllm_v2"};
}

enum class Pass { kChunk, kInit, kRefine, kCommit };

Pass pass_of(const Sequence& s, const StepPlan& plan) {
  if (plan.sample.empty()) return Pass::kChunk;
  if (plan.spans.front().keys.kind == KeySpan::Kind::kFull) return Pass::kRefine;
  return plan.sample.front().position == s.num_tokens() ? Pass::kCommit : Pass::kInit;
}

struct SubBlocksDecoded {
  std::map<int64_t, std::vector<int32_t>> ids;
  std::map<Pass, int> passes;
  std::vector<std::set<Pass>> steps;  // which kinds ran together
};

SubBlocksDecoded decode_sub_blocks(const ToyScript& script, const EngineConfig& config,
                                   const std::vector<int32_t>& prompt_lens, const SamplingParams& params) {
  const ToyDiffusionModel model(script);
  Engine engine(model, config);
  SubBlocksDecoded result;
  engine.observe([&result](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kCommitted) return;
    ++result.passes[pass_of(s, plan)];
    result.steps.back().insert(pass_of(s, plan));
  });
  for (const int32_t length : prompt_lens) engine.add(prompt_of(length), params);
  while (!engine.idle()) {
    result.steps.emplace_back();
    for (const StepOutput& out : engine.step()) result.ids[out.sequence_id].push_back(out.token.id);
  }
  EXPECT_EQ(engine.scheduler().free_pages(), 64);
  return result;
}

TEST(FastDLLMv2, ThePassesOfTheSpecificationsExample) {
  const SubBlocksDecoded r =
      decode_sub_blocks(kScript, fast_config_of(1, 128), {40}, {.max_tokens = 50, .temperature = 0});
  EXPECT_EQ(r.ids.at(1), ToyDiffusionModel::tokens(40, 50));
  EXPECT_EQ(r.passes.at(Pass::kInit), 7);  // the first of them runs the prompt, too
  EXPECT_EQ(r.passes.at(Pass::kRefine), 12);
  EXPECT_EQ(r.passes.at(Pass::kCommit), 1);  // the last block is not needed again
  EXPECT_EQ(r.steps.size(), 20u);
}

TEST(FastDLLMv2, TheModelsOwnBlockSizeChangesNothingWhenItIsStated) {
  const SamplingParams params{.max_tokens = 50, .temperature = 0};
  EngineConfig stated = fast_config_of(1, 128);
  stated.decoding.block_size = kScript.block_size;
  const SubBlocksDecoded own = decode_sub_blocks(kScript, fast_config_of(1, 128), {40}, params),
                         same = decode_sub_blocks(kScript, stated, {40}, params);
  EXPECT_EQ(same.ids, own.ids);
  EXPECT_EQ(same.passes, own.passes);
  EXPECT_EQ(same.steps, own.steps);
}

TEST(FastDLLMv2, ABlockOfAnotherSizeHasTheModelsPartsOrTheLargestThatDivideBoth) {
  const auto part_of = [](std::optional<int32_t> block_size) {
    return diffusion_info("", {.model = ToyDiffusionModel(kScript).info().diffusion, .block_size = block_size})
        .sub_block_size;
  };
  EXPECT_EQ(part_of({}), 8);
  for (const int32_t size : {8, 16, 32, 64}) EXPECT_EQ(part_of(size), 8) << size;
  for (const int32_t size : {4, 12, 20}) EXPECT_EQ(part_of(size), 4) << size;
  const DiffusionInfo whole{.mask_token_id = 1, .block_size = 4, .sub_block_size = 4};
  EXPECT_EQ(diffusion_info("", {.model = whole, .block_size = 16}).sub_block_size, 16);
}

TEST(FastDLLMv2, B08_TheLastBlockIsCutAndAnAlignedPromptsLastRowGivesTheFirstToken) {
  for (const int32_t prompt_len : {1, 31, 32, 33, 64}) {
    for (const int32_t max_tokens : {1, 7, 26, 32, 33}) {
      const SubBlocksDecoded r = decode_sub_blocks(kScript, fast_config_of(1, 128), {prompt_len},
                                                   {.max_tokens = max_tokens, .temperature = 0});
      EXPECT_EQ(r.ids.at(1), ToyDiffusionModel::tokens(prompt_len, max_tokens)) << prompt_len << ", " << max_tokens;
    }
  }
  const SubBlocksDecoded aligned =
      decode_sub_blocks(kScript, fast_config_of(1, 128), {32}, {.max_tokens = 1, .temperature = 0});
  EXPECT_EQ(aligned.steps, (std::vector<std::set<Pass>>{{Pass::kCommit}}));
}

TEST(FastDLLMv2, B23_AllKindsOfPassesRunInOneBatchAndChangeNothing) {
  const SubBlocksDecoded r =
      decode_sub_blocks(kScript, fast_config_of(6, 160), {40, 64, 33, 96, 7, 59}, {.max_tokens = 60, .temperature = 0});
  const std::vector<int32_t> prompt_lens = {40, 64, 33, 96, 7, 59};
  for (size_t i = 0; i < prompt_lens.size(); ++i) {
    EXPECT_EQ(r.ids.at(static_cast<int64_t>(i) + 1), ToyDiffusionModel::tokens(prompt_lens[i], 60)) << prompt_lens[i];
  }
  EXPECT_TRUE(std::ranges::any_of(r.steps, [](const std::set<Pass>& kinds) {
    return kinds.contains(Pass::kInit) && kinds.contains(Pass::kRefine) && kinds.contains(Pass::kCommit);
  }));
  EXPECT_TRUE(r.passes.contains(Pass::kChunk));
}

TEST(FastDLLMv2, WithoutTheBlockCacheEveryPassSeesTheWholeBlock) {
  EngineConfig config = fast_config_of(1, 128);
  config.decoding.block_cache = StrategyConfig::BlockCache::kNo;
  const SubBlocksDecoded r = decode_sub_blocks(kScript, config, {40}, {.max_tokens = 50, .temperature = 0});
  EXPECT_EQ(r.ids.at(1), ToyDiffusionModel::tokens(40, 50));
  EXPECT_EQ(r.passes.at(Pass::kInit), 19);
  EXPECT_FALSE(r.passes.contains(Pass::kRefine));
}

// Beside requests that have the cache: a graph's attention takes all new keys from the pool.
TEST(FastDLLMv2, ThePublishedLoopHasNoBlockCacheUnlessAskedAndStoresWhatItRuns) {
  const SamplingParams published{
      .max_tokens = 50, .temperature = 0, .decoding = {.schedule = DecodingParams::Schedule::kReference}};
  EngineConfig config = fast_config_of(1, 128);
  EXPECT_FALSE(decode_sub_blocks(kScript, config, {40}, published).passes.contains(Pass::kRefine));
  const ToyDiffusionModel model(kScript);
  Engine engine(model, config);
  engine.observe([](StepMoment, const Sequence&, const StepPlan& plan) {
    const PlannedSpan& span = plan.spans.front();
    EXPECT_EQ(span.store.size(), span.keys.q_len);
  });
  engine.add(prompt_of(40), published);
  while (!engine.idle()) engine.step();
  config.decoding.block_cache = StrategyConfig::BlockCache::kYes;
  EXPECT_TRUE(decode_sub_blocks(kScript, config, {40}, published).passes.contains(Pass::kRefine));
}

TEST(FastDLLMv2, B07_NothingBehindAnEndTokenIsDenoised) {
  ToyScript script = kScript;
  script.eos_at = 41;
  const SubBlocksDecoded r =
      decode_sub_blocks(script, fast_config_of(1, 128), {40}, {.max_tokens = 50, .temperature = 0});
  EXPECT_EQ(r.ids.at(1).size(), 2u);
  EXPECT_EQ(r.steps.size(), 1u);
}

TEST(FastDLLMv2, B04_ABlockThatEndsBehindTheContextIsRefusedWhenItIsAdded) {
  const ToyDiffusionModel model(kScript);
  EngineConfig config = fast_config_of(1, 128);
  config.max_context_len = 100;  // 7 pages of 16, and the block 96..128 would need 8
  Engine engine(model, config);
  EXPECT_THROW(engine.add(prompt_of(90), {.max_tokens = 10}), Error);
  engine.add(prompt_of(80), {.max_tokens = 10, .temperature = 0});
  size_t count = 0;
  while (!engine.idle()) count += engine.step().size();
  EXPECT_EQ(count, 10u);
}

TEST(FastDLLMv2, AModelWhoseLogitsAreNoNextTokensIsRefused) {
  ToyScript script = kScript;
  script.logits_of = DiffusionInfo::LogitsOf::kSame;
  const ToyDiffusionModel model(script);
  EXPECT_THROW(Engine(model, fast_config_of(1, 128)), Error);
}

}  // namespace
}  // namespace headrace
