// Where a request stands, as kernels/block_step goes on from there.
#pragma once
#include <optional>

#include "headrace/kernels/block_state.h"
#include "headrace/models/diffusion_info.h"
#include "headrace/request/sequence.h"

namespace headrace {

// In the middle of denoising `open`, what any strategy says of it. Nothing for a request whose rule block_step cannot
// say: it takes greedy ones that leave the logits as they are, every rule but entropy_bound and random, and no order
// temperature.
std::optional<BlockState> device_state(const Sequence& sequence, const DecodingBlock& open, const DiffusionInfo& info);

// The same of a canvas whose blocks are decided one after the other, in full.
std::optional<BlockState> canvas_state(const Sequence& sequence, BlockState::Sees sees, const DiffusionInfo& info);

}  // namespace headrace
