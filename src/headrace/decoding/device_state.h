// Where a request stands, as kernels/denoise_step goes on from there.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "headrace/models/diffusion_info.h"
#include "headrace/ops/denoise_state.h"
#include "headrace/request/sequence.h"

namespace headrace {

// What of a request denoise_step cannot say, by the parameter's name; nothing where it says all of it.
std::optional<std::string> needs_host(const Sequence& sequence, const DiffusionInfo& info);

// Why denoise_step does not take blocks of that size, by name; empty where it does.
std::string too_large_a_block(int32_t block_size);

// In the middle of denoising `open`, what any strategy says of it. Nothing for a request that needs_host().
std::optional<DenoiseState> device_state(const Sequence& sequence, const DecodingBlock& open,
                                         const DiffusionInfo& info);

// The same of a canvas whose blocks are decided one after the other, in full.
std::optional<DenoiseState> canvas_state(const Sequence& sequence, DenoiseState::Sees sees, const DiffusionInfo& info);

}  // namespace headrace
