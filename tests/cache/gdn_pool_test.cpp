#include "headrace/cache/gdn_pool.h"

#include <gtest/gtest.h>

#include <array>

#include "support/all_close.h"
#include "support/random.h"

namespace headrace {
namespace {

using testing_support::bit_equal;
using testing_support::copy_of;

const GDNPoolConfig kConfig{.num_layers = 2,
                            .num_slots = 3,
                            .num_k_heads = 1,
                            .num_v_heads = 2,
                            .head_k_dim = 4,
                            .head_v_dim = 3,
                            .conv_dtype = DType::kF32};

void fill(const GDNPool& pool) {
  testing_support::Random random(1);
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (const TensorView& t : {pool.layer(layer).recurrent, pool.layer(layer).conv}) {
      for (int64_t i = 0; i < t.numel(); ++i) set_element(t, i, random.normal());
    }
  }
}

TEST(GDNPool, LayoutIsValueThenKeyAndConvChannels) {
  const GDNPool pool(kConfig);
  EXPECT_EQ(pool.layer(1).recurrent.shape(), (Shape{4, 2, 3, 4}));
  EXPECT_EQ(pool.layer(1).conv.shape(), (Shape{4, 2 * 4 + 2 * 3, 3}));
  EXPECT_THROW(pool.layer(2), Error);
}

TEST(GDNPool, ItsBytesAreKnownBeforeItIsMade) {
  GDNPoolConfig config = kConfig;
  for (const DType conv : {DType::kF32, DType::kBF16}) {
    config.conv_dtype = conv;
    EXPECT_EQ(GDNPool::bytes_for(config), GDNPool(config).mem_bytes());
  }
  config.num_layers = 0;
  EXPECT_THROW(GDNPool::bytes_for(config), Error);
}

TEST(GDNPool, CopyAndResetTouchTheirSlotsAlone) {
  GDNPool pool(kConfig);
  fill(pool);
  const Tensor before = copy_of(pool.layer(1).recurrent);
  pool.copy_states(1, 3);
  pool.reset_states(std::array{2});
  const TensorView after = pool.layer(1).recurrent;
  EXPECT_TRUE(bit_equal(after.select(3), before.view().select(1)));
  EXPECT_TRUE(bit_equal(after.select(2), Tensor::zeros(DType::kF32, {2, 3, 4})));
  EXPECT_TRUE(bit_equal(after.select(0), before.view().select(0)));
  EXPECT_TRUE(bit_equal(after.select(1), before.view().select(1)));
}

TEST(GDNPool, TheReservedSlotIsRefused) {
  GDNPool pool(kConfig);
  EXPECT_THROW(pool.reset_states(std::array{0}), Error);
  EXPECT_THROW(pool.copy_states(1, 4), Error);
  EXPECT_THROW(GDNPool({.num_layers = 1, .num_k_heads = 2, .num_v_heads = 3, .head_k_dim = 4, .head_v_dim = 4}), Error);
}

}  // namespace
}  // namespace headrace
