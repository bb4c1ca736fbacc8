// Defaults of the families' published decoding loops (DecodingParams::Schedule::kReference). Generation configs do not
// count: SDAR's is Qwen3's.
#pragma once
#include <cstdint>
#include <string_view>

#include "headrace/request/decoding_params.h"

namespace headrace {

// kYes: later passes over a sub-block read the other sub-blocks' K and V of an earlier pass, an approximation.
enum class BlockCache : uint8_t { kYes, kNo };

// The distribution of the scores by which a published loop ranks tokens and compares them with its threshold.
enum class LoopScores : uint8_t {
  kOfModel,    // the model's distribution
  kOfDraws,    // the distribution that is sampled; the model's if decoding is greedy
  kOfFilters,  // as kOfDraws, but filters also apply in greedy decoding
};

struct ReferenceDefaults {
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 1;
  DecodingParams::Rule rule = DecodingParams::Rule::kConfidence;
  BlockCache block_cache = BlockCache::kNo;  // for loops that have one
  LoopScores scores = LoopScores::kOfModel;
};

// Returns a diffusion family's defaults by its architecture in config.json. Error kInternal for one without a row.
ReferenceDefaults reference_defaults(std::string_view architecture);

}  // namespace headrace
