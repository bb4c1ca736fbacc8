// Mixes of block formats: which weights of a model get which one.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "headrace/core/block_format.h"
#include "headrace/core/tensor.h"

namespace headrace {

// The mixes of llama.cpp's files with these names. Unlike there, the projections that gate Gated DeltaNet's state
// (alpha and beta) keep their floats: their errors persist in the state.
enum class QuantPreset : uint8_t { kQ8_0, kQ4_K_M, kQ5_K_M, kQ6_K };

std::string_view name_of(QuantPreset preset);  // "q4_k_m"
std::optional<QuantPreset> quant_preset_named(std::string_view name);

// Facts of a model that a weight's format depends on.
struct QuantModel {
  int64_t num_layers = 0;
  enum class Head : uint8_t { kOwn, kIsEmbedding } head = Head::kOwn;
};

// Returns the format of the weight `name`, as Hugging Face or GGUF spell it ("model.layers.3.mlp.down_proj.weight",
// "blk.3.ffn_down.weight"), with rows of the last dimension of `shape`. Absent: it keeps its floats. Those are norms,
// vectors, convolutions, routers, alpha and beta, names that no text model multiplies with, and rows that no block
// divides.
std::optional<BlockFormat> block_format_for(std::string_view name, const Shape& shape, QuantPreset preset,
                                            const QuantModel& model);

}  // namespace headrace
