// Quantised weights as GGUF files store them: blocks of elements along a row, each block with its own scales.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace headrace {

// Bits per weight with the scales: 4.5 (Q4_0, Q4_K), 5 (Q4_1), 5.5 (Q5_0, Q5_K), 6 (Q5_1), 6.5625 (Q6_K), 8.5 (Q8_0).
enum class BlockFormat : uint8_t { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };
inline constexpr size_t kNumBlockFormats = 8;

struct BlockLayout {
  std::string_view name;  // "Q4_K"
  int32_t elements, bytes;
};
const BlockLayout& layout_of(BlockFormat format);

// Decodes whole blocks; `values` has the elements of `blocks`. Each value has the bits of the format's definition in
// float32: one rounding at most, on every machine. Scales that are no numbers give values that are none.
void dequantize(BlockFormat format, std::span<const unsigned char> blocks, std::span<float> values);

// Returns true if a scale of `blocks` is infinite or NaN: such a file is damaged.
bool has_broken_scale(BlockFormat format, std::span<const unsigned char> blocks);

}  // namespace headrace
