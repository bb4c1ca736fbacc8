#include "headrace/batch/device_batch.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace {
namespace {

using NewKeys = DeviceMetadata::NewKeys;

// Two decode rows with these write slots, the last `padding` of them padding.
NewKeys new_keys_with(std::vector<int64_t> slots, int64_t padding) {
  DeviceBatch device({.max_requests = 2, .max_tokens = 2, .table_rows = 1, .table_pages = 1, .page_size = 4},
                     cpu_runtime());
  ForwardBatch batch{.mode = ForwardMode::kDecode};
  batch.attn.spans = {{.q_off = 0, .ctx_len = 1, .phys0 = 1}, {.q_off = 1, .ctx_len = 2, .phys0 = 2}};
  batch.attn.padding_rows = padding;
  if (!slots.empty())
    batch.attn.write_slots = TensorView(slots.data(), DType::kI64, {static_cast<int64_t>(slots.size())});
  const Tensor table = Tensor::zeros(DType::kI32, {1, 1});
  batch.attn.page_table = table;
  return device.upload(batch).attn.on_device->new_keys;
}

TEST(DeviceBatch, TellsWhetherEveryNewKeyIsStored) {
  EXPECT_EQ(new_keys_with({1, 2}, 0), NewKeys::kAllStored);
  EXPECT_EQ(new_keys_with({1, kDoNotStore}, 0), NewKeys::kSomeNotStored);
  EXPECT_EQ(new_keys_with({kDoNotStore, 2}, 1), NewKeys::kSomeNotStored);
  EXPECT_EQ(new_keys_with({1, kDoNotStore}, 1), NewKeys::kAllStored) << "the row that is not stored is padding";
  EXPECT_EQ(new_keys_with({}, 0), NewKeys::kSomeNotStored) << "a batch that stores nothing";
}

}  // namespace
}  // namespace headrace
