#include "headrace/core/block_quantizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "headrace/core/dtype.h"
#include "headrace/core/error.h"

namespace headrace {
namespace {

constexpr int kSmallBlock = 32, kSuperBlock = 256;  // elements

void put_scale(unsigned char* bytes, float value) {
  const F16 stored(value);
  std::memcpy(bytes, &stored.bits, sizeof stored.bits);
}

float inverse_or_zero(float scale) { return std::fpclassify(scale) == FP_NORMAL ? 1 / scale : 0; }

// --- Blocks of 32: scales from the extremes ---

using SmallCodes = std::array<int, kSmallBlock>;

void put_code_nibbles(const SmallCodes& codes, unsigned char* bytes) {
  for (size_t i = 0; i < 16; ++i) bytes[i] = static_cast<unsigned char>((codes[i] & 15) | ((codes[i + 16] & 15) << 4));
}

void put_fifth_bits(const SmallCodes& codes, unsigned char* bytes) {
  std::fill_n(bytes, 4, static_cast<unsigned char>(0));
  for (size_t i = 0; i < codes.size(); ++i) {
    bytes[i / 8] = static_cast<unsigned char>(bytes[i / 8] | ((codes[i] >> 4) << (i % 8)));
  }
}

// The value with the largest magnitude, the first of equal ones.
float extreme_of(const float* x, int count) {
  float extreme = 0;
  for (int i = 0; i < count; ++i)
    if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
  return extreme;
}

// The extreme gets the code -half, so that the other end of the range loses half a step.
SmallCodes symmetric_codes(const float* x, int half, unsigned char* block) {
  const float scale = extreme_of(x, kSmallBlock) / static_cast<float>(-half);
  const double inverse = inverse_or_zero(scale);
  put_scale(block, scale);
  SmallCodes codes;
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto shifted = static_cast<float>(static_cast<double>(x[i]) * inverse + (half + 0.5));
    codes[i] = std::clamp(static_cast<int>(shifted), 0, 2 * half - 1);
  }
  return codes;
}

SmallCodes codes_above_least(const float* x, int most, unsigned char* block) {
  const auto [least, largest] = std::minmax_element(x, x + kSmallBlock);
  const float scale = (*largest - *least) / static_cast<float>(most), inverse = inverse_or_zero(scale);
  put_scale(block, scale);
  put_scale(block + 2, *least);
  SmallCodes codes;
  for (size_t i = 0; i < codes.size(); ++i) {
    // NOLINTNEXTLINE(bugprone-incorrect-roundings): the format's own rule
    codes[i] = std::clamp(static_cast<int>((x[i] - *least) * inverse + 0.5F), 0, most);
  }
  return codes;
}

void encode_q4_0(const float* x, unsigned char* block) { put_code_nibbles(symmetric_codes(x, 8, block), block + 2); }
void encode_q4_1(const float* x, unsigned char* block) { put_code_nibbles(codes_above_least(x, 15, block), block + 4); }

void encode_q5_0(const float* x, unsigned char* block) {
  const SmallCodes codes = symmetric_codes(x, 16, block);
  put_fifth_bits(codes, block + 2);
  put_code_nibbles(codes, block + 6);
}

void encode_q5_1(const float* x, unsigned char* block) {
  const SmallCodes codes = codes_above_least(x, 31, block);
  put_fifth_bits(codes, block + 4);
  put_code_nibbles(codes, block + 8);
}

void encode_q8_0(const float* x, unsigned char* block) {
  const float scale = std::abs(extreme_of(x, kSmallBlock)) / 127, inverse = inverse_or_zero(scale);
  put_scale(block, scale);
  for (int i = 0; i < kSmallBlock; ++i) {
    const float code = std::clamp(std::round(x[i] * inverse), -127.0F, 127.0F);
    block[2 + i] = static_cast<unsigned char>(static_cast<signed char>(code));
  }
}

// --- Super-blocks of 256: scales by least squares ---

constexpr size_t kLanes = 4;
struct LaneVector {
  typedef float Type __attribute__((vector_size(4 * kLanes)));
};
using Lanes = LaneVector::Type;  // sums have one order on every machine

Lanes all(float value) { return Lanes{value, value, value, value}; }
float sum(const Lanes& v) { return (v[0] + v[2]) + (v[1] + v[3]); }
Lanes clamped(const Lanes& v, float least, float most) {
  const Lanes above = v < all(least) ? all(least) : v;
  return above > all(most) ? all(most) : above;
}
// To the nearest integer, ties to even; |v| is below 2^22.
Lanes rounded(const Lanes& v) { return (v + all(0x1.8p23F)) - all(0x1.8p23F); }

// A super-block scaled by a power of two to magnitudes around 1, in groups that have a scale each, with weights of the
// squared errors. Larger values count more, because they carry more of a layer's output.
template <int kGroups>
struct SuperBlock {
  static constexpr size_t kSize = kSuperBlock / kGroups, kVectors = kSize / kLanes;
  struct Group {
    std::array<Lanes, kVectors> x, weight;
    float least, largest;  // of x
  };
  std::array<Group, kGroups> groups;
  int exponent;  // x times 2^exponent is the value

  // Zeros have no exponent: any will do.
  explicit SuperBlock(const float* values)
      : exponent(std::ilogb(std::max(std::abs(extreme_of(values, kSuperBlock)), 1e-44F))) {
    for (size_t g = 0; g < kGroups; ++g) fill(groups[g], values + g * kSize);
  }

  // Stores the least float16 that is not below a scale of x, and returns it in the units of x. Rounded down, a scale
  // among float16's subnormal numbers would leave the largest groups without a multiple.
  float put_unit(unsigned char* bytes, float scale) const {
    const float exact = std::ldexp(scale, exponent);
    F16 stored(exact);
    if (std::abs(static_cast<float>(stored)) < std::abs(exact)) ++stored.bits;
    std::memcpy(bytes, &stored.bits, sizeof stored.bits);
    return std::ldexp(static_cast<float>(stored), -exponent);
  }

 private:
  void fill(Group& group, const float* values) const {
    std::array<float, kSize> x;
    float squares = 0;
    for (size_t i = 0; i < kSize; ++i) {
      x[i] = std::ldexp(values[i], -exponent);
      squares += x[i] * x[i];
    }
    std::memcpy(group.x.data(), x.data(), sizeof x);
    const auto [least, largest] = std::minmax_element(x.begin(), x.end());
    group.least = *least, group.largest = *largest;
    const float deviation = std::sqrt(squares / kSize);
    for (size_t v = 0; v < kVectors; ++v) {
      const Lanes magnitude = group.x[v] < all(0) ? -group.x[v] : group.x[v];
      group.weight[v] = all(deviation) + magnitude;
    }
  }
};

// Codes 0 to `most` mean scale * code - least.
struct Grid {
  float scale = 0, least = 0;
};

// --- Q4_K and Q5_K: eight groups of 32 with a scale and a minimum of 6 bits each ---

constexpr int kGroupsOf32 = 8, kMost6Bits = 63;
using Block8 = SuperBlock<kGroupsOf32>;
using Codes32 = std::array<Lanes, Block8::kVectors>;

// Sums for the fit of x by s * code + b.
struct FitSums {
  float w = 0, x = 0, xx = 0, q = 0, qq = 0, xq = 0;

  float error(const Grid& g) const {
    const float s = g.scale, b = -g.least;
    return xx + s * s * qq + b * b * w + 2 * s * b * q - 2 * s * xq - 2 * b * x;
  }
  // The weighted least squares' solution with a minimum of 0 or more.
  Grid best() const {
    const float determinant = w * qq - q * q;
    if (determinant <= 0) return {};
    const Grid free{(w * xq - x * q) / determinant, (q * xq - qq * x) / determinant};
    return free.least >= 0 ? free : Grid{xq / qq, 0};
  }
};

FitSums fit_sums(const Block8::Group& group, float inverse, float least, float most) {
  Lanes q{}, qq{}, xq{};
  for (size_t v = 0; v < Block8::kVectors; ++v) {
    const Lanes code = clamped(rounded((group.x[v] + all(least)) * all(inverse)), 0, most);
    const Lanes weighted = group.weight[v] * code;
    q += weighted, qq += weighted * code, xq += weighted * group.x[v];
  }
  return {.q = sum(q), .qq = sum(qq), .xq = sum(xq)};
}

// Tries code ranges from a step less to a step more than the values span.
Grid best_grid(const Block8::Group& group, float most) {
  const float least = std::max(-group.least, 0.0F), span = group.largest + least;
  Grid best{0, least};
  if (span <= 0) return best;
  Lanes w{}, x{}, xx{};
  for (size_t v = 0; v < Block8::kVectors; ++v) {
    const Lanes weighted = group.weight[v] * group.x[v];
    w += group.weight[v], x += weighted, xx += weighted * group.x[v];
  }
  best.scale = span / most;
  float lowest = std::numeric_limits<float>::infinity();
  for (int step = -12; step <= 8; step += 4) {
    FitSums sums = fit_sums(group, (most + 0.1F * static_cast<float>(step)) / span, least, most);
    sums.w = sum(w), sums.x = sum(x), sums.xx = sum(xx);
    const Grid grid = sums.best();
    const float error = sums.error(grid);
    if (grid.scale <= 0 || error >= lowest) continue;
    lowest = error, best = grid;
  }
  return best;
}

float encode_group(const Block8::Group& group, const Grid& grid, float most, Codes32& codes) {
  const float inverse = inverse_or_zero(grid.scale);
  Lanes errors{};
  for (size_t v = 0; v < Block8::kVectors; ++v) {
    codes[v] = clamped(rounded((group.x[v] + all(grid.least)) * all(inverse)), 0, most);
    const Lanes error = codes[v] * all(grid.scale) - all(grid.least) - group.x[v];
    errors += group.weight[v] * error * error;
  }
  return sum(errors);
}

int nearest(float value, int least, int most) { return std::clamp(static_cast<int>(std::lrint(value)), least, most); }

struct EncodedGroup {
  int scale = 0, least = 0;  // of 6 bits
  Codes32 codes;
};

// Rounds the grid to multiples of `units` and tries the neighbouring ones, because rounding one moves the best other.
EncodedGroup encode_near(const Block8::Group& group, const Grid& grid, const Grid& units, float most) {
  const int scale = nearest(grid.scale * inverse_or_zero(units.scale), 0, kMost6Bits);
  const int least = nearest(grid.least * inverse_or_zero(units.least), 0, kMost6Bits);
  EncodedGroup best{};
  float lowest = std::numeric_limits<float>::infinity();
  for (int s = std::max(scale - 1, 0); s <= std::min(scale + 1, kMost6Bits); ++s) {
    for (int m = std::max(least - 1, 0); m <= std::min(least + 1, kMost6Bits); ++m) {
      EncodedGroup tried{.scale = s, .least = m, .codes = {}};
      const Grid rounded_grid{units.scale * static_cast<float>(s), units.least * static_cast<float>(m)};
      const float error = encode_group(group, rounded_grid, most, tried.codes);
      if (error < lowest) lowest = error, best = tried;
    }
  }
  return best;
}

// Scales and minimums of 6 bits in 12 bytes, as block_format.cpp reads them.
void put_group_scale(unsigned char* bytes, size_t group, const EncodedGroup& own) {
  const auto put = [&](size_t at, int bits) { bytes[at] = static_cast<unsigned char>(bytes[at] | bits); };
  if (group < 4) return put(group, own.scale), put(group + 4, own.least);
  put(group + 4, (own.scale & 15) | ((own.least & 15) << 4));
  put(group - 4, (own.scale >> 4) << 6);
  put(group, (own.least >> 4) << 6);
}

// `high`: place of a fifth bit for each element, or null.
void encode_groups(const float* x, unsigned char* block, unsigned char* low, unsigned char* high) {
  const Block8 values(x);
  const float most = high != nullptr ? 31 : 15;
  std::array<Grid, kGroupsOf32> grids;
  Grid largest;
  for (size_t g = 0; g < grids.size(); ++g) {
    grids[g] = best_grid(values.groups[g], most);
    largest = {std::max(largest.scale, grids[g].scale), std::max(largest.least, grids[g].least)};
  }
  std::fill(block, low + kSuperBlock / 2, static_cast<unsigned char>(0));
  const Grid units{values.put_unit(block, largest.scale / kMost6Bits),
                   values.put_unit(block + 2, largest.least / kMost6Bits)};
  for (size_t g = 0; g < grids.size(); ++g) {
    const EncodedGroup group = encode_near(values.groups[g], grids[g], units, most);
    put_group_scale(block + 4, g, group);
    for (size_t i = 0; i < Block8::kSize; ++i) {
      const int code = static_cast<int>(group.codes[i / kLanes][i % kLanes]);
      unsigned char& nibbles = low[kSmallBlock * (g / 2) + i];
      nibbles = static_cast<unsigned char>(nibbles | ((code & 15) << (4 * (g % 2))));
      if (high != nullptr) high[i] = static_cast<unsigned char>(high[i] | ((code >> 4) << g));
    }
  }
}

void encode_q4_k(const float* x, unsigned char* block) { encode_groups(x, block, block + 16, nullptr); }
void encode_q5_k(const float* x, unsigned char* block) { encode_groups(x, block, block + 48, block + 16); }

// --- Q6_K: sixteen groups of 16 with a signed scale of 8 bits each ---

constexpr int kGroupsOf16 = 16, kHalf6Bits = 32;
using Block16 = SuperBlock<kGroupsOf16>;
using Codes16 = std::array<Lanes, Block16::kVectors>;

Lanes codes_around_zero(const Lanes& x, float inverse) {
  return clamped(rounded(x * all(inverse)), -kHalf6Bits, kHalf6Bits - 1);
}

// The scale may be negative: the code of the extreme is near -32.
float best_scale(const Block16::Group& group) {
  const float extreme = group.largest > -group.least ? group.largest : group.least;
  if (extreme == 0) return 0;
  float best = 0, most_explained = 0;
  for (int step = -9; step <= 9; step += 3) {
    const float inverse = -(kHalf6Bits + 0.1F * static_cast<float>(step)) / extreme;
    Lanes qq{}, xq{};
    for (size_t v = 0; v < Block16::kVectors; ++v) {
      const Lanes code = codes_around_zero(group.x[v], inverse), weighted = group.weight[v] * code;
      qq += weighted * code, xq += weighted * group.x[v];
    }
    const float fit = sum(xq) / sum(qq), explained = sum(xq) * fit;
    if (explained > most_explained) most_explained = explained, best = fit;
  }
  return best;
}

float encode_group(const Block16::Group& group, float scale, Codes16& codes) {
  Lanes errors{};
  for (size_t v = 0; v < Block16::kVectors; ++v) {
    codes[v] = codes_around_zero(group.x[v], inverse_or_zero(scale));
    const Lanes error = codes[v] * all(scale) - group.x[v];
    errors += group.weight[v] * error * error;
  }
  return sum(errors);
}

// Returns the scale in `unit`s.
int encode_near(const Block16::Group& group, float scale, float unit, Codes16& codes) {
  const int middle = nearest(scale * inverse_or_zero(unit), -128, 127);
  int best = 0;
  float lowest = std::numeric_limits<float>::infinity();
  for (int s = std::max(middle - 1, -128); s <= std::min(middle + 1, 127); ++s) {
    Codes16 tried;
    const float error = encode_group(group, unit * static_cast<float>(s), tried);
    if (error < lowest) lowest = error, best = s, codes = tried;
  }
  return best;
}

void put_code6(unsigned char* block, size_t i, int code) {
  unsigned char *const low = block, *const high = block + 128;
  const size_t half = i / 128, within = i % 128;
  unsigned char &nibbles = low[64 * half + within % 64], &pairs = high[32 * half + within % 32];
  nibbles = static_cast<unsigned char>(nibbles | ((code & 15) << (4 * (within / 64))));
  pairs = static_cast<unsigned char>(pairs | ((code >> 4) << (2 * (within / 32))));
}

void encode_q6_k(const float* x, unsigned char* block) {
  const Block16 values(x);
  std::array<float, kGroupsOf16> scales;
  for (size_t g = 0; g < scales.size(); ++g) scales[g] = best_scale(values.groups[g]);
  std::fill_n(block, 210, static_cast<unsigned char>(0));
  const float unit = values.put_unit(block + 208, extreme_of(scales.data(), kGroupsOf16) / -128);
  for (size_t g = 0; g < scales.size(); ++g) {
    Codes16 codes;
    block[192 + g] = static_cast<unsigned char>(encode_near(values.groups[g], scales[g], unit, codes));
    for (size_t i = 0; i < Block16::kSize; ++i) {
      put_code6(block, g * Block16::kSize + i, static_cast<int>(codes[i / kLanes][i % kLanes]) + kHalf6Bits);
    }
  }
}

using Encode = void (*)(const float* x, unsigned char* block);
constexpr std::array<Encode, kNumBlockFormats> kEncode = {encode_q4_0, encode_q4_1, encode_q5_0, encode_q5_1,
                                                          encode_q8_0, encode_q4_k, encode_q5_k, encode_q6_k};

}  // namespace

std::optional<float> unquantizable(std::span<const float> values) {
  for (const float value : values)
    if (!(std::abs(value) <= kMostQuantizable)) return value;
  return std::nullopt;
}

void quantize(BlockFormat format, std::span<const float> values, std::span<unsigned char> blocks) {
  const BlockLayout& layout = layout_of(format);
  const size_t elements = static_cast<size_t>(layout.elements), bytes = static_cast<size_t>(layout.bytes);
  const size_t count = values.size() / elements;
  HR_REQUIRE(count * elements == values.size() && count * bytes == blocks.size(), ErrorCode::kInvalidArgument,
             "quantize: ", values.size(), " values for ", blocks.size(), " bytes of ", layout.name, ", expected ",
             layout.bytes, " bytes for ", layout.elements, " values");
  const std::optional<float> refused = unquantizable(values);
  HR_REQUIRE(!refused, ErrorCode::kInvalidArgument, "quantize: a value is ", *refused, ", expected at most ",
             kMostQuantizable, " in magnitude");
  const Encode encode = kEncode[static_cast<size_t>(format)];
  for (size_t i = 0; i < count; ++i) encode(values.data() + i * elements, blocks.data() + i * bytes);
}

}  // namespace headrace
