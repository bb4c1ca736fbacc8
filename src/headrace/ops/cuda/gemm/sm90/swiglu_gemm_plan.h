// Chooses the kernel of SwiGLU, silu(gate) * up, for large M in default mode on sm_90. Pure: shapes in, choice out.
#pragma once
#include <array>
#include <cstdint>

namespace headrace::cuda {

struct SwigluGemmPlan {
  enum class Kernel : uint8_t {
    kParts,    // two cuBLASLt GEMMs, then silu(gate) * up
    kOrdered,  // batch_invariant_gemm.cuh: 128 rows x 96 columns a tile
    kWide,     // swiglu_gemm.cuh: `width` rows x 128 columns a tile
  } kernel = Kernel::kParts;
  int width = 0;

  static constexpr int kColumns = 128, kOrderedRows = 128, kOrderedColumns = 96;
  static constexpr std::array kWidths = {96, 112, 128, 144, 160, 176};
};

// CTAs process tiles in waves, so a plan costs its waves times the time of one. The nanoseconds of a wave are fits to
// measurements on an H200: docs/design/gemm.md.
constexpr SwigluGemmPlan plan_swiglu_gemm(int64_t rows, int64_t out, int64_t in, int num_sms) {
  using Kernel = SwigluGemmPlan::Kernel;
  constexpr int64_t kFewest = 64;  // cuBLASLt is as fast with fewer
  SwigluGemmPlan best;
  int64_t least = 0, capacity = 0, rounds = 0;  // of the best; capacity: results that its waves have room for
  const auto consider = [&](Kernel kernel, int64_t width, int64_t columns, int64_t nanoseconds) {
    const int64_t tiles = (rows + width - 1) / width * ((out + columns - 1) / columns);
    const int64_t needed = (tiles + num_sms - 1) / num_sms;
    if (best.kernel != Kernel::kParts && needed * nanoseconds >= least) return;
    least = needed * nanoseconds, rounds = needed, capacity = needed * num_sms * width * columns;
    best = {.kernel = kernel, .width = kernel == Kernel::kWide ? static_cast<int>(width) : 0};
  };
  if (rows < kFewest || num_sms < 1) return {};
  consider(Kernel::kOrdered, SwigluGemmPlan::kOrderedRows, SwigluGemmPlan::kOrderedColumns, 1700 + in * 78 / 10);
  for (const int width : SwigluGemmPlan::kWidths) {
    consider(Kernel::kWide, width, SwigluGemmPlan::kColumns, in * (1270 + 74 * width) / 1000);
  }
  // A second wave that is nearly empty: cuBLASLt has smaller tiles.
  return rounds > 1 && rows * out * 5 < capacity * 3 ? SwigluGemmPlan{} : best;
}

}  // namespace headrace::cuda
