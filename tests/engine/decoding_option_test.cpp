// Every strategy under every option: it is read, or refused in one sentence.
#include "headrace/decoding/decoding_option.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "headrace/engine/decoding_checks.h"
#include "headrace/engine/engine.h"
#include "support/refusal.h"
#include "toy_diffusion_model.h"

namespace headrace {
namespace {

using testing_support::ToyDiffusionModel;
using Strategies = std::set<std::string>;
using Schedule = DecodingParams::Schedule;

struct Asked {
  DecodingParams params;
  StrategyConfig config;
};

struct Case {
  DecodingOption option;
  Strategies readers;
  std::string sentence;  // behind the strategy's name, without the readers
  std::function<void(Asked&)> ask;
};

const Strategies kBlocks = {"multi_bd", "multi_bd_edit", "d2f", "dmax"};
const Strategies kCanvases = {"full_attention", "dual_cache"};
const Strategies kMasks = {"multi_bd", "multi_bd_edit", "d2f", "dmax", "full_attention", "dual_cache", "fast_dllm_v2"};

Strategies with(Strategies strategies, const Strategies& more) {
  strategies.insert(more.begin(), more.end());
  return strategies;
}

Strategies without(Strategies strategies, const std::string& one) {
  strategies.erase(one);
  return strategies;
}

const std::vector<Case> kCases = {
    {DecodingOption::kRule, kMasks, "rule is confidence, expected none",
     [](Asked& a) { a.params.rule = DecodingParams::Rule::kConfidence; }},
    {DecodingOption::kSchedule,
     {"multi_bd", "multi_bd_edit", "full_attention", "fast_dllm_v2", "diffusion_gemma"},
     "schedule is reference, expected threshold",
     [](Asked& a) { a.params.schedule = Schedule::kReference; }},
    {DecodingOption::kMaxPasses,
     {"multi_bd", "d2f"},
     "max_passes is 3, expected none",
     [](Asked& a) { a.params.max_passes = 3; }},
    {DecodingOption::kThreshold, with(kMasks, {"diffusion_gemma"}), "threshold is 0.5, expected none",
     [](Asked& a) { a.params.threshold = 0.5f; }},
    {DecodingOption::kAddBlock, kBlocks, "add_block is 0.2, expected 0.1", [](Asked& a) { a.params.add_block = 0.2f; }},
    {DecodingOption::kStability,
     {"multi_bd_edit", "dmax"},
     "stability is 0.5, expected 0",
     [](Asked& a) { a.params.stability = 0.5f; }},
    {DecodingOption::kSemiComplete,
     {"multi_bd", "d2f"},
     "semi_complete is 0.8, expected 0.9",
     [](Asked& a) { a.params.semi_complete = 0.8f; }},
    {DecodingOption::kEditThreshold,
     {"multi_bd_edit"},
     "edit_threshold is 0.5, expected none",
     [](Asked& a) { a.params.edit_threshold = 0.5f; }},
    {DecodingOption::kRemaskThreshold,
     {"multi_bd_edit"},
     "remask_threshold is 0.25, expected none",
     [](Asked& a) { a.params.remask_threshold = 0.25f; }},
    {DecodingOption::kMaxEdits,
     {"multi_bd_edit", "dmax"},
     "max_edits is 16, expected none",
     [](Asked& a) { a.params.max_edits = 16; }},
    {DecodingOption::kOrderTemperature, without(kMasks, "dmax"), "order_temperature is 2, expected 0",
     [](Asked& a) { a.params.order_temperature = 2; }},
    {DecodingOption::kMergeCandidates,
     {"dmax"},
     "merge_candidates is 2, expected 1",
     [](Asked& a) { a.params.merge_candidates = 2; }},
    {DecodingOption::kCopyPenalty,
     {"multi_bd_edit"},
     "copy_penalty is 1, expected 0",
     [](Asked& a) { a.params.copy_penalty = 1; }},
    {DecodingOption::kCfgScale,
     {"full_attention"},
     "cfg_scale is 1.5, expected 0",
     [](Asked& a) { a.params.cfg_scale = 1.5f; }},
    {DecodingOption::kBlockSize, with(kMasks, {"diffusion_gemma"}), "block_size is 8, expected none",
     [](Asked& a) { a.config.block_size = 8; }},
    {DecodingOption::kMaskTokenId, kMasks, "mask_token_id is 7, expected none",
     [](Asked& a) { a.config.mask_token_id = 7; }},
    {DecodingOption::kNumBlocks, kBlocks, "num_blocks is 2, expected 1", [](Asked& a) { a.config.num_blocks = 2; }},
    {DecodingOption::kBlockCache,
     {"fast_dllm_v2"},
     "block_cache is no, expected none",
     [](Asked& a) { a.config.block_cache = StrategyConfig::BlockCache::kNo; }},
    {DecodingOption::kBlockCache,
     {"fast_dllm_v2"},
     "block_cache is yes, expected none",
     [](Asked& a) { a.config.block_cache = StrategyConfig::BlockCache::kYes; }},
    {DecodingOption::kMerge,
     {"dmax"},
     "merge is iter_smooth_topk of weight 2, expected dmax_topk",
     [](Asked& a) {
       a.config.merge = {StrategyConfig::Merge::Mode::kSmooth, 2};
     }},
};

// A network of the kind that the strategy decodes.
class AnyModel final : public Model {
 public:
  explicit AnyModel(const std::string& strategy) : toy_({.block_size = 8}), info_(toy_.info()) {
    if (strategy == "fast_dllm_v2") info_.diffusion->logits_of = DiffusionInfo::LogitsOf::kBefore;
    if (kCanvases.contains(strategy)) info_.diffusion->attention = DiffusionInfo::Attention::kFull;
    if (kCanvases.contains(strategy)) info_.diffusion->guidance = DiffusionInfo::Guidance::kMaskedPrompt;
    if (strategy != "diffusion_gemma") return;
    info_.diffusion = DiffusionInfo{.block_size = 8, .attention = DiffusionInfo::Attention::kCanvas};
    info_.diffusion->canvas.noise_vocab = ToyDiffusionModel::kVocab;
  }
  DiffusionInfo& diffusion() { return *info_.diffusion; }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override { return toy_.forward(batch); }

 private:
  ToyDiffusionModel toy_;
  ModelInfo info_;
};

// What an engine says to it; empty where it takes it.
std::string refusal(const AnyModel& model, const std::string& strategy, const Asked& asked) {
  const auto refused = testing_support::refusal_of([&] {
    Engine engine(model, {.runner = {.num_pages = 16, .page_size = ToyDiffusionModel::kPageSize, .max_tokens = 128},
                          .max_context_len = 64,
                          .strategy = strategy,
                          .decoding = asked.config});
    engine.add({1, 2, 3}, {.max_tokens = 4, .decoding = asked.params});
  });
  EXPECT_EQ(refused.code.value_or(ErrorCode::kInvalidArgument), ErrorCode::kInvalidArgument);
  return refused.sentence;
}

TEST(DecodingOptions, B13_EachStrategyReadsAnOptionOrRefusesItInASentence) {
  for (const std::string_view name : strategy_names()) {
    const std::string strategy(name);
    EXPECT_EQ(refusal(AnyModel(strategy), strategy, {}), "");
    for (const Case& c : kCases) {
      SCOPED_TRACE(str(strategy, ", ", name_of(c.option)));
      Asked asked;
      c.ask(asked);
      const std::string got = refusal(AnyModel(strategy), strategy, asked);
      EXPECT_EQ(reads_option(strategy, c.option), c.readers.contains(strategy));
      if (c.readers.contains(strategy)) {
        EXPECT_EQ(got, "");
      } else {
        EXPECT_EQ(got,
                  str("strategy '", strategy, "': ", c.sentence, "; strategies that read it: ", readers_of(c.option)));
      }
    }
  }
}

TEST(DecodingOptions, StepsAreReadByPublishedLoopsThatCountThem) {
  const Strategies readers = {"multi_bd", "multi_bd_edit", "full_attention", "diffusion_gemma"};
  for (const std::string_view name : strategy_names()) {
    const std::string strategy(name);
    Asked asked;
    asked.params = {.schedule = Schedule::kReference, .steps = 2};
    const std::string got = refusal(AnyModel(strategy), strategy, asked);
    EXPECT_EQ(got.empty(), readers.contains(strategy)) << strategy << ": " << got;
    EXPECT_EQ(reads_option(strategy, DecodingOption::kSteps), readers.contains(strategy)) << strategy;
    if (strategy == "fast_dllm_v2") {
      EXPECT_EQ(got, str("strategy 'fast_dllm_v2': steps is 2, expected none; strategies that read it: ",
                         readers_of(DecodingOption::kSteps)));
    }
  }
}

TEST(DecodingOptions, AMaskTokenThatTheVocabularyLacksIsRefused) {
  const AnyModel model("multi_bd");
  const int32_t vocab = model.info().vocab_size;
  Asked negative, beyond, last;
  negative.config.mask_token_id = -5;
  beyond.config.mask_token_id = vocab;
  last.config.mask_token_id = vocab - 1;
  EXPECT_EQ(refusal(model, "multi_bd", negative), "strategy 'multi_bd': mask_token_id is -5, expected 0 or more");
  EXPECT_EQ(refusal(model, "multi_bd", beyond),
            str("strategy 'multi_bd': mask_token_id is ", vocab, ", expected 0 to ", vocab - 1));
  EXPECT_EQ(refusal(model, "multi_bd", last), "");
}

TEST(DecodingOptions, AStrategyRefusesAModelWithoutAMaskByItsOwnName) {
  for (const std::string& strategy : kMasks) {
    EXPECT_EQ(testing_support::refusal_of([&] { make_strategy(strategy, {}); }).sentence,
              str("strategy '", strategy, "': the model names no mask token; is it a diffusion model?"));
    StrategyConfig canvas;  // it is one
    canvas.model = AnyModel("diffusion_gemma").info().diffusion;
    EXPECT_EQ(testing_support::refusal_of([&] { make_strategy(strategy, canvas); }).sentence,
              str("strategy '", strategy, "': the model starts from noise and has no mask token"));
  }
}

// One pass over a block of 65536 tokens in a context of 4096 took a minute, and its text was empty.
TEST(DecodingOptions, ABlockThatTheContextDoesNotHoldIsRefused) {
  for (const std::string& strategy : kMasks) {  // a canvas has one size
    Asked asked;
    asked.config.block_size = 64;
    EXPECT_EQ(refusal(AnyModel(strategy), strategy, asked), "") << strategy;
    asked.config.block_size = 65;
    EXPECT_EQ(refusal(AnyModel(strategy), strategy, asked),
              str("strategy '", strategy, "': block_size is 65, expected at most 64, what the context holds"));
  }
}

// `--strategy full_attention` on SDAR and `autoregressive` on LLaDA wrote a text that neither was trained for.
TEST(DecodingOptions, AStrategyDecodesModelsOfItsAttentionAndRefusesOthersInASentence) {
  using Attention = DiffusionInfo::Attention;
  const Strategies blocks = {"autoregressive", "multi_bd", "multi_bd_edit", "d2f", "dmax"},
                   full = {"full_attention", "dual_cache", "d2f"};
  DiffusionInfo info{.mask_token_id = 95, .block_size = 8, .sub_block_size = 8};
  const auto refusal = [&info](std::string_view strategy) {
    return testing_support::refusal_of([&] { make_strategy(strategy, {.model = info}); });
  };
  for (const std::string_view name : strategy_names()) {
    info.attention = Attention::kBlockCausal;
    EXPECT_EQ(refusal(name).sentence.empty(), blocks.contains(std::string(name))) << name;
    info.attention = Attention::kFull;
    EXPECT_EQ(refusal(name).sentence.empty(), full.contains(std::string(name))) << name;
    info.attention = Attention::kCanvas;
    EXPECT_EQ(refusal(name).sentence.empty(), name == "diffusion_gemma") << name;
  }
  EXPECT_EQ(refusal("multi_bd").sentence,
            "strategy 'multi_bd': the model is trained on canvases, which it does not decode; strategies that do: "
            "diffusion_gemma");
  info.attention = Attention::kBlockCausal;
  EXPECT_EQ(
      refusal("full_attention").sentence,
      "strategy 'full_attention': the model is trained on causal blocks, which it does not decode; strategies that "
      "do: autoregressive, multi_bd, multi_bd_edit, d2f, dmax");
  info.attention = Attention::kFull;
  EXPECT_EQ(
      refusal("autoregressive").sentence,
      "strategy 'autoregressive': the model is trained on full attention, which it does not decode; strategies that "
      "do: full_attention, dual_cache, d2f");
  EXPECT_EQ(refusal("autoregressive").code, ErrorCode::kInvalidArgument);
}

// The list of those that decode it left out what else they ask of a model: `fast_dllm_v2` for SDAR, `dmax` for
// Fast-dLLM v2, and each of them refused it then.
TEST(DecodingOptions, AStrategyThatIsRecommendedTakesTheModel) {
  using Attention = DiffusionInfo::Attention;
  using LogitsOf = DiffusionInfo::LogitsOf;
  int recommendations = 0;
  for (const Attention attention : {Attention::kBlockCausal, Attention::kFull, Attention::kCanvas}) {
    for (const LogitsOf logits : {LogitsOf::kSame, LogitsOf::kBefore}) {
      for (const int32_t sub_block : {4, 8}) {
        DiffusionInfo info{.block_size = 8, .sub_block_size = sub_block, .attention = attention, .logits_of = logits};
        if (attention != Attention::kCanvas) info.mask_token_id = 95;
        std::string taken;
        std::vector<std::string> sentences;
        for (const std::string_view name : strategy_names()) {
          const std::string sentence =
              testing_support::refusal_of([&] { make_strategy(name, {.model = info}); }).sentence;
          if (sentence.empty()) taken += (taken.empty() ? "" : ", ") + std::string(name);
          sentences.push_back(sentence);
        }
        for (const std::string& sentence : sentences) {
          const std::string_view key = "strategies that do: ";
          const size_t at = sentence.find(key);
          if (at == sentence.npos) continue;
          EXPECT_EQ(sentence.substr(at + key.size()), taken) << sentence;
          ++recommendations;
        }
      }
    }
  }
  EXPECT_GT(recommendations, 20);
}

TEST(DecodingOptions, AModelWhosePublishedLoopHasNoGuidanceRefusesIt) {
  AnyModel dream("full_attention");
  dream.diffusion().guidance = DiffusionInfo::Guidance::kNone;
  Asked asked;
  EXPECT_EQ(refusal(dream, "full_attention", asked), "");
  asked.params.cfg_scale = 1.5f;
  EXPECT_EQ(refusal(dream, "full_attention", asked),
            "cfg_scale is 1.5, expected 0 with this model, whose published loop has no guidance");
}

// The canvas of 3 + 4 tokens fits a step of 13 rows; twice it does not.
TEST(DecodingOptions, AGuidedRequestWhoseTwoTextsFitNoStepIsRefused) {
  const AnyModel model("full_attention");
  const auto refused = [&model](float cfg_scale, int64_t rows) {
    return testing_support::refusal_of([&] {
             Engine engine(model,
                           {.runner = {.num_pages = 16, .page_size = ToyDiffusionModel::kPageSize, .max_tokens = rows},
                            .max_context_len = 64,
                            .strategy = "full_attention"});
             engine.add({1, 2, 3}, {.max_tokens = 4, .decoding = {.cfg_scale = cfg_scale}});
           })
        .sentence;
  };
  EXPECT_EQ(refused(0, 13), "");
  EXPECT_EQ(refused(1.5f, 14), "");
  EXPECT_EQ(refused(1.5f, 13),
            "request 1: a step of strategy 'full_attention' has up to 14 rows, the engine runs at most 13");
}

TEST(DecodingOptions, AGuidedRequestIsRefusedWhereGraphsAreRequired) {
  using Graphs = RunnerConfig::Graphs;
  const auto refused = [](float cfg_scale, Graphs graphs) {
    return testing_support::refusal_of([&] { check_graphs({.decoding = {.cfg_scale = cfg_scale}}, graphs); });
  };
  EXPECT_EQ(refused(0, Graphs::kRequired).sentence, "");
  EXPECT_EQ(refused(1.5f, Graphs::kPreferred).sentence, "");
  EXPECT_EQ(refused(1.5f, Graphs::kRequired).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(refused(1.5f, Graphs::kRequired).sentence,
            "graphs of all steps behind prompts are required, but those of a guided request run without: cfg_scale is "
            "1.5");
}

TEST(DecodingOptions, EveryOptionIsInTheTables) {
  std::set<DecodingOption> known = {DecodingOption::kSteps};
  for (const Case& c : kCases) known.insert(c.option);
  for (size_t i = 0; i < 20; ++i) EXPECT_TRUE(known.contains(static_cast<DecodingOption>(i))) << i;
  EXPECT_EQ(name_of(static_cast<DecodingOption>(20)), "unknown") << "an option that no table here has";
}

TEST(DecodingOptions, APublishedLoopWithoutAThresholdRefusesOneAndOneWithBothTakesEither) {
  AnyModel dream("full_attention"), llada("full_attention");
  dream.diffusion().loop = DiffusionInfo::Loop::kTimesteps;
  llada.diffusion().loop = DiffusionInfo::Loop::kEven;
  Asked threshold, both;
  threshold.params = {.schedule = Schedule::kReference, .threshold = 0.5f};
  both.params = {.schedule = Schedule::kReference, .steps = 2, .threshold = 0.5f};
  EXPECT_EQ(refusal(dream, "full_attention", threshold),
            "threshold is 0.5, expected none with the schedule 'reference' of this model, which keeps a share of the "
            "masks in each step");
  EXPECT_EQ(refusal(llada, "full_attention", threshold), "");
  EXPECT_EQ(refusal(llada, "full_attention", both),
            "steps is 2, expected none beside a threshold with the schedule 'reference' of this model");
  EXPECT_EQ(refusal(AnyModel("multi_bd"), "multi_bd", both), "");
}

TEST(DecodingOptions, APublishedLoopWhoseRuleIsRandomRefusesAnOrderTemperatureUntilAnotherIsGiven) {
  AnyModel dream("full_attention");
  dream.diffusion().loop = DiffusionInfo::Loop::kTimesteps;
  dream.diffusion().reference.rule = DecodingParams::Rule::kRandom;
  Asked asked;
  asked.params = {.schedule = Schedule::kReference, .order_temperature = 0.5f};
  EXPECT_EQ(refusal(dream, "full_attention", asked),
            "order_temperature is 0.5, expected 0 with the schedule 'reference' of this model, whose rule is 'random'");
  asked.params.rule = DecodingParams::Rule::kEntropy;
  EXPECT_EQ(refusal(dream, "full_attention", asked), "");
  asked.params = {.order_temperature = 0.5f};
  EXPECT_EQ(refusal(dream, "full_attention", asked), "") << "which keeps what passes";
}

// It was read by no block of Stable-DiffCoder's.
TEST(DecodingOptions, ABlockThatIsAlwaysSureOfProgressRefusesAShareOfTheOneBefore) {
  AnyModel model("multi_bd");
  Asked asked;
  asked.params.semi_complete = 0.5f;
  EXPECT_EQ(refusal(model, "multi_bd", asked), "");
  model.diffusion().progress = DiffusionInfo::Progress::kAlways;
  EXPECT_EQ(refusal(model, "multi_bd", asked),
            "semi_complete is 0.5, expected 0.9 with this model, each of whose blocks decides a token in every pass");
  EXPECT_EQ(refusal(model, "multi_bd", {}), "");
}

// `--threshold 90` kept one token per pass and did not say why; `--threshold -1` was told that 0 to inf is expected.
TEST(DecodingOptions, AThresholdForProbabilitiesIsAtMostOne) {
  using Rule = DecodingParams::Rule;
  for (const std::string& strategy : kMasks) {
    Asked asked;
    for (const auto rule : {std::optional<Rule>(), std::optional(Rule::kConfidence), std::optional(Rule::kMargin)}) {
      for (const auto& [threshold, text] : {std::pair(90.0f, "90"), {-0.5f, "-0.5"}, {std::nanf(""), "nan"}}) {
        asked.params = {.rule = rule, .threshold = threshold};
        EXPECT_EQ(refusal(AnyModel(strategy), strategy, asked),
                  str("threshold is ", text, ", expected 0 to 1, or inf for a probability that no token passes"))
            << strategy;
      }
      if (strategy == "dmax" && rule == Rule::kMargin) continue;  // which is refused
      for (const float threshold : {1.0f, std::numeric_limits<float>::infinity()}) {
        asked.params.threshold = threshold;
        EXPECT_EQ(refusal(AnyModel(strategy), strategy, asked), "") << strategy;
      }
    }
  }
  Asked nats;
  nats.params = {.rule = Rule::kEntropy, .threshold = 2.5f};
  EXPECT_EQ(refusal(AnyModel("multi_bd"), "multi_bd", nats), "");
  nats.params = {.threshold = 2.5f};
  EXPECT_EQ(refusal(AnyModel("diffusion_gemma"), "diffusion_gemma", nats), "") << "a bound on entropies";
  nats.params.threshold = -1.0f;
  EXPECT_EQ(refusal(AnyModel("diffusion_gemma"), "diffusion_gemma", nats), "threshold is -1, expected 0 or more nats");
  nats.params = {.rule = Rule::kEntropyBound, .threshold = std::nanf("")};
  EXPECT_EQ(refusal(AnyModel("multi_bd"), "multi_bd", nats), "threshold is nan, expected 0 or more nats");
}

// `--accept entropy` took the model's probability for nats.
TEST(DecodingOptions, ARuleInNatsNeedsAThresholdOfItsOwnWhereOneIsRead) {
  using Loop = DiffusionInfo::Loop;
  AnyModel blocks("multi_bd"), canvas("full_attention");
  Asked asked;
  asked.params.rule = DecodingParams::Rule::kEntropy;
  const std::string sentence =
      "threshold is absent, expected one in nats with the rule 'entropy': the model's own is a probability";
  EXPECT_EQ(refusal(blocks, "multi_bd", asked), sentence);
  EXPECT_EQ(refusal(canvas, "full_attention", asked), sentence);
  asked.params.schedule = Schedule::kReference;
  EXPECT_EQ(refusal(blocks, "multi_bd", asked), sentence) << "a loop that keeps what passes";
  for (const Loop loop : {Loop::kEven, Loop::kTimesteps}) {
    canvas.diffusion().loop = loop;
    EXPECT_EQ(refusal(canvas, "full_attention", asked), "") << "which keeps the surest of a share";
  }
  asked.params = {.rule = DecodingParams::Rule::kEntropyBound};
  EXPECT_EQ(
      refusal(blocks, "multi_bd", asked),
      "threshold is absent, expected one in nats with the rule 'entropy_bound': the model's own is a probability");
  asked.params.threshold = 0.1f;
  EXPECT_EQ(refusal(blocks, "multi_bd", asked), "");
}

}  // namespace
}  // namespace headrace
