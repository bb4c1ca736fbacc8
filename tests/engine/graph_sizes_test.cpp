// Which graphs are recorded for the steps that a strategy says it has.
#include "headrace/engine/graph_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace headrace {
namespace {

using AtMost = CanvasShape::AtMost;

TEST(GraphSizes, CanvasesAreFilledUpByAnEighthAtMostWhereProductsFillTheDevice) {
  const RowGraphs graphs = canvas_graphs({.samples = 32}, {}, /*max_requests=*/1, /*context=*/4096);
  EXPECT_EQ(graphs.sizes.front(), 32);
  EXPECT_EQ(graphs.sizes.back(), 1024);
  EXPECT_EQ(graphs.sizes.size(), 24u);
  for (int32_t rows = 257; rows <= 1024; ++rows) {
    EXPECT_LE(8 * (*std::ranges::lower_bound(graphs.sizes, rows) - rows), rows) << rows;
  }
  EXPECT_EQ(graphs.most_rows, 1024);
}

TEST(GraphSizes, CanvasesEndWithTheContextOfAllRequests) {
  EXPECT_EQ(canvas_graphs({.samples = 8}, {}, 1, 100).sizes, (std::vector<int32_t>{32, 64, 96, 100}));
  EXPECT_EQ(canvas_graphs({.samples = 8}, {}, 2, 50).sizes, (std::vector<int32_t>{32, 64, 96, 100}));
  EXPECT_EQ(canvas_graphs({.samples = 8}, {}, 2, 50).most_rows, 50);
  EXPECT_EQ(canvas_graphs({.samples = 8}, {}, 1, 20).sizes, std::vector<int32_t>{20});
  EXPECT_EQ(canvas_graphs({.samples = 8}, {}, 1 << 20, 1 << 20).sizes.back(), 1024);
}

TEST(GraphSizes, CanvasesHaveLogitsOfABlockOrWhereTheyMayOfAllRows) {
  const RowGraphs block = canvas_graphs({.samples = 32}, {}, 3, 4096);
  EXPECT_EQ(block.most_logits, 96);
  EXPECT_EQ(block.few_logits, 96);
  const RowGraphs all = canvas_graphs({.samples = 32, .at_most = AtMost::kAllRows}, {}, 3, 4096);
  EXPECT_EQ(all.most_logits, 1024);
  EXPECT_EQ(all.few_logits, 96);
  EXPECT_EQ(canvas_graphs({.samples = 32, .at_most = AtMost::kAllRows}, {}, 1, 20).few_logits, 20);
}

TEST(GraphSizes, DualCacheHasBlocksBesideCanvases) {
  const DiffusionInfo info{.mask_token_id = 5, .block_size = 32, .attention = DiffusionInfo::Attention::kFull};
  const auto strategy = make_strategy("dual_cache", {.model = info});
  const RowGraphs blocks = row_graphs(*strategy->traits().step, 3);
  EXPECT_EQ(blocks.sizes, (std::vector<int32_t>{32, 64, 96}));
  EXPECT_EQ(blocks.most_rows, 32);
  EXPECT_EQ(blocks.new_keys, DeviceMetadata::NewKeys::kSomeNotStored);
  EXPECT_EQ(strategy->traits().canvas->at_most, AtMost::kThese);
  // A canvas of one request may meet the block of another one, whose keys are not in the pool.
  const auto keys = [&](int32_t requests) {
    return canvas_graphs(*strategy->traits().canvas, strategy->traits().step, requests, 512).new_keys;
  };
  EXPECT_EQ(keys(1), DeviceMetadata::NewKeys::kAllStored);
  EXPECT_EQ(keys(2), DeviceMetadata::NewKeys::kSomeNotStored);
}

TEST(GraphSizes, FastDLLMv2HasPartsAndBlocks) {
  const DiffusionInfo info{
      .mask_token_id = 5, .block_size = 32, .sub_block_size = 8, .logits_of = DiffusionInfo::LogitsOf::kBefore};
  const auto strategy = make_strategy("fast_dllm_v2", {.model = info});
  const RowGraphs one = row_graphs(*strategy->traits().step, 1);
  EXPECT_EQ(one.sizes, (std::vector<int32_t>{8, 16, 32}));
  EXPECT_EQ(one.most_rows, 32);
  EXPECT_EQ(one.most_logits, 8);
  EXPECT_EQ(one.new_keys, DeviceMetadata::NewKeys::kAllStored);
  EXPECT_EQ(row_graphs(*strategy->traits().step, 32).sizes.back(), 1024);
  EXPECT_FALSE(strategy->traits().canvas);
  // Passes over the whole block keep it only when it is complete.
  const auto exact = make_strategy("fast_dllm_v2", {.model = info, .block_cache = StrategyConfig::BlockCache::kNo});
  EXPECT_EQ(row_graphs(*exact->traits().step, 1).new_keys, DeviceMetadata::NewKeys::kSomeNotStored);
}

TEST(GraphSizes, BlocksHaveNoGraphBeyondTheirLargestStep) {
  const DiffusionInfo info{.mask_token_id = 5, .block_size = 4, .sub_block_size = 4};
  for (const char* name : {"multi_bd", "multi_bd_edit", "dmax", "d2f"}) {
    const auto strategy = make_strategy(name, {.model = info});
    EXPECT_EQ(row_graphs(*strategy->traits().step, 1).sizes, (std::vector<int32_t>{4, 8})) << name;
    EXPECT_EQ(row_graphs(*strategy->traits().step, 1).most_rows, 8) << name;
  }
}

// What the start report says of them follows.
TEST(GraphSizes, DMaxAloneHasStepsWithMixturesOfTokens) {
  const DiffusionInfo info{.mask_token_id = 5, .block_size = 4, .sub_block_size = 4};
  using Mixtures = RowGraphs::Mixtures;
  for (const auto& [name, mixtures] :
       {std::pair("dmax", Mixtures::kSome), std::pair("multi_bd_edit", Mixtures::kNone)}) {
    const RowGraphs graphs = row_graphs(*make_strategy(name, {.model = info})->traits().step, 2);
    EXPECT_EQ(graphs.mixtures, mixtures) << name;
  }
}

TEST(GraphSizes, DiffusionGemmaHasCanvasesBehindCachedTextOfUpToAThousandRows) {
  DiffusionInfo info{.block_size = 256, .sub_block_size = 256, .attention = DiffusionInfo::Attention::kCanvas};
  const auto strategy = make_strategy("diffusion_gemma", {.model = info});
  EXPECT_FALSE(strategy->traits().step);
  EXPECT_FALSE(strategy->traits().canvas);
  const SegmentGraphs one = segment_graphs(*strategy->traits().segment, 1, 1000);
  EXPECT_EQ(one.requests, std::vector<int32_t>{1});
  EXPECT_EQ(one.keys.q_len, 256);
  EXPECT_EQ(one.keys.kind, KeySpan::Kind::kFull);
  EXPECT_EQ(one.keys.window_from, KeySpan::WindowFrom::kSegment);
  EXPECT_EQ(one.conditioning, 1000);
  EXPECT_EQ(segment_graphs(*strategy->traits().segment, 9, 1000).requests, (std::vector<int32_t>{1, 2, 4}));
}

TEST(GraphSizes, FullAttentionHasCanvasesAloneAndThePublishedLoopOfTimestepsDecidesAllOfThem) {
  DiffusionInfo info{.mask_token_id = 5, .block_size = 32, .attention = DiffusionInfo::Attention::kFull};
  for (const auto& [loop, at_most] : {std::pair(DiffusionInfo::Loop::kEven, AtMost::kThese),
                                      std::pair(DiffusionInfo::Loop::kTimesteps, AtMost::kAllRows)}) {
    info.loop = loop;
    const auto strategy = make_strategy("full_attention", {.model = info});
    EXPECT_FALSE(strategy->traits().step);
    EXPECT_EQ(canvas_graphs(*strategy->traits().canvas, {}, 2, 512).new_keys, DeviceMetadata::NewKeys::kAllStored);
    EXPECT_EQ(strategy->traits().canvas->samples, 32);
    EXPECT_EQ(strategy->traits().canvas->at_most, at_most);
  }
}

// What --require-graphs refuses at once.
TEST(GraphSizes, NamesTheStepsBehindPromptsThatHaveNoGraph) {
  const DiffusionInfo full{.mask_token_id = 5, .block_size = 32, .attention = DiffusionInfo::Attention::kFull};
  const auto without = [&](const char* name, const DiffusionInfo& info, int32_t requests, int32_t context) {
    const auto strategy = make_strategy(name, {.model = info});
    CudaGraphConfig graphs{.max_requests = requests, .decode_rows = CudaGraphConfig::DecodeRows::kNo};
    const auto shape = strategy->traits().step;
    if (shape) graphs.rows = row_graphs(*shape, requests);
    if (const auto canvas = strategy->traits().canvas) {
      graphs.canvases = canvas_graphs(*canvas, shape, requests, context);
    }
    if (const auto segment = strategy->traits().segment) graphs.segments = segment_graphs(*segment, requests, 1000);
    return steps_without(graphs, context, /*max_tokens=*/16384).value_or("all");
  };
  EXPECT_EQ(without("full_attention", full, 1, 1024), "all");
  EXPECT_EQ(without("full_attention", full, 1, 1025),
            "canvases of more than 1024 rows run without, and 1 requests of up to 1025 tokens may have 1025; try a "
            "smaller max_model_len");
  EXPECT_EQ(without("dual_cache", full, 2, 512), "all");
  EXPECT_NE(without("dual_cache", full, 3, 512), "all") << "canvases of several requests run together";

  DiffusionInfo causal{.mask_token_id = 5, .block_size = 32, .attention = DiffusionInfo::Attention::kBlockCausal};
  EXPECT_EQ(without("multi_bd", causal, 16, 4096), "all");
  EXPECT_EQ(without("multi_bd", causal, 17, 4096),
            "steps of more than 1024 rows run without, and 17 requests may have 1088; try fewer of them");
  causal.logits_of = DiffusionInfo::LogitsOf::kSame;
  EXPECT_EQ(without("dmax", causal, 1, 4096), "steps with mixtures of tokens run without");

  DiffusionInfo canvas{.block_size = 256, .sub_block_size = 256, .attention = DiffusionInfo::Attention::kCanvas};
  EXPECT_EQ(without("diffusion_gemma", canvas, 5, 4096),
            "more than 4 canvases of 256 rows at a time run without, and 5 requests may have one each; try fewer of "
            "them");
}

// A canvas is read as a whole and stored as text afterwards, in a step of its own.
TEST(GraphSizes, DiffusionGemmaHasAllStepsInGraphsOnlyWhereOneCanvasOfOneRequestIsAll) {
  DiffusionInfo canvas{.block_size = 256, .sub_block_size = 256, .attention = DiffusionInfo::Attention::kCanvas};
  const auto strategy = make_strategy("diffusion_gemma", {.model = canvas});
  const auto without = [&](int32_t requests, int32_t context) {
    CudaGraphConfig graphs{.max_requests = requests, .decode_rows = CudaGraphConfig::DecodeRows::kNo};
    graphs.segments = segment_graphs(*strategy->traits().segment, requests, 1000);
    return steps_without(graphs, context, /*max_tokens=*/16384).value_or("all");
  };
  EXPECT_EQ(without(1, 257), "all");
  EXPECT_EQ(without(1, 258), "the pass over a finished canvas, behind which the next one begins, runs without");
  EXPECT_EQ(without(4, 258), without(1, 258));
  EXPECT_EQ(without(2, 257), "first steps of canvases beside later ones run without");
}

TEST(GraphSizes, StepsAreNoLargerThanTheEngineMakesThem) {
  CudaGraphConfig graphs{.max_requests = 48, .decode_rows = CudaGraphConfig::DecodeRows::kNo};
  graphs.rows = {.sizes = {32, 64, 96}, .most_rows = 32};
  EXPECT_FALSE(steps_without(graphs, 4096, 96));
  EXPECT_TRUE(steps_without(graphs, 4096, 97));
  graphs.rows.sizes.clear();  // each of them was larger than a step
  EXPECT_TRUE(steps_without(graphs, 4096, 16));
  EXPECT_EQ(steps_without({.decode_rows = CudaGraphConfig::DecodeRows::kNo}, 4096, 16), std::string(kUnbounded));
  EXPECT_FALSE(steps_without({.max_requests = 500}, 4096, 4096)) << "decode rows";
}

}  // namespace
}  // namespace headrace
