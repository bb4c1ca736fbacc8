// The published decoding loops: which tokens a pass of the schedule 'reference' keeps.
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

// Returns whether a request uses the block cache: the configuration's choice `asked`, or the default. For strategies
// that have one.
BlockCache block_cache_of(const DecodingParams& params, std::optional<BlockCache> asked, const DiffusionInfo& info);

// Returns the distribution whose scores rank a request's tokens: the published loop's, or else the model's. Also the
// model's if temperature and filters leave the distribution unchanged.
ScoresOf scores_of(const SamplingParams& params, const DiffusionInfo& info);

// Returns the indices of the kept candidates, ascending. Candidates are those of the block's masked positions, before
// the pass is counted.
std::vector<size_t> kept_by_reference(std::span<const SampledToken> candidates, const DecodingBlock& block,
                                      const DecodingParams& params, const DiffusionInfo& info);

// Error kInvalidArgument for a request of the schedule 'reference' that sets an option which the family's loop does not
// read: threshold, steps beside a threshold, or order_temperature.
void check_reference(const DecodingParams& params, const DiffusionInfo& info);

}  // namespace headrace
