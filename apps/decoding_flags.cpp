#include "decoding_flags.h"

#include <map>

#include "headrace/core/error.h"
#include "option_values.h"

namespace headrace::app {
namespace {

using Rule = DecodingParams::Rule;
using Schedule = DecodingParams::Schedule;
using Merge = StrategyConfig::Merge;
using BlockCache = StrategyConfig::BlockCache;

template <class Choice>
using Choices = std::map<std::string, Choice>;

// Adds options that some strategies read: the help says which, and `flags` remembers them for asked_options.
class FlagAdder {
 public:
  FlagAdder(CLI::App& app, DecodingFlags& flags) : app_(app), flags_(flags) {}

  template <class Target>
  CLI::Option* add(DecodingOption option, const char* name, Target& target, const char* what) {
    return remember(option, app_.add_option(name, target, described(option, what)));
  }
  // One that takes one of some names.
  template <class Target, class Choice>
  CLI::Option* add(DecodingOption option, const char* name, Target& target, const char* what,
                   const Choices<Choice>& choices) {
    const auto choose = [&target, &choices](const std::string& text) { target = choices.at(text); };
    return remember(
        option,
        app_.add_option_function<std::string>(name, choose, described(option, what))->check(CLI::IsMember(choices)));
  }

 private:
  static std::string described(DecodingOption option, const char* what) {
    return str(what, " (", readers_of(option), ")");
  }
  CLI::Option* remember(DecodingOption option, CLI::Option* flag) {
    flags_.read.push_back({option, flag});
    return flag;
  }

  CLI::App& app_;
  DecodingFlags& flags_;
};

void add_thresholds(FlagAdder flags, DecodingParams& d) {
  flags.add(DecodingOption::kThreshold, "--threshold", d.threshold,
            "keep the tokens of a pass whose confidence is at least this; default: the model's");
  flags.add(DecodingOption::kEditThreshold, "--edit-threshold", d.edit_threshold,
            "replace a kept token by another one of at least this confidence");
  flags.add(DecodingOption::kRemaskThreshold, "--remask-threshold", d.remask_threshold,
            "make a kept token a mask again when its confidence falls below this; default: never");
  flags
      .add(DecodingOption::kAddBlock, "--add-block", d.add_block,
           "open the next block when this share of a block is decided")
      ->capture_default_str();
  flags
      .add(DecodingOption::kStability, "--stability", d.stability,
           "open the next block when the last pass chose this share of a block's decided tokens again")
      ->capture_default_str();
  flags
      .add(DecodingOption::kSemiComplete, "--semi-complete", d.semi_complete,
           "let the next block decide a token in every pass when this share of a block is decided")
      ->capture_default_str();
  flags
      .add(DecodingOption::kCopyPenalty, "--copy-penalty", d.copy_penalty,
           "subtract this from the logit of the token on the left")
      ->capture_default_str();
  flags
      .add(DecodingOption::kCfgScale, "--cfg-scale", d.cfg_scale,
           "weight of classifier-free guidance, as LLaDA's; above 0 every pass runs twice the tokens")
      ->capture_default_str();
  flags
      .add(DecodingOption::kMaxEdits, "--max-edits", d.max_edits,
           "passes at most that may change a block without masks; default: 16")
      ->check(integer_in(0, 1 << 20));
}

void add_choices(FlagAdder flags, DecodingFlags& f, DecodingParams& d) {
  static const Choices<Rule> kRules = {{"confidence", Rule::kConfidence}, {"margin", Rule::kMargin},
                                       {"entropy", Rule::kEntropy},       {"entropy_bound", Rule::kEntropyBound},
                                       {"leftmost", Rule::kLeftmost},     {"random", Rule::kRandom}};
  static const Choices<Merge::Mode> kMerges = {{"dmax_topk", Merge::Mode::kTopK},
                                               {"dmax_topk_as_summed", Merge::Mode::kTopKAsSummed},
                                               {"iter_smooth_topk", Merge::Mode::kSmooth}};
  flags.add(DecodingOption::kRule, "--accept", d.rule,
            "how the tokens of a pass are ranked; confidence: probability, the default; margin: lead over the second "
            "token; entropy: at most --threshold nats; entropy_bound: at most so many nats of all kept ones together; "
            "leftmost, random: one token each pass",
            kRules);
  flags
      .add(DecodingOption::kOrderTemperature, "--order-temperature", d.order_temperature,
           "above 0: keep tokens drawn by exp(score / N) in place of the best ones, as Dream's alg_temp")
      ->capture_default_str();
  flags
      .add(DecodingOption::kMergeCandidates, "--merge-candidates", d.merge_candidates,
           "blend this many candidates into the input of an undecided place")
      ->check(integer_in(1, 64))
      ->capture_default_str();
  flags.add(DecodingOption::kMerge, "--merge", f.merge.mode,
            "how candidates are blended; dmax_topk: with the mask, scaled to their common length; dmax_topk_as_summed: "
            "the same, not scaled; iter_smooth_topk: added to the token with --merge-weight",
            kMerges);
  flags
      .add(DecodingOption::kMerge, "--merge-weight", f.merge_weight,
           "weight of the candidates in --merge iter_smooth_topk; default: 1")
      ->check(number_in(0, 1e3));
}

void add_passes(FlagAdder flags, DecodingFlags& f, DecodingParams& d) {
  static const Choices<Schedule> kSchedules = {{"threshold", Schedule::kThreshold},
                                               {"reference", Schedule::kReference}};
  static const Choices<BlockCache> kCaches = {{"yes", BlockCache::kYes}, {"no", BlockCache::kNo}};
  flags.add(DecodingOption::kSchedule, "--schedule", d.schedule,
            "threshold: a pass keeps every token that passes --threshold; reference: the model's own published loop, "
            "with its temperature, top-k, top-p, --accept and --block-cache unless a flag says otherwise",
            kSchedules);
  flags
      .add(DecodingOption::kSteps, "--steps", d.steps,
           "denoising passes per block, of Dream over the whole output, with --schedule reference; default: one token "
           "each")
      ->check(integer_in(1, 1 << 20));
  flags.add(DecodingOption::kMaxPasses, "--max-passes", d.max_passes, "passes at most in which a block is decided")
      ->check(integer_in(1, 1 << 20));
  flags
      .add(DecodingOption::kBlockSize, "--block-size", f.block_size,
           "tokens that are denoised together; default: the model's")
      ->check(integer_in(1, 1 << 16));
  flags.add(DecodingOption::kNumBlocks, "--blocks", f.num_blocks, "blocks that are denoised at the same time")
      ->check(integer_in(1, 1024))
      ->capture_default_str();
  flags.add(DecodingOption::kBlockCache, "--block-cache", f.block_cache,
            "yes: passes over a sub-block reuse keys and values of the others; no: exact passes; default: yes, with "
            "--schedule reference no",
            kCaches);
  flags.add(DecodingOption::kMaskTokenId, "--mask-token-id", f.mask_token_id,
            "id of the mask token; default: the model's");
}

}  // namespace

void add_decoding_flags(CLI::App& app, DecodingFlags& f, SamplingParams& s) {
  std::string names = "auto";
  for (const std::string_view name : strategy_names()) names += ", " + std::string(name);
  app.option_defaults()->group("Block diffusion");
  app.add_option("--strategy", f.strategy, "how a block is denoised: " + names)
      ->type_name("STRATEGY")
      ->capture_default_str();
  const FlagAdder flags(app, f);
  add_thresholds(flags, s.decoding);
  add_choices(flags, f, s.decoding);
  add_passes(flags, f, s.decoding);
  CLI::Option* trace =
      app.add_option("--trace", f.trace, "write one JSON object per step to FILE: rows, blocks, decided tokens");
  refuse_standard_output(*trace->type_name(kFile)->group("Output"));
}

// Not the engine's to refuse: it may run requests of both schedules.
void check_decoding(const DecodingFlags& f, const DecodingParams& params) {
  HR_REQUIRE(f.num_blocks == 1 || params.schedule != DecodingParams::Schedule::kReference, ErrorCode::kInvalidArgument,
             "--blocks: is ", f.num_blocks,
             ", expected 1 with --schedule reference, which denoises one block at a time");
  HR_REQUIRE(!f.merge_weight || f.merge.mode == Merge::Mode::kSmooth, ErrorCode::kInvalidArgument,
             "--merge-weight: is ", f.merge_weight.value_or(0), ", expected none without --merge iter_smooth_topk");
}

std::vector<AskedOption> asked_options(const DecodingFlags& f) {
  std::vector<AskedOption> asked;
  for (const auto& [option, flag] : f.read) {
    if (flag->count() > 0) asked.push_back({option, flag->results().back(), "none"});
  }
  return asked;
}

void set_decoding(LLMOptions& options, const DecodingFlags& f) {
  options.strategy = f.strategy;
  options.decoding = {.block_size = f.block_size,
                      .mask_token_id = f.mask_token_id,
                      .num_blocks = f.num_blocks,
                      .block_cache = f.block_cache,
                      .merge = {f.merge.mode, f.merge_weight.value_or(f.merge.weight)}};
}

}  // namespace headrace::app
