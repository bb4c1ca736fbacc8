// Which products of a few rows fit a device's shared memory.
#include "headrace/ops/cuda/gemm/sm80/skinny_gemm_plan.h"

#include <gtest/gtest.h>

#include "headrace/ops/cuda/limits.h"

namespace headrace::cuda {
namespace {

constexpr int64_t kHopper = 227 << 10, kA100 = 163 << 10;

// few_rows_of_hopper: 227 KiB were taken for granted on every device.
TEST(SkinnyGemmShape, TakesNoMoreThanTheDeviceAllowsABlock) {
  const SkinnyGemmShape wide{.rows = 16, .in = 4096}, narrow{.rows = 16, .in = 2048};
  EXPECT_EQ(wide.rows_bytes(), 16 * (4096 + 32) * 2);
  EXPECT_EQ(wide.parts_bytes(), 8 * 16 * 8 * 4);
  EXPECT_TRUE(wide.fits(kHopper));
  EXPECT_TRUE(wide.fits(kA100));
  EXPECT_FALSE(wide.fits(kLeastSharedBytes));
  EXPECT_TRUE(narrow.fits(kLeastSharedBytes));
  const int64_t needed = wide.rows_bytes() + 2 * wide.parts_bytes();
  EXPECT_TRUE(wide.fits(needed));
  EXPECT_FALSE(wide.fits(needed - 1));
}

// The kernel for many rows of sums has twice as many in strict mode, and twice as many of two weights.
TEST(SkinnyGemmShape, CountsTheSumsOfItsWarpsAndTheNormsFactors) {
  const SkinnyGemmShape few{.rows = 8, .in = 1024};
  EXPECT_EQ((SkinnyGemmShape{.rows = 8, .in = 1024, .combined = true, .strict = true}.parts_bytes()),
            4 * few.parts_bytes());
  EXPECT_EQ((SkinnyGemmShape{.rows = 9, .in = 1024}.parts_bytes()), 2 * few.parts_bytes());
  EXPECT_EQ((SkinnyGemmShape{.rows = 8, .in = 1024, .normed = true}.rows_bytes()), few.rows_bytes() + 1024 * 4);
}

// What was measured on Hopper still goes there: 5632 elements of 16 rows, or as many of fewer; 5120 beside a norm.
TEST(SkinnyGemmShape, FitsHopperAtTheSizesThatAreTaken) {
  for (int64_t rows = 1; rows <= 16; ++rows) {
    for (const bool combined : {false, true}) {
      for (const bool strict : {false, true}) {
        EXPECT_TRUE((SkinnyGemmShape{.rows = rows, .in = 5632 * 16 / rows, .combined = combined, .strict = strict})
                        .fits(kHopper))
            << rows;
      }
      if (rows < 8) continue;  // longer rows than models have
      EXPECT_TRUE(
          (SkinnyGemmShape{.rows = rows, .in = 5120 * 16 / rows, .normed = true, .combined = combined}).fits(kHopper))
          << rows;
    }
  }
}

TEST(SkinnyGemmShape, HasAsManyBlocksAsAMultiprocessorsMemoryHolds) {
  const SkinnyGemmShape shape{.rows = 8, .in = 2048};
  const int64_t one = shape.rows_bytes() + 2 * shape.parts_bytes() + 1024;
  EXPECT_EQ(shape.blocks(3 * one, 2), 3);
  EXPECT_EQ(shape.blocks(3 * one - 1, 2), 2);
  EXPECT_EQ(shape.blocks(0, 2), 1);
}

// 132 SMs: four CTAs of two tiles fit on one where K is short, fewer the more weights a CTA holds.
TEST(Gemv, TakesWhatAllSMsHoldInRegistersAtOnce) {
  using skinny::gemv_passes, skinny::tiles_of;
  EXPECT_EQ(gemv_passes(1024, tiles_of(1024), false, 132), 1);
  EXPECT_EQ(gemv_passes(2048, tiles_of(1024), false, 132), 2);
  EXPECT_EQ(gemv_passes(4096, tiles_of(1024), false, 132), 4);
  EXPECT_EQ(gemv_passes(4104, tiles_of(1024), false, 132), 0);  // longer than four passes
  EXPECT_EQ(gemv_passes(2048, 132 * 4, false, 132), 2);
  EXPECT_EQ(gemv_passes(2048, 132 * 4 + 1, false, 132), 0);
  EXPECT_EQ(gemv_passes(2048, 132 * 2, true, 132), 2);  // SwiGLU: twice the registers
  EXPECT_EQ(gemv_passes(2048, 132 * 2 + 1, true, 132), 0);
}

}  // namespace
}  // namespace headrace::cuda
