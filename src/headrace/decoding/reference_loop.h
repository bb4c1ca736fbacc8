// What a pass of a family's published loop keeps.
#pragma once
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "headrace/models/diffusion_info.h"
#include "headrace/request/decoding_block.h"
#include "headrace/request/decoding_params.h"
#include "headrace/request/sampled_token.h"
#include "headrace/request/sampling_params.h"

namespace headrace {

inline bool follows_reference(const DecodingParams& params) {
  return params.schedule == DecodingParams::Schedule::kReference;
}

// Of strategies that have a block cache: what a request comes to whose configuration says so, or nothing.
BlockCache block_cache_of(const DecodingParams& params, std::optional<BlockCache> asked, const DiffusionInfo& info);

// By which scores a request's tokens are chosen: as its published loop has them, or else the model's. The model's too
// where its temperature and filters leave the distribution as it is.
ScoresOf scores_of(const SamplingParams& params, const DiffusionInfo& info);

// Indices of the kept candidates, ascending: those of the block's masked positions, before the pass is counted.
std::vector<size_t> kept_by_reference(std::span<const SampledToken> candidates, const DecodingBlock& block,
                                      const DecodingParams& params, const DiffusionInfo& info);

// Error kInvalidArgument for a request of the schedule 'reference' whose threshold, or steps beside one, or order
// temperature the family's loop does not read.
void check_reference(const DecodingParams& params, const DiffusionInfo& info);

}  // namespace headrace
