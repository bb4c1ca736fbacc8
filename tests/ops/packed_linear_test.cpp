// Products with packed weights, of every kernel set: beside a reference in 64-bit integers, bit for bit, and beside the
// product of dequantised weights in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "headrace/ops/reference/reference_ops.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random_blocks.h"
#include "support/tolerances.h"

namespace headrace::testing_support {
namespace {

constexpr int64_t kGroup = kGroupColumns;

// A row of x as the definition of packed_linear rounds it.
struct RoundedRow {
  std::vector<int64_t> codes;
  std::vector<float> scales, scaled_sums;  // of groups
};
RoundedRow rounded(const float* x, int64_t in) {
  RoundedRow row{.codes = std::vector<int64_t>(static_cast<size_t>(in)), .scales = {}, .scaled_sums = {}};
  for (int64_t first = 0; first < in; first += kGroup) {
    float amax = 0;
    bool is_finite = true;
    for (int64_t i = first; i < first + kGroup; ++i) {
      amax = std::max(amax, std::abs(x[i]));
      is_finite = is_finite && std::isfinite(x[i]);
    }
    const bool is_zero = !is_finite || amax < 0x1p-100F;
    int64_t sum = 0;
    for (int64_t i = first; i < first + kGroup && !is_zero; ++i)
      sum += row.codes[static_cast<size_t>(i)] = std::llrint(x[i] * (127.0F / amax));
    row.scales.push_back(!is_finite ? NAN : is_zero ? 0 : amax / 127.0F);
    row.scaled_sums.push_back(row.scales.back() * static_cast<float>(sum));
  }
  return row;
}

// Weights in numbers: integers are the values of blocks with a scale of 1 and no minimum, and so on.
struct WeightNumbers {
  BlockFormat format;
  std::vector<float> integers, minima;  // of elements
  std::vector<float> scales, factors;   // of blocks: the scale, and that of the minima

  WeightNumbers(BlockFormat f, const Bytes& blocks) : format(f) {
    Bytes ones = blocks, only_minima = blocks;
    set_scales(format, ones, 1, 0);
    integers = dequantized(format, ones);
    set_scales(format, only_minima, 0, 1);
    minima = dequantized(format, only_minima);
    const size_t at = format == BlockFormat::kQ6_K ? 208 : 0;
    for (size_t i = 0; i < blocks.size(); i += static_cast<size_t>(layout_of(format).bytes)) {
      scales.push_back(half_at(&blocks[i + at]));
      factors.push_back(half_at(&blocks[i + 2]));
    }
  }
  static float half_at(const unsigned char* bytes) {
    F16 half;
    std::memcpy(&half.bits, bytes, sizeof half.bits);
    return static_cast<float>(half);
  }

  // Element of y by the definition; `n`: the row of weights.
  float product(const RoundedRow& x, int64_t n) const {
    const auto in = std::ssize(x.codes);
    const int64_t size = layout_of(format).elements;
    float y = 0, scaled = 0, least = 0;
    for (int64_t i = 0; i < in; i += kGroup) {
      const auto group = static_cast<size_t>(i / kGroup), block = static_cast<size_t>((n * in + i) / size);
      int64_t sum = 0;
      for (int64_t j = i; j < i + kGroup; ++j)
        sum += static_cast<int64_t>(integers[static_cast<size_t>(n * in + j)]) * x.codes[static_cast<size_t>(j)];
      const float minimum = minima[static_cast<size_t>(n * in + i)];
      if (size == kGroup) {
        y = std::fma(static_cast<float>(sum), scales[block] * x.scales[group], y);
        if (has_minimum(format)) y = std::fma(factors[block], x.scaled_sums[group], y);
        continue;
      }
      scaled = std::fma(static_cast<float>(sum), x.scales[group], scaled);
      if (has_minimum(format)) least = std::fma(-minimum, x.scaled_sums[group], least);
      if ((i + kGroup) % size != 0) continue;
      y = std::fma(scales[block], scaled, y);
      if (has_minimum(format)) y = std::fma(-factors[block], least, y);
      scaled = least = 0;
    }
    return y;
  }
};

struct PackedProblem {
  PackedProblem(Random& random, BlockFormat format, int64_t num_rows, int64_t out, int64_t in)
      : PackedProblem(random_tensor(random, DType::kF32, {num_rows, in}), format, out,
                      random_blocks(random, format, out, in)) {}
  PackedProblem(const Tensor& inputs, BlockFormat format, int64_t out, const Bytes& weights)
      : rows(inputs.dim(0)), x(copy_of(inputs)), blocks(weights), weight(format, out, inputs.dim(1), weights) {}

  LinearArgs args(const TensorView& y) const { return {.x = x, .weight = WeightView(weight.matrix), .y = y}; }
  Tensor output() const {
    Tensor y(DType::kF32, {rows, weight.matrix.out});
    poison(y);
    return y;
  }
  // By the definition, bit for bit.
  Tensor expected() const {
    const WeightNumbers numbers(weight.matrix.format, blocks);
    Tensor y = output();
    for (int64_t m = 0; m < rows; ++m) {
      const RoundedRow row = rounded(x.data_as<float>() + m * weight.matrix.in, weight.matrix.in);
      for (int64_t n = 0; n < weight.matrix.out; ++n)
        y.data_as<float>()[m * weight.matrix.out + n] = numbers.product(row, n);
    }
    return y;
  }
  std::string name() const {
    return str(layout_of(weight.matrix.format).name, " ", rows, "x", weight.matrix.in, "x", weight.matrix.out);
  }

  int64_t rows;
  Tensor x;
  Bytes blocks;
  OwnedMatrix weight;
};

class PackedLinear : public KernelSetTest {
 protected:
  Tensor product(const PackedProblem& problem, const OpContext& context) const {
    Tensor y = problem.output();
    ops().linear(problem.args(y), context);
    return y;
  }
  Random random_{5};
};

TEST_P(PackedLinear, HasTheBitsOfIntegerSums) {
  for (const BlockFormat format : kBlockFormats) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 12, 17, 40, 64, 70}) {
      for (const int64_t out : {1, 7, 8, 9, 16, 100}) {
        const int64_t in = layout_of(format).elements * (1 + (rows + out) % 11);
        const PackedProblem problem(random_, format, rows, out, in);
        EXPECT_TRUE(bit_equal(product(problem, {.threads = 1 + static_cast<int>(rows % 3)}), problem.expected()))
            << problem.name();
      }
    }
  }
}

TEST_P(PackedLinear, LongRowsHaveTheBitsOfIntegerSumsWithAnyNumberOfThreads) {
  for (const BlockFormat format : kBlockFormats) {
    for (const int64_t rows : {1, 3, 17}) {
      const PackedProblem problem(random_, format, rows, 67, 2048);
      const Tensor want = problem.expected();
      for (const int threads : {1, 2, 3})
        EXPECT_TRUE(bit_equal(product(problem, {.threads = threads}), want)) << problem.name();
    }
  }
}

// Every sum that 16 bits hold within a kernel reaches its bound: all codes and steps are the largest, or the smallest.
TEST_P(PackedLinear, LargestCodesDoNotSaturate) {
  constexpr int64_t kIn = 512;
  for (const BlockFormat format : kBlockFormats) {
    for (const unsigned char byte : {0xff, 0x7f, 0x80, 0x00}) {
      const int64_t bytes = kIn / layout_of(format).elements * layout_of(format).bytes;
      Bytes blocks(static_cast<size_t>(3 * bytes), byte);
      set_scales(format, blocks, 0.5F, 0.25F);
      for (const int64_t rows : {1, 4, 9}) {
        Tensor x(DType::kF32, {rows, kIn});
        for (int64_t i = 0; i < rows * kIn; ++i) x.data_as<float>()[i] = i / kIn % 3 == 2 && i % 2 == 1 ? -3.0F : 3.0F;
        for (int64_t i = 0; i < kIn; ++i) x.data_as<float>()[i] *= rows == 4 ? -1 : 1;
        const PackedProblem problem(x, format, 3, blocks);
        EXPECT_TRUE(bit_equal(product(problem, {}), problem.expected())) << problem.name() << " " << int{byte};
      }
    }
  }
}

// Relative L2.
double error_of(const Tensor& got, const Tensor& want) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < want.numel(); ++i) {
    error += std::pow(element_as_double(got, i) - element_as_double(want, i), 2);
    norm += std::pow(element_as_double(want, i), 2);
  }
  return std::sqrt(error / norm);  // NaN if one is
}

TEST_P(PackedLinear, IsWithinOnePercentOfTheOracle) {
  for (const BlockFormat format : kBlockFormats) {
    for (const int64_t rows : {1, 5, 20}) {
      const PackedProblem problem(random_, format, rows, 100, 1024);
      const Tensor want = problem.output();
      reference::linear(problem.args(want), {});
      EXPECT_LT(error_of(product(problem, {.threads = 2}), want), 0.01) << problem.name();
    }
  }
}

TEST_P(PackedLinear, OfFloatActivationsMatchesTheOracle) {
  const std::vector<int32_t> order = {1, 0};
  for (const BlockFormat format : kBlockFormats) {
    for (const int64_t rows : {1, 5, 20}) {
      const Tensor x = random_tensor(random_, DType::kF32, {rows, 512}, 0.01);  // then products are of size 1
      PackedProblem problem(x, format, 300, random_blocks(random_, format, 300, 512));
      if (rows == 5) problem.weight.matrix.column_order = order.data(), problem.weight.matrix.column_unit = 256;
      const Tensor bias = random_tensor(random_, DType::kBF16, {300}), want = problem.output(), got = problem.output();
      LinearArgs args = problem.args(want);
      args.bias = bias;
      reference::linear(args, {});
      args.y = got;
      ops().linear(args, {.threads = 2, .activations = Activations::kFloat});
      EXPECT_LT(error_of(got, want), 1e-5) << problem.name();
      EXPECT_TRUE(all_close(got, want, dense_tolerance(DType::kF32))) << problem.name();
    }
  }
}

TEST_P(PackedLinear, ARowOfFloatActivationsDoesNotDependOnTheBatchInStrictMode) {
  const OpContext context{.threads = 2, .determinism = Determinism::kStrict, .activations = Activations::kFloat};
  const PackedProblem all(random_, BlockFormat::kQ4_K, 20, 35, 512);
  const Tensor batch = product(all, context);
  for (const auto& [first, last] : {std::pair{0, 1}, {3, 15}}) {
    const PackedProblem part(copy_of(all.x.view().slice(first, last)), BlockFormat::kQ4_K, 35, all.blocks);
    EXPECT_TRUE(bit_equal(product(part, context), batch.view().slice(first, last))) << part.name();
  }
}

TEST_P(PackedLinear, EmbeddingHasTheBitsOfTheOracle) {
  for (const BlockFormat format : kBlockFormats) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const PackedProblem table(random_, format, 1, 50, 256);
      const Tensor ids(DType::kI32, {3}), want(type, {3, 256}), got(type, {3, 256});
      for (int64_t t = 0; t < 3; ++t) set_element(ids, t, static_cast<double>(49 - 16 * t));
      poison(got);
      reference::embedding({.ids = ids, .table = WeightView(table.weight.matrix), .out = want}, {});
      ops().embedding({.ids = ids, .table = WeightView(table.weight.matrix), .out = got}, {.threads = 2});
      EXPECT_TRUE(bit_equal(got, want)) << table.name();
    }
  }
}

TEST_P(PackedLinear, ARowDoesNotDependOnTheBatch) {
  for (const BlockFormat format : kBlockFormats) {
    const PackedProblem all(random_, format, 70, 35, 512);
    const Tensor batch = product(all, {.threads = 2});
    for (const auto& [first, last] : {std::pair{0, 1}, {3, 5}, {60, 64}, {63, 70}}) {
      const PackedProblem part(copy_of(all.x.view().slice(first, last)), format, 35, all.blocks);
      EXPECT_TRUE(bit_equal(product(part, {}), batch.view().slice(first, last))) << part.name();
    }
  }
}

TEST_P(PackedLinear, NonFiniteInputsDoNotVanish) {
  for (const BlockFormat format : kBlockFormats) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const int64_t rows : {3, 9}) {
        const PackedProblem problem(random_, format, rows, 20, 512);
        const Tensor clean = product(problem, {});
        problem.x.data_as<float>()[512 + 300] = bad;
        const Tensor y = product(problem, {});
        for (int64_t n = 0; n < 20; ++n) EXPECT_FALSE(std::isfinite(y.data_as<float>()[20 + n])) << problem.name();
        EXPECT_TRUE(bit_equal(y.view().slice(0, 1), clean.view().slice(0, 1)));
        EXPECT_TRUE(bit_equal(y.view().slice(2, rows), clean.view().slice(2, rows)));
      }
    }
  }
}

TEST_P(PackedLinear, TinyAndHugeInputsKeepTheirSize) {
  for (const float size : {1e-28F, 1e30F}) {
    PackedProblem problem(random_, BlockFormat::kQ8_0, 1, 20, 64);
    for (int64_t i = 0; i < 64; ++i) problem.x.data_as<float>()[i] *= size;
    const Tensor y = product(problem, {});
    EXPECT_TRUE(bit_equal(y, problem.expected()));
    EXPECT_GT(std::abs(y.data_as<float>()[0]), 1e-5F * size);
  }
  PackedProblem nothing(random_, BlockFormat::kQ8_0, 1, 20, 64);
  for (int64_t i = 0; i < 64; ++i) nothing.x.data_as<float>()[i] = i % 2 == 0 ? 1e-42F : 0.0F;
  EXPECT_TRUE(bit_equal(product(nothing, {}), nothing.expected()));
}

TEST_P(PackedLinear, ReadsStridedRowsOfEveryDtypeAndAddsABias) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t rows : {1, 9}) {
      const Tensor wide = random_tensor(random_, type, {rows, 320}), bias = random_tensor(random_, type, {20});
      const TensorView part = wide.view().narrow(1, 32, 288);
      Tensor x(DType::kF32, {rows, 256});
      for (int64_t i = 0; i < x.numel(); ++i) set_element(x, i, element_as_double(part, i));
      const PackedProblem problem(x, BlockFormat::kQ4_K, 20, random_blocks(random_, BlockFormat::kQ4_K, 20, 256));
      const Tensor y(type, {rows, 24}), want(type, {rows, 24}), exact = problem.expected();
      poison(y), poison(want);
      LinearArgs args = problem.args(y.view().narrow(1, 2, 22));
      args.x = part;
      args.bias = bias;
      ops().linear(args, {});
      for (int64_t i = 0; i < exact.numel(); ++i) {
        const float b = static_cast<float>(element_as_double(bias, i % 20));
        set_element(want.view().narrow(1, 2, 22), i, exact.data_as<float>()[i] + b);
      }
      EXPECT_TRUE(bit_equal(y, want)) << name_of(type) << " " << rows;
    }
  }
}

TEST_P(PackedLinear, ReadsUnitsOfColumnsInTheirOrder) {
  const std::vector<int32_t> order = {2, 0, 3, 1};
  for (const BlockFormat format : {BlockFormat::kQ8_0, BlockFormat::kQ6_K}) {
    for (const int64_t rows : {1, 9}) {
      PackedProblem problem(random_, format, rows, 20, 512);
      Tensor reordered = copy_of(problem.x);
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t k = 0; k < 512; ++k)
          reordered.data_as<float>()[m * 512 + k] =
              problem.x.data_as<float>()[m * 512 + order[static_cast<size_t>(k / 128)] * 128 + k % 128];
      }
      problem.weight.matrix.column_order = order.data();
      problem.weight.matrix.column_unit = 128;
      const PackedProblem plain(reordered, format, 20, problem.blocks);
      EXPECT_TRUE(bit_equal(product(problem, {.threads = 2}), product(plain, {.threads = 2})));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, PackedLinear, testing::Values("portable", "avx2", "avx512", "avx512bf16", "amx"),
                         [](const auto& set) { return set.param; });

}  // namespace
}  // namespace headrace::testing_support
