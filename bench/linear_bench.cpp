#include "bench/linear_bench.h"

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "bench/limit_beside.h"
#include "bench/measured_limits.h"
#include "bench/random_inputs.h"
#include "headrace/core/packed_matrix.h"
#include "headrace/core/parallel.h"

namespace headrace::bench {
namespace {

constexpr int64_t kRotationBytes = int64_t{1} << 30, kFewRows = 8;

struct WeightShape {
  int64_t out, in;
};
constexpr std::array<WeightShape, 4> kShapes = {{{3072, 1024}, {1024, 3072}, {1024, 2048}, {151936, 1024}}};

// Weights of one shape: blocks of a format, or bf16. `copies` of them lie one after another.
struct RotatingWeights {
  RotatingWeights(std::optional<BlockFormat> block_format, WeightShape matrix, int threads)
      : format(block_format),
        shape(matrix),
        bytes(format ? packed_bytes(*format, shape.out, shape.in) : 2 * shape.out * shape.in),
        copies(kRotationBytes / bytes + 1),
        memory(DType::kU8, {copies * bytes}) {
    const Tensor first = format ? packed_values() : normal_values(DType::kBF16, {shape.out, shape.in}, 0, 0.02);
    parallel_for(threads, copies,
                 [&](int64_t copy) { std::memcpy(at(copy), first.data(), static_cast<size_t>(bytes)); });
  }
  uint8_t* at(int64_t copy) const { return memory.data_as<uint8_t>() + copy % copies * bytes; }
  WeightView view(int64_t copy) const {
    if (!format) return TensorView(at(copy), DType::kBF16, {shape.out, shape.in});
    return WeightView(PackedMatrix{.format = *format, .out = shape.out, .in = shape.in, .data = at(copy)});
  }
  std::string name() const { return std::string(format ? layout_of(*format).name : "bf16"); }

  std::optional<BlockFormat> format;
  WeightShape shape;
  int64_t bytes, copies;
  Tensor memory;

 private:
  Tensor packed_values() const;
};

// Rows of blocks: random codes, scales of 2^-10.
Tensor random_block_rows(BlockFormat format, WeightShape shape) {
  constexpr uint16_t kScale = 0x1400;  // float16
  const BlockLayout& layout = layout_of(format);
  Tensor blocks(DType::kU8, {shape.out * shape.in / layout.elements, layout.bytes});
  const std::vector<int32_t> codes = random_tokens(blocks.numel(), 256, 1);
  auto* const bytes = blocks.data_as<uint8_t>();
  for (size_t i = 0; i < codes.size(); ++i) bytes[i] = static_cast<uint8_t>(codes[i]);
  for (int64_t block = 0; block < blocks.dim(0); ++block) {
    const int64_t scale_at = format == BlockFormat::kQ6_K ? 208 : 0;
    std::memcpy(bytes + block * layout.bytes + scale_at, &kScale, sizeof kScale);
    if (format == BlockFormat::kQ4_K) std::memcpy(bytes + block * layout.bytes + 2, &kScale, sizeof kScale);
  }
  return blocks;
}

Tensor RotatingWeights::packed_values() const {
  const Tensor blocks = random_block_rows(*format, shape);
  Tensor packed(DType::kU8, {bytes});
  pack_rows({.format = *format, .out = shape.out, .in = shape.in}, 0,
            {blocks.data_as<uint8_t>(), static_cast<size_t>(blocks.bytes())}, packed.data_as<uint8_t>());
  return packed;
}

Result products(const BenchContext& context, const RotatingWeights& weights, int64_t rows) {
  const Tensor x = normal_values(DType::kBF16, {rows, weights.shape.in});
  const Tensor y(DType::kBF16, {rows, weights.shape.out});
  const int64_t calls = rows <= kFewRows ? weights.copies : 4;
  const double seconds = median_seconds(5, [&] {
    for (int64_t copy = 0; copy < calls; ++copy)
      context.ops.linear({.x = x, .weight = weights.view(copy), .y = y}, context.op);
  });
  const std::string sizes =
      std::to_string(rows) + " x " + std::to_string(weights.shape.in) + " x " + std::to_string(weights.shape.out);
  return {.name = "linear " + weights.name() + " " + sizes,
          .median_s = seconds / static_cast<double>(calls),
          .bytes = static_cast<double>(weights.bytes),
          .flops = 2.0 * static_cast<double>(rows * weights.shape.in * weights.shape.out),
          .limit = rows <= kFewRows ? Result::Limit::kRead : Result::Limit::kMatrix,
          .limit_rate = std::nullopt};
}

// A file of Q4_K in matrices of one shape, to memory that was written before.
Result packing(int threads) {
  constexpr WeightShape kShape{1024, 3072};
  constexpr int64_t kMatrices = 512, kPart = 4 * kPackedRows;
  const Tensor matrix = random_block_rows(BlockFormat::kQ4_K, kShape);
  const Tensor rows(DType::kU8, {kMatrices, matrix.bytes()});
  parallel_for(threads, kMatrices, [&](int64_t i) {
    std::memcpy(rows.view().select(i).data(), matrix.data(), static_cast<size_t>(matrix.bytes()));
  });
  const PackedMatrix shape{.format = BlockFormat::kQ4_K, .out = kMatrices * kShape.out, .in = kShape.in};
  const Tensor packed = Tensor::zeros(DType::kU8, {packed_bytes(shape.format, shape.out, shape.in)});
  const int64_t part_bytes = rows.bytes() / shape.out * kPart;
  const double seconds = median_seconds(3, [&] {
    parallel_for(threads, shape.out / kPart, [&](int64_t part) {
      pack_rows(shape, part * kPart, {rows.data_as<uint8_t>() + part * part_bytes, static_cast<size_t>(part_bytes)},
                packed.data_as<uint8_t>());
    });
  });
  return {.name = "pack Q4_K 512 x 1024 x 3072",
          .median_s = seconds,
          .bytes = static_cast<double>(rows.bytes() + packed.bytes()),
          .limit = Result::Limit::kReadWrite};
}

}  // namespace

void run_linear_bench(const BenchContext& context, const Report& report) {
  const int threads = context.op.threads;
  report(LimitBeside([threads] { return read_write_bandwidth(threads); }).counted(packing(threads)));
  LimitBeside read([threads] { return prefetched_read_bandwidth(threads); });
  for (const std::optional<BlockFormat> format :
       {std::optional<BlockFormat>(), std::optional(BlockFormat::kQ8_0), std::optional(BlockFormat::kQ6_K),
        std::optional(BlockFormat::kQ4_K)}) {
    for (const WeightShape& shape : kShapes) {
      const RotatingWeights weights(format, shape, threads);
      for (const int64_t rows : {1, 2, 4, 8}) report(read.counted(products(context, weights, rows)));
      if (shape.out > 100000) continue;  // of a prompt's rows a head takes one
      for (const int64_t rows : {128, 512}) report(products(context, weights, rows));
    }
  }
}

}  // namespace headrace::bench
