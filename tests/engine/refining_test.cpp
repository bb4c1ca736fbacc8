// Strategies that look at decided tokens again, and D2F, over a toy model: what must not happen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>

#include "headrace/decoding/decoding_option.h"
#include "headrace/engine/engine.h"
#include "toy_diffusion_model.h"

namespace headrace {
namespace {

using testing_support::prompt_of;
using testing_support::ToyDiffusionModel;
using testing_support::ToyScript;

constexpr const char* kRefining[] = {"multi_bd_edit", "dmax"};

EngineConfig refining_config_of(const std::string& strategy, int32_t num_blocks = 1, int64_t rows_per_step = 128) {
  return {.runner = {.num_pages = 64, .page_size = ToyDiffusionModel::kPageSize, .max_tokens = rows_per_step},
          .max_requests = 2,
          .max_context_len = 128,
          .strategy = strategy,
          .decoding = {.num_blocks = num_blocks}};
}

using OnPlan = std::function<void(const Sequence&, const StepPlan&)>;

std::vector<int32_t> decode_refined(const ToyScript& script, const EngineConfig& config,
                                    const std::vector<int32_t>& prompt, const SamplingParams& params,
                                    const OnPlan& on_plan = {}) {
  const ToyDiffusionModel model(script);
  Engine engine(model, config);
  engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kPlanned && on_plan) on_plan(s, plan);
  });
  engine.add(prompt, params);
  std::vector<int32_t> ids;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) ids.push_back(out.token.id);
  }
  return ids;
}

TEST(Refining, B01_MaxTokensCountsFinalTokensWhateverTheBlocks) {
  for (const char* strategy : kRefining) {
    for (const int32_t num_blocks : {1, 3}) {
      for (const int32_t prompt_len : {5, 8}) {
        for (const int32_t max_tokens : {1, 7, 16}) {
          const auto ids = decode_refined({}, refining_config_of(strategy, num_blocks), prompt_of(prompt_len),
                                          {.max_tokens = max_tokens, .temperature = 0});
          EXPECT_EQ(ids, ToyDiffusionModel::tokens(prompt_len, max_tokens))
              << strategy << ", " << num_blocks << " blocks";
        }
      }
    }
  }
}

TEST(Refining, B31_TheMaskIsNeverChosenNorEditedIn) {  // the toy model wants it above everything else
  for (const char* strategy : kRefining) {
    for (const float temperature : {0.0f, 1.5f}) {
      SamplingParams params{.max_tokens = 40, .temperature = temperature, .seed = 4};
      if (reads_option(strategy, DecodingOption::kEditThreshold)) params.decoding.edit_threshold = 0;
      const auto ids = decode_refined({}, refining_config_of(strategy, 2), prompt_of(5), params);
      EXPECT_EQ(ids.size(), 40u);
      EXPECT_EQ(std::ranges::count(ids, ToyDiffusionModel::kMask), 0) << strategy;
    }
  }
}

TEST(Refining, B33_MaskIdsOfThePromptAreNeitherMasksNorEdited) {
  std::vector<int32_t> prompt = prompt_of(10);
  prompt[3] = prompt[9] = ToyDiffusionModel::kMask;
  for (const char* strategy : kRefining) {
    decode_refined({}, refining_config_of(strategy), prompt, {.max_tokens = 6, .temperature = 0},
                   [](const Sequence& s, const StepPlan& plan) {
                     EXPECT_EQ(s.tokens[3], ToyDiffusionModel::kMask);
                     EXPECT_EQ(s.tokens[9], ToyDiffusionModel::kMask);
                     for (const SampleRow& row : plan.sample) EXPECT_GE(row.position, 10);
                   });
  }
}

TEST(Refining, B13_TheEditThresholdDecidesWhatIsReplaced) {
  const ToyScript script{.fickle = true};  // wants another token in each pass, with probability 0.7 or so
  for (const float edit_threshold : {0.5f, 0.9f}) {
    SamplingParams params{.max_tokens = 4, .temperature = 0};
    params.decoding = {.threshold = 0.5f, .edit_threshold = edit_threshold, .max_edits = 3};
    int32_t passes = 0;
    decode_refined(script, refining_config_of("multi_bd_edit"), prompt_of(8), params,
                   [&passes](const Sequence&, const StepPlan&) { ++passes; });
    // All masks at once, then a pass that edits nothing; or three that do, and one that finds its time over.
    EXPECT_EQ(passes, edit_threshold == 0.5f ? 5 : 2);
  }
}

TEST(MultiBDEdit, ABlockHasAsManyPassesAsTokensAndThenThoseForEdits) {
  const ToyScript fickle{.fickle = true};
  SamplingParams params{.max_tokens = 4, .temperature = 0};
  params.decoding = {.threshold = 0.99f, .edit_threshold = 0.9f};  // a mask in each pass, and no edits
  for (const int32_t max_edits : {0, 1, 3}) {
    params.decoding.max_edits = max_edits;
    int32_t passes = 0;
    const auto ids = decode_refined(fickle, refining_config_of("multi_bd_edit"), prompt_of(8), params,
                                    [&passes](const Sequence&, const StepPlan&) { ++passes; });
    EXPECT_EQ(ids, ToyDiffusionModel::tokens(8, 4));
    EXPECT_EQ(passes, max_edits == 0 ? 4 : 5);  // a pass that changes nothing settles it, if there is time for one
  }
  params.decoding.edit_threshold = 0.5f;  // every pass edits all that it finds
  for (const int32_t max_edits : {0, 1, 3}) {
    params.decoding.max_edits = max_edits;
    int32_t passes = 0;
    decode_refined(fickle, refining_config_of("multi_bd_edit"), prompt_of(8), params,
                   [&passes](const Sequence&, const StepPlan&) { ++passes; });
    EXPECT_EQ(passes, 4 + max_edits);
  }
}

TEST(MultiBDEdit, ItsThresholdsAreThoseOfTheQualityMode) {
  const auto passes = [](double logit, std::optional<float> threshold, std::optional<float> edit_threshold) {
    SamplingParams params{.max_tokens = 4, .temperature = 0};
    params.decoding = {.threshold = threshold, .edit_threshold = edit_threshold, .max_edits = 3};
    int32_t count = 0;
    decode_refined({.fickle = true, .fickle_logit = logit}, refining_config_of("multi_bd_edit"), prompt_of(8), params,
                   [&count](const Sequence&, const StepPlan&) { ++count; });
    return count;
  };
  const auto probability = [](double logit) {  // of 96 ids, as the sampler has it
    return static_cast<float>(std::exp(logit) / (std::exp(logit) + 95));
  };
  EXPECT_EQ(passes(5.42, {}, 0.9f), 2);  // 0.7036 fills all masks at once, and a pass confirms them
  EXPECT_EQ(passes(5.39, {}, 0.9f), 5);  // 0.6974 fills them one by one
  EXPECT_EQ(passes(4.60, 0.1f, {}), 5);  // 0.5115 edits in each pass
  EXPECT_EQ(passes(4.50, 0.1f, {}), 2);  // 0.4865 edits nothing
  EXPECT_EQ(passes(4.60, 0.1f, probability(4.60) + 1e-5f), 2);
  EXPECT_EQ(passes(4.60, 0.1f, probability(4.60) - 1e-5f), 5);
}

TEST(MultiBDEdit, AnEditMustExceedItsThreshold) {
  std::set<float> confidences;  // they differ in their last bit, as sums do by where the largest number is
  const auto passes = [&confidences](float edit_threshold) {
    SamplingParams params{.max_tokens = 4, .temperature = 0};
    params.decoding = {.threshold = 0.5f, .edit_threshold = edit_threshold, .max_edits = 3};
    int32_t count = 0;
    confidences.clear();
    decode_refined({.fickle = true}, refining_config_of("multi_bd_edit"), prompt_of(8), params,
                   [&](const Sequence& s, const StepPlan&) {
                     if (++count > 1) {
                       for (const SampledToken& token : s.chosen) confidences.insert(token.confidence);
                     }
                   });
    return count;
  };
  EXPECT_EQ(passes(0.5f), 5);
  const float least = *confidences.begin(), largest = *confidences.rbegin();
  EXPECT_LT(largest - least, 1e-6f);
  EXPECT_EQ(passes(largest), 2);
  EXPECT_EQ(passes(std::nextafter(least, 0.0f)), 5);
}

TEST(MultiBDEdit, TheTokenOnTheLeftIsDiscouragedWithinABlockAlone) {
  SamplingParams params{.max_tokens = 9, .temperature = 0};
  params.decoding.copy_penalty = 2;
  int32_t firsts = 0, others = 0;
  decode_refined({}, refining_config_of("multi_bd_edit", 2), prompt_of(6), params,
                 [&](const Sequence& s, const StepPlan& plan) {
                   for (const SampleRow& row : plan.sample) {
                     if (row.position % 4 == 0) {
                       EXPECT_FALSE(row.discouraged_id) << row.position;
                       ++firsts;
                     } else {  // the prompt's last token too
                       EXPECT_EQ(row.discouraged_id, s.tokens[static_cast<size_t>(row.position) - 1]) << row.position;
                       ++others;
                     }
                   }
                 });
  EXPECT_GT(firsts, 0);
  EXPECT_GT(others, 0);
}

TEST(Refining, NoTextChangesForEver) {
  for (const char* strategy : kRefining) {
    SamplingParams params{.max_tokens = 12, .temperature = 0};
    params.decoding = {.threshold = 0.99f, .max_edits = 3};
    if (reads_option(strategy, DecodingOption::kEditThreshold)) params.decoding.edit_threshold = 0;
    EXPECT_EQ(decode_refined({.fickle = true}, refining_config_of(strategy, 2), prompt_of(6), params).size(), 12u)
        << strategy;
  }
}

TEST(Refining, AnEndTokenEndsTheTextWhenItsBlockIsFinal) {
  for (const char* strategy : kRefining) {
    const auto ids = decode_refined({.eos_at = 13}, refining_config_of(strategy, 2), prompt_of(6), {.temperature = 0});
    std::vector<int32_t> want = ToyDiffusionModel::tokens(6, 7);
    want.push_back(ToyDiffusionModel::kEos);
    EXPECT_EQ(ids, want) << strategy;
  }
}

// Never quite sure of anything: before the second block of the output it wants another token in each pass, and in that
// block the end token at first.
class ChangesItsMind final : public Model {
 public:
  const ModelInfo& info() const override { return toy_.info(); }
  Tensor forward(const ForwardBatch& batch) const override {
    Tensor logits = toy_.forward(batch);
    const auto pass = static_cast<int32_t>(toy_.rows.size());
    for (int64_t at = 0; at < logits.dim(0); ++at) {
      const int64_t row = batch.logits_rows[static_cast<size_t>(at)];
      const int32_t p = batch.positions.as<const int32_t, 1>("positions")(row);
      int32_t token = p < 12 ? pass % 2 : ToyDiffusionModel::token_at(p);
      if (p == 13 && pass <= 3) token = ToyDiffusionModel::kEos;
      for (int32_t id = 0; id < ToyDiffusionModel::kVocab; ++id) {
        set_element(logits, at * ToyDiffusionModel::kVocab + id, id == token ? 5.5 : 0);
      }
    }
    return logits;
  }

 private:
  ToyDiffusionModel toy_{{}};
};

TEST(Refining, AnEndTokenThatWaitsForTheBlockBeforeMayStillBeReplaced) {
  for (const char* strategy : kRefining) {
    const ChangesItsMind model;
    Engine engine(model, refining_config_of(strategy, 2));
    SamplingParams params{.max_tokens = 12, .temperature = 0};
    params.decoding.max_edits = 5;
    engine.add(prompt_of(8), params);  // the third pass leaves block 12..15 as it is, and changes block 8..11
    std::vector<int32_t> ids;
    for (int steps = 0; !engine.idle() && steps < 100; ++steps) {
      for (const StepOutput& out : engine.step()) ids.push_back(out.token.id);
    }
    EXPECT_TRUE(engine.idle()) << strategy;
    ASSERT_EQ(ids.size(), 12u) << strategy;
    EXPECT_EQ(std::vector(ids.begin() + 5, ids.end()), ToyDiffusionModel::tokens(13, 7)) << strategy;
  }
}

TEST(Refining, WhatIsHandedOutNeverChanges) {
  for (const char* strategy : kRefining) {
    const ToyDiffusionModel model({.fickle = true, .fickle_logit = 7.5});  // a probability of 0.95
    Engine engine(model, refining_config_of(strategy));
    SamplingParams params{.max_tokens = 8, .temperature = 0};
    params.decoding.threshold = 0.99f;  // one mask in each pass, though all candidates are nearly certain
    engine.add(prompt_of(8), params);
    std::vector<int32_t> ids, text;
    engine.observe([&text](StepMoment, const Sequence& s, const StepPlan&) {
      text.assign(s.tokens.begin() + s.prompt_len, s.tokens.end());
    });
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) ids.push_back(out.token.id);
    }
    EXPECT_EQ(ids, text) << strategy;
  }
}

TEST(DMax, B15_TokensAreMixedByTheirOwnProbabilityAndStoredAsTheyAre) {
  int32_t soft_rows = 0, stored_blocks = 0;
  SamplingParams params{.max_tokens = 12, .temperature = 0};
  params.decoding.threshold = 0.5f;
  decode_refined(
      {.fickle = true}, refining_config_of("dmax"), prompt_of(8), params, [&](const Sequence& s, const StepPlan& plan) {
        const PlannedSpan& span = plan.spans.front();
        stored_blocks += span.store.size() > 0 ? 1 : 0;
        for (const SoftRow& soft : plan.soft) {
          const int32_t position = span.keys.phys0 + soft.row;
          EXPECT_FALSE(span.store.contains(position));
          ASSERT_EQ(soft.parts.size(), 1u);
          EXPECT_EQ(soft.parts[0].id, s.tokens[static_cast<size_t>(position)]);
          EXPECT_EQ(soft.parts[0].probability, s.chosen[static_cast<size_t>(position - s.prompt_len)].confidence);
          EXPECT_LT(soft.parts[0].probability, 0.9f);
          ++soft_rows;
        }
      });
  EXPECT_GT(soft_rows, 0);
  EXPECT_EQ(stored_blocks, 3);  // the prompt, and two of three blocks
}

TEST(DMax, CandidatesThatAreAllNearlyCertainSettleABlock) {
  int32_t passes = 0;
  decode_refined({.sure_masks = 4}, refining_config_of("dmax"), prompt_of(8), {.max_tokens = 8, .temperature = 0},
                 [&passes](const Sequence&, const StepPlan&) { ++passes; });
  EXPECT_EQ(passes, 2);  // one for each block
}

TEST(DMax, MasksAreFilledWhileTheyReachTheThresholdAndNineTenthsAreNearlyCertain) {
  float confidence = 0;
  const auto passes = [&confidence](double logit, std::optional<float> threshold) {
    SamplingParams params{.max_tokens = 4, .temperature = 0};
    params.decoding.threshold = threshold;
    params.decoding.max_edits = 2;
    int32_t count = 0;
    decode_refined({.fickle = true, .fickle_logit = logit}, refining_config_of("dmax"), prompt_of(8), params,
                   [&](const Sequence& s, const StepPlan&) { confidence = ++count > 1 ? s.chosen[0].confidence : 0; });
    return count;
  };
  EXPECT_EQ(passes(7.0, {}), 1);  // 0.9203: filled and settled
  EXPECT_EQ(passes(6.7, {}), 4);  // 0.8953: filled; two passes that change all of it, and one that finds its time over
  EXPECT_EQ(passes(4.6, {}), 4);  // 0.5115
  const float exact = confidence;
  EXPECT_EQ(passes(4.6, exact), 4);
  EXPECT_EQ(passes(4.6, std::nextafter(exact, 1.0f)), 7);  // one mask in each pass
  EXPECT_EQ(passes(4.5, {}), 7);                           // 0.4866
}

TEST(D2F, B11_ThePromptSeesItselfInOnePassAndNothingBehindIt) {
  int32_t pass = 0;
  const auto ids = decode_refined({}, refining_config_of("d2f", 2), prompt_of(6), {.max_tokens = 6, .temperature = 0},
                                  [&pass](const Sequence&, const StepPlan& plan) {
                                    const KeySpan& keys = plan.spans.front().keys;
                                    if (pass++ > 0) {
                                      EXPECT_EQ(keys.kind, KeySpan::Kind::kBlock);
                                      return;
                                    }
                                    EXPECT_EQ(keys.kind, KeySpan::Kind::kPrefixFull);  // example 2 of the specification
                                    EXPECT_EQ(keys.ctx_len, 0);
                                    for (int32_t i = 0; i < 6; ++i) EXPECT_EQ(keys.new_keys(i), 6);
                                    EXPECT_EQ(keys.new_keys(6), 8);
                                    EXPECT_EQ(keys.new_keys(8), 12);
                                  });
  EXPECT_EQ(ids, ToyDiffusionModel::tokens(6, 6));
}

TEST(D2F, APromptThatDoesNotFitOnePassIsRefusedAndOneThatFitsWaitsForRoom) {
  const ToyDiffusionModel model({});
  Engine engine(model, refining_config_of("d2f", 1, 48));
  EXPECT_THROW(engine.add(prompt_of(50), {.max_tokens = 4}), Error);
  for (int i = 0; i < 2; ++i) engine.add(prompt_of(30), {.max_tokens = 8, .temperature = 0});
  size_t count = 0;
  while (!engine.idle()) count += engine.step().size();
  EXPECT_EQ(count, 16u);
}

TEST(Refining, ALoopThatIsNotBuiltIsRefused) {
  const ToyDiffusionModel model({});
  for (const char* strategy : {"dmax", "d2f"}) {
    Engine engine(model, refining_config_of(strategy));
    SamplingParams params;
    params.decoding.schedule = DecodingParams::Schedule::kReference;
    EXPECT_THROW(engine.add(prompt_of(4), params), Error);
    EXPECT_TRUE(engine.idle());
  }
}

TEST(Refining, AModelWhoseLogitsDecideTheNextPositionIsRefused) {
  const ToyDiffusionModel model({.logits_of = DiffusionInfo::LogitsOf::kBefore});
  EXPECT_THROW(Engine(model, refining_config_of("dmax")), Error);
}

}  // namespace
}  // namespace headrace
