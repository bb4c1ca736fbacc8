#include "headrace/cache/kv_pool.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/refusal.h"

namespace headrace {
namespace {

TEST(KVPool, W08_OnlyAttentionLayersHaveKeysAndValues) {
  const KVPool pool({.groups = {{{2, 8, 8}, {3, 7}}}, .num_pages = 4, .page_size = 16, .dtype = DType::kF32});
  EXPECT_TRUE(pool.has_layer(3));
  EXPECT_FALSE(pool.has_layer(0));
  EXPECT_EQ(pool.mem_bytes(), 2 * 2 * 5 * 2 * 16 * 8 * 4);  // layers, K and V, pages, heads, slots, dim, bytes
  EXPECT_THROW(pool.layer(0), Error);
}

TEST(KVPool, W29_EverySlotOfEveryPageIsInsideThePool) {
  for (const int32_t page_size : {1, 16, 32, 64, 128, 256}) {
    const KVPool pool({.groups = {{{1, 4, 4}, {0}}}, .num_pages = 4, .page_size = page_size, .dtype = DType::kBF16});
    const int64_t last_slot = int64_t{pool.num_pages()} * page_size + page_size - 1;
    EXPECT_LT(last_slot, pool.layer(0).num_pages() * page_size);
  }
}

TEST(KVPool, LayersOfUnlikeShapeLiveSideBySide) {
  const KVPool pool({.groups = {{{8, 256, 256}, {0, 1}}, {{2, 512, 128}, {2}}}, .num_pages = 1, .page_size = 1});
  EXPECT_EQ(pool.layer(1).head_dim(), 256);
  EXPECT_EQ(pool.layer(2).k.shape(), (Shape{2, 2, 1, 512}));
  EXPECT_EQ(pool.layer(2).v.shape(), (Shape{2, 2, 1, 128}));
}

TEST(KVPool, B21_EachGroupOfLayersHasPagesOfItsOwnSize) {
  constexpr int64_t kPages = 3, kPageSize = 16, kBytes = 2;  // page 0 among them; bf16
  const KVPool pool({.groups = {{{8, 256, 256}, {0, 1, 2, 3, 4}}, {{2, 512, 512}, {5}}},
                     .num_pages = kPages - 1,
                     .page_size = kPageSize,
                     .dtype = DType::kBF16});
  EXPECT_EQ(pool.mem_bytes(), 2 * kPages * kPageSize * kBytes * (5 * 8 * 256 + 2 * 512));
}

TEST(KVPool, ASharingLayerReadsItsSource) {
  const KVPool pool({.groups = {{{1, 4, 4}, {0}}}, .num_pages = 1, .page_size = 1, .shared_layers = {{5, 0}}});
  EXPECT_EQ(pool.layer(5).k.data(), pool.layer(0).k.data());
  EXPECT_THROW(KVPool({.groups = {{{1, 4, 4}, {0}}}, .shared_layers = {{5, 9}}}), Error);
}

TEST(KVPool, ATokenMajorPoolHandsOutTheSameShapeWithOtherStrides) {
  const KVPool pool({.groups = {{{3, 4, 8}, {0}}}, .num_pages = 2, .page_size = 16, .layout = KVLayout::kTokenMajor});
  EXPECT_EQ(pool.layer(0).k.shape(), (Shape{3, 3, 16, 4}));
  EXPECT_EQ(pool.layer(0).k.strides(), (Shape{16 * 3 * 4, 4, 3 * 4, 1}));
  EXPECT_EQ(pool.layer(0).v.strides(), (Shape{16 * 3 * 8, 8, 3 * 8, 1}));
  EXPECT_EQ(pool.layer(0).page_size(), 16);
}

TEST(KVPool, FP8TakesAByteForANumberAndHandsOutEachLayersScales) {
  const KVPoolConfig config = {.groups = {{{2, 8, 8}, {0, 1}}},
                               .num_pages = 4,
                               .page_size = 16,
                               .dtype = DType::kE4M3,
                               .shared_layers = {{5, 1}},
                               .scales = {{1, 0.5f, 2.0f}}};
  const KVPool pool(config);
  EXPECT_EQ(pool.mem_bytes(), 2 * 2 * 5 * 2 * 16 * 8);  // layers, K and V, pages, heads, slots, dim
  EXPECT_EQ(pool.layer(0).k_scale, 1);
  EXPECT_EQ(pool.layer(1).k_scale, 0.5f);
  EXPECT_EQ(pool.layer(5).v_scale, 2.0f);
  KVPoolConfig in_floats = config;
  in_floats.dtype = DType::kBF16;
  EXPECT_EQ(KVPool(in_floats).layer(1).k_scale, 1) << "scales are for 8-bit pools";
}

TEST(KVPool, Int8HasAScalePerTokenAndHeadInEitherOrder) {
  KVPoolConfig config = {.groups = {{{2, 8, 24}, {0, 1}}},
                         .num_pages = 4,
                         .page_size = 16,
                         .dtype = DType::kI8,
                         .shared_layers = {{5, 1}},
                         .scales = {{1, 0.5f, 2.0f}}};
  for (const KVLayout layout : {KVLayout::kHeadMajor, KVLayout::kTokenMajor}) {
    config.layout = layout;
    const KVPool pool(config);
    // Layers, pages, heads, slots: numbers and two scales.
    EXPECT_EQ(pool.mem_bytes(), 2 * 5 * 2 * 16 * (8 + 24 + 2 * 4));
    EXPECT_EQ(KVPool::bytes_for(config), pool.mem_bytes());
    const KVLayerView kv = pool.layer(1);
    EXPECT_EQ(kv.k_token_scales.shape(), (Shape{5, 2, 16}));
    EXPECT_EQ(kv.v_token_scales.dtype(), DType::kF32);
    EXPECT_EQ(kv.k_token_scales.strides(), layout == KVLayout::kHeadMajor ? (Shape{32, 16, 1}) : (Shape{32, 1, 2}));
    EXPECT_NE(kv.k_token_scales.data(), kv.v_token_scales.data());
    EXPECT_EQ(pool.layer(5).v_token_scales.data(), kv.v_token_scales.data());
    EXPECT_EQ(kv.k_scale, 1) << "scales of layers are for FP8";
  }
  config.dtype = DType::kE4M3;
  EXPECT_FALSE(KVPool(config).layer(1).k_token_scales);
}

TEST(KVPool, Int8IsForACPU) {
  EXPECT_NO_THROW(KVPool::check_dtype_on({}, DType::kI8));
  EXPECT_NO_THROW(KVPool::check_dtype_on({DeviceType::kCUDA, 1}, DType::kE4M3));
  const auto refusal = testing_support::refusal_of([] { KVPool::check_dtype_on({DeviceType::kCUDA, 1}, DType::kI8); });
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported);
  EXPECT_EQ(refusal.sentence,
            "keys and values in int8 run on a CPU alone, not on cuda:1; expected float32, bfloat16, float16 or "
            "float8_e4m3fn there");
}

TEST(KVPool, RefusesWhatItCannotHold) {
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::infinity()}) {
    EXPECT_THROW(KVPool({.groups = {{{1, 4, 4}, {0}}}, .dtype = DType::kE4M3, .scales = {{0, 1, scale}}}), Error);
  }
  EXPECT_THROW(KVPool({.groups = {{{1, 4, 4}, {0}}}, .dtype = DType::kE4M3, .scales = {{3, 1, 1}}}), Error);
  EXPECT_THROW(KVPool({.page_size = 8}), Error);
  EXPECT_THROW(KVPool({.dtype = DType::kI32}), Error);
  EXPECT_THROW(KVPool({.groups = {{{0, 4, 4}, {0}}}}), Error);
  EXPECT_THROW(KVPool({.groups = {{{1, 4, 4}, {0, 0}}}}), Error);
}

}  // namespace
}  // namespace headrace
