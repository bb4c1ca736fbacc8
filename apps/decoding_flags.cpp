#include "decoding_flags.h"

#include <map>

#include "headrace/base/error.h"
#include "headrace/strategy/decoding_option.h"

namespace headrace::app {
namespace {

// An option that takes one of some names.
template <class Target, class Choice>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Target& target, const std::string& description,
                        const std::map<std::string, Choice>& choices) {
  return app
      .add_option_function<std::string>(
          name, [&target, &choices](const std::string& text) { target = choices.at(text); }, description)
      ->check(CLI::IsMember(choices));
}

}  // namespace

void add_decoding_flags(CLI::App& app, DecodingFlags& f, SamplingParams& s) {
  using Rule = DecodingParams::Rule;
  static const std::map<std::string, Rule> kRules = {
      {"confidence", Rule::kConfidence},      {"margin", Rule::kMargin},     {"entropy", Rule::kEntropy},
      {"entropy_bound", Rule::kEntropyBound}, {"leftmost", Rule::kLeftmost}, {"random", Rule::kRandom}};
  using Schedule = DecodingParams::Schedule;
  static const std::map<std::string, Schedule> kSchedules = {{"threshold", Schedule::kThreshold},
                                                             {"reference", Schedule::kReference}};
  std::string names = "auto";
  for (const std::string_view name : strategy_names()) names += ", " + std::string(name);
  app.option_defaults()->group("Block diffusion");
  app.add_option("--strategy", f.strategy, "how tokens are decided: " + names)->capture_default_str();
  const auto of = [](DecodingOption option, const char* what) { return str(what, " (", readers_of(option), ")"); };
  app.add_option(
      "--threshold", s.decoding.threshold,
      of(DecodingOption::kThreshold, "what a token must pass to be kept; default: the model's, for probabilities"));
  app.add_option("--edit-threshold", s.decoding.edit_threshold,
                 of(DecodingOption::kEditThreshold, "what another token must pass to replace a kept one"));
  app.add_option("--remask-threshold", s.decoding.remask_threshold,
                 of(DecodingOption::kRemaskThreshold,
                    "decided tokens become masks again where no token is as likely; default: never"));
  app.add_option("--add-block", s.decoding.add_block,
                 of(DecodingOption::kAddBlock, "share of a block that is decided before the next one is opened"))
      ->capture_default_str();
  app.add_option("--semi-complete", s.decoding.semi_complete,
                 of(DecodingOption::kSemiComplete,
                    "share of a block that is decided before the next one decides a token in every pass"))
      ->capture_default_str();
  app.add_option("--copy-penalty", s.decoding.copy_penalty,
                 of(DecodingOption::kCopyPenalty, "off the logit of the token on the left"))
      ->capture_default_str();
  app.add_option("--max-edits", s.decoding.max_edits,
                 of(DecodingOption::kMaxEdits, "passes that may change a block without masks; default: 16"))
      ->check(CLI::Range(0, 1 << 20));
  add_choice(
      app, "--accept", s.decoding.rule,
      of(DecodingOption::kRule,
         "by what a token passes the threshold; confidence: its probability, the default, but with --schedule "
         "reference of Dream random; margin: its lead over "
         "the second; entropy: nats, at most; entropy_bound: nats of the surer ones together, at most; leftmost, "
         "random: none passes, and one is kept"),
      kRules);
  app.add_option("--order-temperature", s.decoding.order_temperature,
                 of(DecodingOption::kOrderTemperature,
                    "above 0: tokens are drawn by exp(score / it) where the best would be kept, as Dream's alg_temp"))
      ->capture_default_str();
  app.add_option("--merge-candidates", s.decoding.merge_candidates,
                 of(DecodingOption::kMergeCandidates, "tokens whose blend a place that is not final goes in as"))
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  using Merge = StrategyConfig::Merge;
  static const std::map<std::string, Merge::Mode> kMerges = {{"dmax_topk", Merge::Mode::kTopK},
                                                             {"iter_smooth_topk", Merge::Mode::kSmooth}};
  add_choice(app, "--merge", f.merge.mode,
             of(DecodingOption::kMerge,
                "dmax_topk: a blend of the candidates and the mask; iter_smooth_topk: the token, and beside it "
                "--merge-weight of the candidates"),
             kMerges);
  app.add_option("--merge-weight", f.merge.weight, "of --merge iter_smooth_topk")
      ->check(CLI::Range(0.0, 1e3))
      ->capture_default_str();
  add_choice(
      app, "--schedule", s.decoding.schedule,
      of(DecodingOption::kSchedule,
         "threshold: a pass keeps what passes; reference: as the family's own published loop, with its temperature, "
         "top-k, top-p, rule and block cache where no flag says otherwise"),
      kSchedules);
  app.add_option("--steps", s.decoding.steps,
                 of(DecodingOption::kSteps,
                    "of --schedule reference: passes per block, for Dream over all; default: one token each"))
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-passes", s.decoding.max_passes,
                 of(DecodingOption::kMaxPasses, "passes that a block is decided in at most"))
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--block-size", f.block_size,
                 of(DecodingOption::kBlockSize, "tokens denoised together; default: the model's"))
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--blocks", f.num_blocks, of(DecodingOption::kNumBlocks, "blocks denoised at the same time"))
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  using BlockCache = StrategyConfig::BlockCache;
  static const std::map<std::string, BlockCache> kCaches = {{"yes", BlockCache::kYes}, {"no", BlockCache::kNo}};
  add_choice(app, "--block-cache", f.block_cache,
             of(DecodingOption::kBlockCache,
                "yes: passes over a sub-block see the others as they were; no: exact passes; default: yes, with "
                "--schedule reference no"),
             kCaches);
  app.add_option("--mask-token-id", f.mask_token_id,
                 of(DecodingOption::kMaskTokenId, "of an undecided token; default: the model's"));
  app.add_option("--trace", f.trace, "file for one JSON object per step: rows, blocks, decided tokens")
      ->group("Output");
}

// Not the engine's to refuse: it may run requests of both schedules.
void check_decoding(const DecodingFlags& f, const DecodingParams& params) {
  HR_REQUIRE(f.num_blocks == 1 || params.schedule != DecodingParams::Schedule::kReference, ErrorCode::kInvalidArgument,
             "--blocks: is ", f.num_blocks,
             ", expected 1 with --schedule reference, which denoises one block at a time");
}

void set_decoding(LLMOptions& options, const DecodingFlags& f) {
  options.strategy = f.strategy;
  options.decoding = {.block_size = f.block_size,
                      .mask_token_id = f.mask_token_id,
                      .num_blocks = f.num_blocks,
                      .block_cache = f.block_cache,
                      .merge = f.merge};
}

}  // namespace headrace::app
