#include "headrace/cache/gdn_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "support/all_close.h"
#include "support/host_memory.h"
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
  const auto states = [&pool] {
    return std::array{pool.layer(0).recurrent, pool.layer(0).conv, pool.layer(1).recurrent, pool.layer(1).conv};
  };
  std::vector<Tensor> before;
  for (const TensorView& t : states()) before.push_back(copy_of(t));
  pool.copy_states(1, 3);
  pool.reset_states(std::array{2});
  for (size_t i = 0; i < before.size(); ++i) {
    const TensorView after = states()[i], was = before[i];
    EXPECT_TRUE(bit_equal(after.select(3), was.select(1))) << i;
    EXPECT_TRUE(bit_equal(after.select(2), Tensor::zeros(DType::kF32, was.select(2).shape()))) << i;
    EXPECT_TRUE(bit_equal(after.select(0), was.select(0))) << i;
    EXPECT_TRUE(bit_equal(after.select(1), was.select(1))) << i;
  }
}

// A device counts its calls: a state of many layers is copied by as few.
TEST(GDNPool, CopiesTheStatesOfAllLayersInTwoCalls) {
  class Counting final : public testing_support::HostMemory {
   public:
    void copy_rows_on_device(void* to, const void* from, size_t bytes, size_t stride, size_t rows) override {
      ++calls;
      DeviceRuntime::copy_rows_on_device(to, from, bytes, stride, rows);
    }
    int calls = 0;
  } runtime;
  GDNPoolConfig config = kConfig;
  config.num_layers = 30;
  GDNPool pool(config, runtime);
  pool.copy_states(1, 2);
  EXPECT_EQ(runtime.calls, 2);
}

TEST(GDNPool, TheReservedSlotIsRefused) {
  GDNPool pool(kConfig);
  EXPECT_THROW(pool.reset_states(std::array{0}), Error);
  EXPECT_THROW(pool.copy_states(1, 4), Error);
  EXPECT_THROW(GDNPool({.num_layers = 1, .num_k_heads = 2, .num_v_heads = 3, .head_k_dim = 4, .head_v_dim = 4}), Error);
}

}  // namespace
}  // namespace headrace
