#include "headrace/batch/device_batch.h"
#include "headrace/core/device_runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/host_memory.h"

namespace headrace {
namespace {

using NewKeys = DeviceMetadata::NewKeys;

// Of two decode rows with these write slots, the last `padding` of them padding.
DeviceMetadata uploaded_with(std::vector<int64_t> slots, int64_t padding) {
  DeviceBatch device({.max_requests = 2, .max_tokens = 2, .table_rows = 1, .table_pages = 1, .page_size = 4},
                     cpu_runtime());
  ForwardBatch batch{.mode = ForwardMode::kDecode};
  batch.attn.spans = {{.q_off = 0, .ctx_len = 1, .phys0 = 1}, {.q_off = 1, .ctx_len = 2, .phys0 = 2}};
  batch.attn.padding_rows = padding;
  if (!slots.empty())
    batch.attn.write_slots = TensorView(slots.data(), DType::kI64, {static_cast<int64_t>(slots.size())});
  const Tensor table = Tensor::zeros(DType::kI32, {1, 1});
  batch.attn.page_table = table;
  return *device.upload(batch).attn.on_device;
}
NewKeys new_keys_with(const std::vector<int64_t>& slots, int64_t padding) {
  return uploaded_with(slots, padding).new_keys;
}

TEST(DeviceBatch, TellsWhetherEveryNewKeyIsStored) {
  EXPECT_EQ(new_keys_with({1, 2}, 0), NewKeys::kAllStored);
  EXPECT_EQ(new_keys_with({1, kDoNotStore}, 0), NewKeys::kSomeNotStored);
  EXPECT_EQ(new_keys_with({kDoNotStore, 2}, 1), NewKeys::kSomeNotStored);
  EXPECT_EQ(new_keys_with({1, kDoNotStore}, 1), NewKeys::kAllStored) << "the row that is not stored is padding";
  EXPECT_EQ(new_keys_with({}, 0), NewKeys::kSomeNotStored) << "a batch that stores nothing";
}

// A warm-up may run it then: the slots cannot be read again where they lie now.
TEST(DeviceBatch, TellsWhetherTheBatchKeepsAnything) {
  using Keeps = DeviceMetadata::Keeps;
  EXPECT_EQ(uploaded_with({kDoNotStore, kDoNotStore}, 0).keeps, Keeps::kNothing);
  EXPECT_EQ(uploaded_with({kDoNotStore, kDoNotStore}, 1).keeps, Keeps::kNothing);
  EXPECT_EQ(uploaded_with({kDoNotStore, 2}, 0).keeps, Keeps::kSomething);
  EXPECT_EQ(uploaded_with({kDoNotStore, 2}, 1).keeps, Keeps::kSomething) << "padding that is stored";
}

// Where kernels find it when a graph runs: at one place.
TEST(DeviceBatch, CountsTheRowsThatAreNoPadding) {
  DeviceBatch device({.max_requests = 3, .max_tokens = 3, .table_rows = 1, .table_pages = 1, .page_size = 4},
                     cpu_runtime());
  ForwardBatch batch{.mode = ForwardMode::kDecode};
  batch.attn.spans = {{.q_off = 0}, {.q_off = 1}, {.q_off = 2}};
  const Tensor table = Tensor::zeros(DType::kI32, {1, 1});
  batch.attn.page_table = table;
  const void* place = device.upload(batch).device_num_rows.data();
  EXPECT_EQ(*static_cast<const int32_t*>(place), 3);
  batch.attn.padding_rows = 2;
  EXPECT_EQ(device.upload(batch).device_num_rows.data(), place);
  EXPECT_EQ(*static_cast<const int32_t*>(place), 1);
}

TEST(DeviceBatch, ItsBytesAreKnownBeforeItIsMade) {
  for (const int64_t tokens : {1, 16, 500}) {
    const DeviceBatchConfig config{.max_requests = 3,
                                   .max_tokens = tokens,
                                   .table_rows = 5,
                                   .table_pages = 7,
                                   .page_size = 4,
                                   .max_snapshots = tokens % 7,
                                   .max_encoder_tokens = tokens % 5};
    testing_support::CountedMemory device;
    const DeviceBatch batch(config, device);
    EXPECT_EQ(DeviceBatch::bytes_for(config), device.allocated) << tokens;
  }
}

// A device whose memory the test can read.
class ReadableDevice final : public testing_support::HostMemory {
 public:
  Device device() const override { return {DeviceType::kCUDA, 0}; }
};

// Of two requests, one kept where the model runs and one on the host: at one place, where a graph finds it, with every
// row marked.
TEST(DeviceBatch, BringsConditioningOfAllRequestsToOnePlace) {
  ReadableDevice runtime;
  DeviceBatch device({.max_requests = 2, .max_tokens = 4, .table_rows = 1, .table_pages = 1, .page_size = 4}, runtime);
  ForwardBatch batch{.mode = ForwardMode::kExtend};
  batch.attn.spans = {{.q_off = 0, .q_len = 2}, {.q_off = 2, .q_len = 2}};
  const Tensor table = Tensor::zeros(DType::kI32, {1, 1}), mask(DType::kU8, {4}), here(DType::kF32, {2, 3}),
               there(DType::kF32, {2, 3}, runtime);
  batch.attn.page_table = table;
  const auto upload = [&](float first) -> const SelfConditioning& {
    std::fill_n(mask.data_as<uint8_t>(), 4, uint8_t{1});
    for (int i = 0; i < 6; ++i) there.data_as<float>()[i] = first + static_cast<float>(i);
    for (int i = 0; i < 6; ++i) here.data_as<float>()[i] = first + static_cast<float>(6 + i);
    batch.soft.self_conditioning = {.mask = mask, .logits = {}};
    batch.soft.conditioning = {there, here};
    EXPECT_EQ(batch.soft.num_conditioned(), 4);
    return *device.upload(batch).soft.on_device->self_conditioning;
  };
  const auto expect = [](const SelfConditioning& got, float first) {
    EXPECT_EQ(got.logits.shape(), (Shape{4, 3}));
    EXPECT_EQ(got.mask.numel(), 4);
    for (int i = 0; i < 12; ++i)
      EXPECT_EQ(static_cast<const float*>(got.logits.data())[i], first + static_cast<float>(i));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(static_cast<const uint8_t*>(got.mask.data())[i], 1);
  };
  expect(upload(1), 1);
  device.reserve_conditioning(6, 3);
  const void* place = device.conditioning(6).data();
  const SelfConditioning& got = upload(50);
  expect(got, 50);
  EXPECT_EQ(got.logits.data(), place);
  expect(upload(70), 70);
  EXPECT_EQ(device.conditioning(6).data(), place);
  batch.soft.self_conditioning.reset();
  EXPECT_FALSE(device.upload(batch).soft.on_device->self_conditioning);
}

// Rows that lie near each other are copied together, with what lies between them.
TEST(DeviceBatch, HoldsThePagesOfEveryRowThatChanged) {
  constexpr int32_t kRows = 40, kPages = 300;
  DeviceBatch device(
      {.max_requests = kRows, .max_tokens = kRows, .table_rows = kRows, .table_pages = kPages, .page_size = 4},
      cpu_runtime());
  Tensor table = Tensor::zeros(DType::kI32, {kRows, kPages});
  ForwardBatch batch{.mode = ForwardMode::kDecode};
  batch.attn.page_table = table;
  const auto upload_and_compare = [&](const std::vector<int32_t>& rows) {
    batch.attn.spans.clear();
    for (const int32_t row : rows) {
      const int32_t keys = 4 * kPages - 1 - row, i = static_cast<int32_t>(batch.attn.spans.size());
      batch.attn.spans.push_back({.q_off = i, .ctx_len = keys, .phys0 = keys, .page_row = row});
    }
    const TensorView got = device.upload(batch).attn.page_table;
    for (const int32_t row : rows) {
      for (int32_t page = 0; page < (4 * kPages - row + 3) / 4; ++page) {
        ASSERT_EQ(element_as_double(got.select(row), page), element_as_double(table.view().select(row), page))
            << "row " << row << ", page " << page;
      }
    }
  };
  int32_t next = 1;
  const auto change = [&](int32_t row, int32_t from) {
    for (int32_t page = from; page < kPages; ++page) set_element(table, row * kPages + page, next++);
  };
  for (int32_t row = 0; row < kRows; ++row) change(row, 0);
  upload_and_compare({3, 39, 0, 20, 4});
  change(20, 250), change(4, 7), change(0, 299);
  upload_and_compare({0, 4, 20, 39});
  upload_and_compare({1, 2, 38});
}

// A page table of four rows and pages whose writer numbers its changes, as uploaded in batches of one request each.
class NumberedTable {
 public:
  void change(int32_t row, int32_t page, int32_t to) {
    change_silently(row, page, to);
    set_element(versions_, row, static_cast<double>(++version_));
  }
  void change_silently(int32_t row, int32_t page, int32_t to) { set_element(table_, row * 4 + page, to); }
  // The row's first `pages` pages on the device after an upload of a batch that reads them.
  std::vector<int32_t> uploaded(DeviceBatch& device, int32_t row, int32_t pages, bool numbered = true) const {
    ForwardBatch batch{.mode = ForwardMode::kDecode};
    const int32_t keys = 16 * pages - 1;
    batch.attn.spans = {{.ctx_len = keys, .phys0 = keys, .page_row = row}};
    batch.attn.page_table = table_;
    if (numbered) batch.attn.row_versions = versions_;
    const TensorView on_device = device.upload(batch).attn.page_table.select(row);
    const auto* first = static_cast<const int32_t*>(on_device.data());
    return {first, first + pages};
  }

 private:
  Tensor table_ = Tensor::zeros(DType::kI32, {4, 4}), versions_ = Tensor::zeros(DType::kI64, {4});
  int64_t version_ = 0;
};

DeviceBatch batch_of_four_rows() {
  return DeviceBatch({.max_requests = 1, .max_tokens = 1, .table_rows = 4, .table_pages = 4, .page_size = 16},
                     cpu_runtime());
}

TEST(DeviceBatch, ReadsARowAgainWhenItsVersionOrItsLengthChanges) {
  using Pages = std::vector<int32_t>;
  DeviceBatch device = batch_of_four_rows();
  NumberedTable table;
  for (const int32_t row : {1, 2}) {
    for (const int32_t page : {0, 1, 2}) table.change(row, page, 10 * row + page);
  }
  EXPECT_EQ(table.uploaded(device, 1, 2), (Pages{10, 11}));
  EXPECT_EQ(table.uploaded(device, 2, 3), (Pages{20, 21, 22}));
  EXPECT_EQ(table.uploaded(device, 1, 3), (Pages{10, 11, 12})) << "a longer request";
  table.change(1, 0, 19);
  EXPECT_EQ(table.uploaded(device, 1, 1), (Pages{19})) << "another request";
  EXPECT_EQ(table.uploaded(device, 1, 3), (Pages{19, 11, 12}));
  table.change_silently(1, 2, 77);
  EXPECT_EQ(table.uploaded(device, 1, 3), (Pages{19, 11, 12})) << "a row of the same version was read";
}

TEST(DeviceBatch, ReadsRowsAgainAfterThoseOfAnotherTableOrOfNoVersion) {
  using Pages = std::vector<int32_t>;
  DeviceBatch device = batch_of_four_rows();
  NumberedTable one, other;
  one.change(1, 0, 5), other.change(1, 0, 6);  // of equal versions
  EXPECT_EQ(one.uploaded(device, 1, 1), (Pages{5}));
  EXPECT_EQ(other.uploaded(device, 1, 1), (Pages{6}));
  EXPECT_EQ(one.uploaded(device, 1, 1), (Pages{5}));
  EXPECT_EQ(other.uploaded(device, 1, 1, false), (Pages{6}));
  other.change_silently(1, 0, 7);
  EXPECT_EQ(other.uploaded(device, 1, 1, false), (Pages{7})) << "nobody promised to number this change";
  EXPECT_EQ(one.uploaded(device, 1, 1), (Pages{5}));
}

}  // namespace
}  // namespace headrace
