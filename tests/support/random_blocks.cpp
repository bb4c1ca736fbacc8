#include "support/random_blocks.h"

#include <cstring>

#include "headrace/core/dtype.h"

namespace headrace::testing_support {
namespace {

constexpr uintptr_t kAlignment = 64;

size_t size_of_block(BlockFormat format) { return static_cast<size_t>(layout_of(format).bytes); }
size_t scale_at(BlockFormat format) { return format == BlockFormat::kQ6_K ? 208 : 0; }

void put_half(unsigned char* to, float value) {
  const F16 half(value);
  std::memcpy(to, &half.bits, sizeof half.bits);
}

}  // namespace

bool has_minimum(BlockFormat format) {
  return format == BlockFormat::kQ4_1 || format == BlockFormat::kQ5_1 || format == BlockFormat::kQ4_K ||
         format == BlockFormat::kQ5_K;
}

void set_scales(BlockFormat format, Bytes& blocks, float scale, float minimum) {
  for (size_t at = 0; at < blocks.size(); at += size_of_block(format)) {
    put_half(&blocks[at + scale_at(format)], scale);
    if (has_minimum(format)) put_half(&blocks[at + 2], minimum);
  }
}

Bytes random_blocks(Random& random, BlockFormat format, int64_t out, int64_t in) {
  const int64_t blocks = out * in / layout_of(format).elements;
  Bytes bytes(static_cast<size_t>(blocks) * size_of_block(format));
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random.below(256));
  for (size_t at = 0; at < bytes.size(); at += size_of_block(format)) {
    put_half(&bytes[at + scale_at(format)], static_cast<float>(0.01 * random.normal()));
    if (has_minimum(format)) put_half(&bytes[at + 2], static_cast<float>(0.01 * random.normal()));
  }
  return bytes;
}

std::vector<float> dequantized(BlockFormat format, const Bytes& blocks) {
  std::vector<float> values(blocks.size() / size_of_block(format) * static_cast<size_t>(layout_of(format).elements));
  dequantize(format, blocks, values);
  return values;
}

OwnedMatrix::OwnedMatrix(BlockFormat format, int64_t out, int64_t in, const Bytes& blocks)
    : matrix{.format = format, .out = out, .in = in},
      memory(static_cast<size_t>(packed_bytes(format, out, in)) + kAlignment, 0xff) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  unsigned char* const data = memory.data() + (kAlignment - address % kAlignment) % kAlignment;
  pack_rows(matrix, 0, blocks, data);
  matrix.data = data;
}

}  // namespace headrace::testing_support
