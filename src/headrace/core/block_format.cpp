#include "headrace/core/block_format.h"

#include <array>
#include <cmath>
#include <cstring>

#include "headrace/core/dtype.h"
#include "headrace/core/error.h"

namespace headrace {
namespace {

constexpr int kSmall = 32, kLarge = 256;  // elements of a block

// Order of BlockFormat. `scales`: bytes at which a float16 scale or minimum stands, and how many follow one another.
struct Description {
  BlockLayout layout;
  size_t scales_at, num_scales;
};
constexpr std::array<Description, kNumBlockFormats> kFormats = {{
    {{"Q4_0", kSmall, 18}, 0, 1},
    {{"Q4_1", kSmall, 20}, 0, 2},
    {{"Q5_0", kSmall, 22}, 0, 1},
    {{"Q5_1", kSmall, 24}, 0, 2},
    {{"Q8_0", kSmall, 34}, 0, 1},
    {{"Q4_K", kLarge, 144}, 0, 2},
    {{"Q5_K", kLarge, 176}, 0, 2},
    {{"Q6_K", kLarge, 210}, 208, 1},
}};
const Description& description_of(BlockFormat format) { return kFormats[static_cast<size_t>(format)]; }

float f16_at(const unsigned char* bytes) {
  F16 value;
  std::memcpy(&value.bits, bytes, sizeof value.bits);
  return static_cast<float>(value);
}

// The first 16 elements stand in the low halves of 16 bytes, the others in the high ones.
int nibble(const unsigned char* bytes, int i) { return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4; }
int fifth_bit(const unsigned char* bytes, int i) { return ((bytes[i / 8] >> (i % 8)) & 1) << 4; }

void decode_q4_0(const unsigned char* block, float* out) {
  const float scale = f16_at(block);
  for (int i = 0; i < kSmall; ++i) out[i] = scale * static_cast<float>(nibble(block + 2, i) - 8);
}

void decode_q4_1(const unsigned char* block, float* out) {
  const float scale = f16_at(block), least = f16_at(block + 2);
  for (int i = 0; i < kSmall; ++i) out[i] = scale * static_cast<float>(nibble(block + 4, i)) + least;
}

void decode_q5_0(const unsigned char* block, float* out) {
  const float scale = f16_at(block);
  for (int i = 0; i < kSmall; ++i)
    out[i] = scale * static_cast<float>((nibble(block + 6, i) | fifth_bit(block + 2, i)) - 16);
}

void decode_q5_1(const unsigned char* block, float* out) {
  const float scale = f16_at(block), least = f16_at(block + 2);
  for (int i = 0; i < kSmall; ++i)
    out[i] = scale * static_cast<float>(nibble(block + 8, i) | fifth_bit(block + 4, i)) + least;
}

void decode_q8_0(const unsigned char* block, float* out) {
  const float scale = f16_at(block);
  for (int i = 0; i < kSmall; ++i) out[i] = scale * static_cast<float>(static_cast<signed char>(block[2 + i]));
}

// A scale and a minimum of 6 bits for each of 8 groups of 32, in 12 bytes.
struct GroupScale {
  int scale, least;
};
GroupScale group_scale(const unsigned char* bytes, int group) {
  if (group < 4) return {bytes[group] & 63, bytes[group + 4] & 63};
  return {(bytes[group + 4] & 15) | ((bytes[group - 4] >> 6) << 4),
          (bytes[group + 4] >> 4) | ((bytes[group] >> 6) << 4)};
}

// `high`: a fifth bit for each element, or null.
void decode_groups(const unsigned char* block, const unsigned char* low, const unsigned char* high, float* out) {
  const float scale = f16_at(block), least = f16_at(block + 2);
  for (int group = 0; group < kLarge / kSmall; ++group) {
    const GroupScale own = group_scale(block + 4, group);
    const float step = scale * static_cast<float>(own.scale), offset = least * static_cast<float>(own.least);
    for (int i = 0; i < kSmall; ++i) {
      int code = (low[kSmall * (group / 2) + i] >> (4 * (group % 2))) & 15;
      if (high != nullptr) code |= ((high[i] >> group) & 1) << 4;
      out[kSmall * group + i] = step * static_cast<float>(code) - offset;
    }
  }
}

void decode_q4_k(const unsigned char* block, float* out) { decode_groups(block, block + 16, nullptr, out); }
void decode_q5_k(const unsigned char* block, float* out) { decode_groups(block, block + 48, block + 16, out); }

void decode_q6_k(const unsigned char* block, float* out) {
  const unsigned char *const low = block, *const high = block + 128, *const scales = block + 192;
  const float scale = f16_at(block + 208);
  for (int i = 0; i < kLarge; ++i) {
    const int half = i / 128, within = i % 128;
    const int code = ((low[64 * half + within % 64] >> (4 * (within / 64))) & 15) |
                     (((high[32 * half + within % 32] >> (2 * (within / 32))) & 3) << 4);
    out[i] = scale * static_cast<float>(static_cast<signed char>(scales[i / 16])) * static_cast<float>(code - 32);
  }
}

using Decode = void (*)(const unsigned char* block, float* out);
constexpr std::array<Decode, kNumBlockFormats> kDecode = {decode_q4_0, decode_q4_1, decode_q5_0, decode_q5_1,
                                                          decode_q8_0, decode_q4_k, decode_q5_k, decode_q6_k};

}  // namespace

const BlockLayout& layout_of(BlockFormat format) { return description_of(format).layout; }

void dequantize(BlockFormat format, std::span<const unsigned char> blocks, std::span<float> values) {
  const BlockLayout& layout = layout_of(format);
  const size_t count = blocks.size() / static_cast<size_t>(layout.bytes);
  HR_REQUIRE(count * static_cast<size_t>(layout.bytes) == blocks.size() &&
                 count * static_cast<size_t>(layout.elements) == values.size(),
             ErrorCode::kInvalidArgument, "dequantize: ", blocks.size(), " bytes of ", layout.name, " for ",
             values.size(), " values, expected ", layout.bytes, " bytes for ", layout.elements, " values");
  const Decode decode = kDecode[static_cast<size_t>(format)];
  for (size_t i = 0; i < count; ++i)
    decode(blocks.data() + i * static_cast<size_t>(layout.bytes),
           values.data() + i * static_cast<size_t>(layout.elements));
}

bool has_broken_scale(BlockFormat format, std::span<const unsigned char> blocks) {
  const Description& d = description_of(format);
  for (size_t at = 0; at + static_cast<size_t>(d.layout.bytes) <= blocks.size();
       at += static_cast<size_t>(d.layout.bytes)) {
    for (size_t i = 0; i < d.num_scales; ++i)
      if (!std::isfinite(f16_at(blocks.data() + at + d.scales_at + 2 * i))) return true;
  }
  return false;
}

}  // namespace headrace
