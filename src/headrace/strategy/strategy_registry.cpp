#include <array>
#include <string>
#include <type_traits>

#include "headrace/base/error.h"
#include "headrace/strategy/autoregressive.h"
#include "headrace/strategy/d2f.h"
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
};

template <class Strategy>
std::unique_ptr<DecodingStrategy> make(const StrategyConfig& config) {
  if constexpr (std::is_default_constructible_v<Strategy>) {
    return std::make_unique<Strategy>();
  } else {
    return std::make_unique<Strategy>(config);
  }
}

// A new strategy is one file and one row.
constexpr std::array kStrategies = {
    Row{"autoregressive", make<Autoregressive>},
    Row{"full_attention", make<FullAttention>},
    Row{"dual_cache", make<DualCache>},
    Row{"multi_bd", make<MultiBD>},
    Row{"multi_bd_edit", make<MultiBDEdit>},
    Row{"d2f", make<D2F>},
    Row{"dmax", make<DMax>},
    Row{"fast_dllm_v2", make<FastDLLMv2>},
    Row{"diffusion_gemma", make<CanvasStrategy>},
};

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
  std::string built;
  for (const Row& row : kStrategies) {
    if (row.name == name) return row.make(config);
    built += (built.empty() ? "" : ", ") + std::string(row.name);
  }
  throw Error(ErrorCode::kUnsupported, str("strategy '", name, "' is not built; built are: ", built));
}

}  // namespace headrace
