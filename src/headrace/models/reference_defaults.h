// What a family's published loop takes where nobody says otherwise (DecodingParams::Schedule::kReference). Its
// generation config is no part of that: SDAR's is Qwen3's.
#pragma once
#include <cstdint>
#include <string_view>

#include "headrace/request/decoding_params.h"

namespace headrace {

// Whether later passes over a part of a block see keys and values of its other parts as they were in an earlier pass,
// which is an approximation.
enum class BlockCache : uint8_t { kYes, kNo };

// Of which distribution the scores are by which a published loop ranks tokens and holds them against its threshold.
enum class LoopScores : uint8_t {
  kOfModel,    // the model's, whatever tokens are drawn from
  kOfDraws,    // that which a token is drawn from; where the most likely one is taken, the model's
  kOfFilters,  // the same, but filters stand where the most likely one is taken, too
};

struct ReferenceDefaults {
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 1;
  DecodingParams::Rule rule = DecodingParams::Rule::kConfidence;
  BlockCache block_cache = BlockCache::kNo;  // of loops that have one
  LoopScores scores = LoopScores::kOfModel;
};

// Of a diffusion family, by the architecture that config.json names. Error kInternal for one without a row.
ReferenceDefaults reference_defaults(std::string_view architecture);

}  // namespace headrace
