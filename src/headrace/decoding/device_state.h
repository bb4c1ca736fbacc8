// A request's DenoiseState, from which ops/denoise_step continues.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "headrace/models/diffusion_info.h"
#include "headrace/ops/denoise_state.h"
#include "headrace/request/sequence.h"

namespace headrace {

// Returns the parameter that denoise_step does not support, with its value; absent if it supports the request.
std::optional<std::string> needs_host(const Sequence& sequence, const DiffusionInfo& info);

// Returns why denoise_step does not support this block size; empty if it does.
std::string too_large_a_block(int32_t block_size);

// Returns the state of a request that denoises the block `open`: the part common to all strategies. Absent if
// needs_host().
std::optional<DenoiseState> device_state(const Sequence& sequence, const DecodingBlock& open,
                                         const DiffusionInfo& info);

// As device_state, for a canvas whose blocks are decided one after the other. Absent also if all blocks are decided or
// blocks are too large.
std::optional<DenoiseState> canvas_state(const Sequence& sequence, DenoiseState::Sees sees, const DiffusionInfo& info);

}  // namespace headrace
