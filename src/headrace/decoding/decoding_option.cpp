#include "headrace/decoding/decoding_option.h"

#include <optional>
#include <utility>

#include "headrace/core/error.h"

namespace headrace {
namespace {

using Option = DecodingOption;
using Rule = DecodingParams::Rule;
using Schedule = DecodingParams::Schedule;
using Merge = StrategyConfig::Merge;

std::string text_of(const Merge& merge) {
  switch (merge.mode) {
    case Merge::Mode::kTopK: return "dmax_topk";
    case Merge::Mode::kTopKAsSummed: return "dmax_topk_as_summed";
    case Merge::Mode::kSmooth: return str("iter_smooth_topk of weight ", merge.weight);
  }
  return "unknown";
}
std::string text_of(float value) { return str(value); }
std::string text_of(int32_t value) { return str(value); }

class Asked {
 public:
  template <class T>
  void add(Option option, const std::optional<T>& value) {
    if (value) list_.push_back({option, std::string(text_of(*value)), "none"});
  }
  template <class T>
  void add(Option option, const T& value, const T& unasked) {
    std::string found(text_of(value)), otherwise(text_of(unasked));
    if (found != otherwise) list_.push_back({option, std::move(found), std::move(otherwise)});
  }
  std::vector<AskedOption> list() && { return std::move(list_); }

 private:
  std::vector<AskedOption> list_;
};

}  // namespace

std::string_view text_of(Rule rule) {
  switch (rule) {
    case Rule::kConfidence: return "confidence";
    case Rule::kMargin: return "margin";
    case Rule::kEntropy: return "entropy";
    case Rule::kEntropyBound: return "entropy_bound";
    case Rule::kLeftmost: return "leftmost";
    case Rule::kRandom: return "random";
  }
  return "unknown";
}
std::string_view text_of(Schedule schedule) { return schedule == Schedule::kThreshold ? "threshold" : "reference"; }
std::string_view text_of(BlockCache cache) { return cache == BlockCache::kYes ? "yes" : "no"; }

std::string_view name_of(DecodingOption option) {
  switch (option) {
    case Option::kRule: return "rule";
    case Option::kSchedule: return "schedule";
    case Option::kSteps: return "steps";
    case Option::kMaxPasses: return "max_passes";
    case Option::kThreshold: return "threshold";
    case Option::kAddBlock: return "add_block";
    case Option::kStability: return "stability";
    case Option::kSemiComplete: return "semi_complete";
    case Option::kEditThreshold: return "edit_threshold";
    case Option::kRemaskThreshold: return "remask_threshold";
    case Option::kMaxEdits: return "max_edits";
    case Option::kOrderTemperature: return "order_temperature";
    case Option::kMergeCandidates: return "merge_candidates";
    case Option::kCopyPenalty: return "copy_penalty";
    case Option::kCfgScale: return "cfg_scale";
    case Option::kBlockSize: return "block_size";
    case Option::kMaskTokenId: return "mask_token_id";
    case Option::kNumBlocks: return "num_blocks";
    case Option::kBlockCache: return "block_cache";
    case Option::kMerge: return "merge";
  }
  return "unknown";
}

// Both overloads bind every field, so a new field does not compile until it is an option.
std::vector<AskedOption> asked_options(const DecodingParams& params) {
  const DecodingParams none;
  const auto& [rule, schedule, steps, max_passes, threshold, add_block, stability, semi_complete, edit_threshold,
               remask_threshold, max_edits, order_temperature, merge_candidates, copy_penalty, cfg_scale] = params;
  Asked asked;
  asked.add(Option::kRule, rule);
  asked.add(Option::kSchedule, schedule, none.schedule);
  asked.add(Option::kSteps, steps);
  asked.add(Option::kMaxPasses, max_passes);
  asked.add(Option::kThreshold, threshold);
  asked.add(Option::kAddBlock, add_block, none.add_block);
  asked.add(Option::kStability, stability, none.stability);
  asked.add(Option::kSemiComplete, semi_complete, none.semi_complete);
  asked.add(Option::kEditThreshold, edit_threshold);
  asked.add(Option::kRemaskThreshold, remask_threshold);
  asked.add(Option::kMaxEdits, max_edits);
  asked.add(Option::kOrderTemperature, order_temperature, none.order_temperature);
  asked.add(Option::kMergeCandidates, merge_candidates, none.merge_candidates);
  asked.add(Option::kCopyPenalty, copy_penalty, none.copy_penalty);
  asked.add(Option::kCfgScale, cfg_scale, none.cfg_scale);
  return std::move(asked).list();
}

std::vector<AskedOption> asked_options(const StrategyConfig& config) {
  const StrategyConfig none;
  const auto& [model, block_size, mask_token_id, num_blocks, block_cache, merge] = config;
  Asked asked;
  asked.add(Option::kBlockSize, block_size);
  asked.add(Option::kMaskTokenId, mask_token_id);
  asked.add(Option::kNumBlocks, num_blocks, none.num_blocks);
  asked.add(Option::kBlockCache, block_cache);
  asked.add(Option::kMerge, merge, none.merge);
  return std::move(asked).list();
}

void refuse_unread(std::string_view strategy, const std::vector<AskedOption>& asked) {
  for (const AskedOption& one : asked) {
    HR_REQUIRE(reads_option(strategy, one.option), ErrorCode::kInvalidArgument, "strategy '", strategy,
               "': ", name_of(one.option), " is ", one.value, ", expected ", one.unasked,
               "; strategies that read it: ", readers_of(one.option));
  }
}

}  // namespace headrace
