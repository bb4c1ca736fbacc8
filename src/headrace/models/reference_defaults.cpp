#include "headrace/models/reference_defaults.h"

#include <algorithm>
#include <array>
#include <string>

#include "headrace/core/error.h"

namespace headrace {
namespace {

using Rule = DecodingParams::Rule;
using Scores = LoopScores;

struct FamilyDefaults {
  std::string_view architecture;
  ReferenceDefaults defaults;
};

// One row per diffusion family: the defaults of its published function, not of a model card.
constexpr std::array kFamilies = {
    FamilyDefaults{"SDARForCausalLM", {.temperature = 1, .scores = Scores::kOfDraws}},
    FamilyDefaults{"SDARMoeForCausalLM", {.temperature = 1, .scores = Scores::kOfDraws}},
    FamilyDefaults{"LLaDAModelLM", {}},
    FamilyDefaults{"LLaDAMoEModelLM", {}},
    FamilyDefaults{"LLaDA2MoeModelLM", {.scores = Scores::kOfDraws}},
    FamilyDefaults{"DreamModel",
                   {.rule = Rule::kRandom, .scores = Scores::kOfFilters}},  // "origin"; Dream-Coder, DiffuCoder too
    FamilyDefaults{"Fast_dLLM_QwenForCausalLM",
                   {.top_p = 0.95f, .block_cache = BlockCache::kNo, .scores = Scores::kOfDraws}},
    FamilyDefaults{"StableDiffcoderForCausalLM", {}},
    FamilyDefaults{"DiffusionGemmaForBlockDiffusion",
                   {.temperature = 1}},  // times the canvas's temperature; canvas rules apply
};

}  // namespace

ReferenceDefaults reference_defaults(std::string_view architecture) {
  const auto row = std::ranges::find(kFamilies, architecture, &FamilyDefaults::architecture);
  HR_REQUIRE(row != kFamilies.end(), ErrorCode::kInternal, "reference_defaults has no row for ", architecture);
  return row->defaults;
}

}  // namespace headrace
