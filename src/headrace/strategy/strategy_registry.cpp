#include <array>
#include <string>
#include <type_traits>

#include "headrace/base/error.h"
#include "headrace/strategy/autoregressive.h"
#include "headrace/strategy/d2f.h"
#include "headrace/strategy/decoding_option.h"
#include "headrace/strategy/diffusion_gemma.h"
#include "headrace/strategy/dmax.h"
#include "headrace/strategy/dual_cache.h"
#include "headrace/strategy/fast_dllm_v2.h"
#include "headrace/strategy/full_attention.h"
#include "headrace/strategy/multi_bd.h"
#include "headrace/strategy/multi_bd_edit.h"

namespace headrace {
namespace {

struct Row {
  std::string_view name;
  std::unique_ptr<DecodingStrategy> (*make)(const StrategyConfig& config);
  DecodingOptionSet reads;
};

using enum DecodingOption;

// By what a block strategy chooses tokens, and how it is made.
constexpr DecodingOptionSet kChoice = {kRule, kThreshold, kOrderTemperature, kBlockSize, kMaskTokenId};
// Of those with a buffer of several blocks.
constexpr DecodingOptionSet kBuffer = {kAddBlock, kNumBlocks, kPipeline};
constexpr DecodingOptionSet kPublishedLoop = {kSchedule, kSteps};
constexpr DecodingOptionSet kProgress = {kMaxPasses, kSemiComplete};

template <class Strategy>
std::unique_ptr<DecodingStrategy> make(const StrategyConfig& config) {
  if constexpr (std::is_default_constructible_v<Strategy>) {
    return std::make_unique<Strategy>();
  } else {
    return std::make_unique<Strategy>(config);
  }
}

// A new strategy is one file and one row. What a row does not read is refused by name.
constexpr std::array kStrategies = {
    Row{"autoregressive", make<Autoregressive>, {}},
    Row{"full_attention", make<FullAttention>, kChoice | kPublishedLoop},
    Row{"dual_cache", make<DualCache>, kChoice},
    Row{"multi_bd", make<MultiBD>, kChoice | kBuffer | kPublishedLoop | kProgress},
    Row{"multi_bd_edit", make<MultiBDEdit>,
        kChoice | kBuffer | kPublishedLoop |
            DecodingOptionSet{kEditThreshold, kRemaskThreshold, kMaxEdits, kCopyPenalty}},
    Row{"d2f", make<D2F>, kChoice | kBuffer | kProgress},
    Row{"dmax", make<DMax>,
        kBuffer | DecodingOptionSet{kRule, kThreshold, kBlockSize, kMaskTokenId, kMaxEdits, kMergeCandidates, kMerge}},
    Row{"fast_dllm_v2", make<FastDLLMv2>, kChoice | DecodingOptionSet{kSchedule, kBlockCache}},
    Row{"diffusion_gemma", make<CanvasStrategy>, kPublishedLoop | DecodingOptionSet{kThreshold, kBlockSize}},
};

const Row& row_of(std::string_view name) {
  std::string built;
  for (const Row& row : kStrategies) {
    if (row.name == name) return row;
    built += (built.empty() ? "" : ", ") + std::string(row.name);
  }
  throw Error(ErrorCode::kUnsupported, str("strategy '", name, "' is not built; built are: ", built));
}

}  // namespace

std::vector<std::string_view> strategy_names() {
  std::vector<std::string_view> names;
  names.reserve(std::size(kStrategies));
  for (const Row& row : kStrategies) names.push_back(row.name);
  return names;
}

std::string_view default_strategy(const std::optional<DiffusionInfo>& model) {
  if (!model) return "autoregressive";
  switch (model->attention) {
    case DiffusionInfo::Attention::kBlockCausal:
      return model->sub_block_size < model->block_size ? "fast_dllm_v2" : "multi_bd";
    case DiffusionInfo::Attention::kFull: return "full_attention";
    case DiffusionInfo::Attention::kCanvas: return "diffusion_gemma";
  }
  return "multi_bd";
}

std::unique_ptr<DecodingStrategy> make_strategy(std::string_view name, const StrategyConfig& config) {
  const Row& row = row_of(name);
  refuse_unread(name, asked_options(config));
  return row.make(config);
}

bool reads_option(std::string_view strategy, DecodingOption option) { return row_of(strategy).reads.contains(option); }

std::string readers_of(DecodingOption option) {
  std::string readers;
  for (const Row& row : kStrategies) {
    if (row.reads.contains(option)) readers += (readers.empty() ? "" : ", ") + std::string(row.name);
  }
  return readers;
}

}  // namespace headrace
