// What a pass of a family's published loop keeps.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "headrace/models/diffusion_info.h"
#include "headrace/request/decoding_block.h"
#include "headrace/request/decoding_params.h"
#include "headrace/request/sampled_token.h"

namespace headrace {

inline bool follows_reference(const DecodingParams& params) {
  return params.schedule == DecodingParams::Schedule::kReference;
}

// Indices of the kept candidates, ascending: those of the block's masked positions, before the pass is counted.
std::vector<size_t> kept_by_reference(std::span<const SampledToken> candidates, const DecodingBlock& block,
                                      const DecodingParams& params, const DiffusionInfo& info);

// Error kUnsupported, naming the strategy, for a request with max_passes.
void refuse_max_passes(std::string_view strategy, const DecodingParams& params);

}  // namespace headrace
