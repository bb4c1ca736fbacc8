// Quantised weights of random blocks, as a GGUF file would hold them.
#pragma once
#include <vector>

#include "headrace/core/packed_matrix.h"
#include "support/random.h"

namespace headrace::testing_support {

using Bytes = std::vector<unsigned char>;

inline constexpr BlockFormat kBlockFormats[] = {BlockFormat::kQ4_0, BlockFormat::kQ4_1, BlockFormat::kQ5_0,
                                                BlockFormat::kQ5_1, BlockFormat::kQ8_0, BlockFormat::kQ4_K,
                                                BlockFormat::kQ5_K, BlockFormat::kQ6_K};

// Whether a block has a float16 minimum behind its scale.
bool has_minimum(BlockFormat format);
// Overwrites the float16 scale and minimum of every block.
void set_scales(BlockFormat format, Bytes& blocks, float scale, float minimum);

// Rows of blocks. Every bit is random but those of the scales and minima, which are numbers of size 0.01.
Bytes random_blocks(Random& random, BlockFormat format, int64_t out, int64_t in);

// Values [out * in] by dequantize().
std::vector<float> dequantized(BlockFormat format, const Bytes& blocks);

// A packed matrix that owns its memory.
struct OwnedMatrix {
  OwnedMatrix(BlockFormat format, int64_t out, int64_t in, const Bytes& blocks);
  PackedMatrix matrix;
  Bytes memory;
};

}  // namespace headrace::testing_support
