#include <array>
#include <string>
#include <type_traits>

#include "headrace/core/error.h"
#include "headrace/decoding/autoregressive.h"
#include "headrace/decoding/d2f.h"
#include "headrace/decoding/decoding_option.h"
#include "headrace/decoding/diffusion_gemma.h"
#include "headrace/decoding/dmax.h"
#include "headrace/decoding/dual_cache.h"
#include "headrace/decoding/fast_dllm_v2.h"
#include "headrace/decoding/full_attention.h"
#include "headrace/decoding/multi_bd.h"
#include "headrace/decoding/multi_bd_edit.h"

namespace headrace {
namespace {

using Attention = DiffusionInfo::Attention;
using LogitsOf = DiffusionInfo::LogitsOf;

constexpr bool never(const DiffusionInfo&) { return false; }

struct Row {
  std::string_view name;
  std::unique_ptr<DecodingStrategy> (*make)(const StrategyConfig& config);
  bool (*decodes)(const DiffusionInfo& trained);  // supports diffusion models trained this way
  DecodingOptionSet reads;
  bool (*compared)(const DiffusionInfo& trained) = never;          // worth comparing with the model's own strategy
  bool (*requires_adapter)(const DiffusionInfo& trained) = never;  // such models need an adapter
  // reads rows that such models were trained to predict something else from
  bool (*misreads)(const DiffusionInfo& trained) = never;
};

using enum DecodingOption;

// Options of every block strategy: its choice of tokens and its construction.
constexpr DecodingOptionSet kChoice = {kRule, kThreshold, kOrderTemperature, kBlockSize, kMaskTokenId};
// Options of strategies that denoise several blocks at a time.
constexpr DecodingOptionSet kBuffer = {kAddBlock, kNumBlocks};
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

constexpr bool of_blocks(const DiffusionInfo& m) { return m.attention == Attention::kBlockCausal; }
constexpr bool of_blocks_of_their_own(const DiffusionInfo& m) { return of_blocks(m) && m.logits_of == LogitsOf::kSame; }
constexpr bool of_blocks_of_the_next(const DiffusionInfo& m) {
  return of_blocks(m) && m.logits_of == LogitsOf::kBefore;
}
constexpr bool of_full(const DiffusionInfo& m) { return m.attention == Attention::kFull; }
constexpr bool of_canvases(const DiffusionInfo& m) { return m.attention == Attention::kCanvas; }
constexpr bool without_edits(const DiffusionInfo& m) { return m.edits == DiffusionInfo::Edits::kNone; }
constexpr bool of_any_but_canvases(const DiffusionInfo& m) { return m.attention != Attention::kCanvas; }

// A new strategy needs a source and header, its name in CMakeLists.txt, an include and a row here, and a test
// (docs/adding_a_strategy.md). Options that a row does not list are refused by name.
constexpr std::array kStrategies = {
    Row{"autoregressive", make<Autoregressive>, of_blocks, {}, of_blocks},  // a baseline
    Row{"full_attention", make<FullAttention>, of_full, kChoice | kPublishedLoop | DecodingOptionSet{kCfgScale}},
    Row{"dual_cache", make<DualCache>, of_full, kChoice, of_full},
    Row{"multi_bd", make<MultiBD>, of_blocks, kChoice | kBuffer | kPublishedLoop | kProgress},
    Row{"multi_bd_edit", make<MultiBDEdit>, of_blocks_of_their_own,
        kChoice | kBuffer | kPublishedLoop |
            DecodingOptionSet{kStability, kEditThreshold, kRemaskThreshold, kMaxEdits, kCopyPenalty},
        never, never, without_edits},
    Row{"d2f", make<D2F>, of_any_but_canvases, kChoice | kBuffer | kProgress, of_blocks_of_their_own, of_full},
    Row{"dmax", make<DMax>, of_blocks_of_their_own,
        kBuffer | DecodingOptionSet{kRule, kThreshold, kStability, kBlockSize, kMaskTokenId, kMaxEdits,
                                    kMergeCandidates, kMerge},
        of_blocks_of_their_own, never, without_edits},
    Row{"fast_dllm_v2", make<FastDLLMv2>, of_blocks_of_the_next, kChoice | DecodingOptionSet{kSchedule, kBlockCache}},
    Row{"diffusion_gemma", make<CanvasStrategy>, of_canvases,
        kPublishedLoop | DecodingOptionSet{kThreshold, kBlockSize}},
};

const Row& row_of(std::string_view name) {
  std::string known;
  for (const Row& row : kStrategies) {
    if (row.name == name) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw Error(ErrorCode::kInvalidArgument, str("strategy '", name, "' is unknown, expected one of ", known));
}

std::string_view attention_text(Attention attention) {
  switch (attention) {
    case Attention::kBlockCausal: return "causal blocks";
    case Attention::kFull: return "full attention";
    case Attention::kCanvas: return "canvases";
  }
  return "unknown";
}

void refuse_model(const Row& asked, const DiffusionInfo& trained) {
  std::string others;
  for (const Row& row : kStrategies) {
    if (row.decodes(trained)) others += (others.empty() ? "" : ", ") + std::string(row.name);
  }
  HR_REQUIRE(asked.decodes(trained), ErrorCode::kInvalidArgument, "strategy '", asked.name,
             "': the model is trained on ", attention_text(trained.attention),
             ", which it does not decode; strategies that do: ", others);
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

std::vector<std::string_view> compared_strategies(const DiffusionInfo& model) {
  std::vector<std::string_view> names;
  for (const Row& row : kStrategies) {
    if (row.compared(model) || row.name == default_strategy(model)) names.push_back(row.name);
  }
  return names;
}

bool decodes(std::string_view strategy, const DiffusionInfo& trained) { return row_of(strategy).decodes(trained); }

bool requires_adapter(std::string_view strategy, const DiffusionInfo& trained) {
  return row_of(strategy).requires_adapter(trained);
}

bool misreads(std::string_view strategy, const DiffusionInfo& trained) { return row_of(strategy).misreads(trained); }

std::unique_ptr<DecodingStrategy> make_strategy(std::string_view name, const StrategyConfig& config) {
  const Row& row = row_of(name);
  refuse_unread(name, asked_options(config));
  auto strategy = row.make(config);  // first: its errors are more specific
  if (config.model) refuse_model(row, *config.model);
  return strategy;
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
