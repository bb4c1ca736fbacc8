#include "headrace/attention/decode_batch.h"

#include <cstring>
#include <numeric>

#include "headrace/core/device_runtime.h"

namespace headrace {
namespace {

constexpr int32_t kPaddingRow = 0;

// Without memory for plans: a plan that a warm-up made would not be recorded, and a replay needs it made again.
DeviceBatchConfig device_config(const DecodeBatchPools& pools, int32_t max_bs) {
  const TensorView table = pools.requests->page_table();
  return {.max_requests = max_bs,
          .max_tokens = max_bs,
          .table_rows = table.dim(0),
          .table_pages = table.dim(1),
          .page_size = pools.requests->page_size(),
          .plan_bytes = 0};
}

}  // namespace

DecodeBatch::DecodeBatch(const DecodeBatchPools& pools, int32_t max_bs)
    : pools_(pools), device_(device_config(pools, max_bs), *pools.runtime) {}

std::vector<int64_t> DecodeBatch::on_host(const char* name, const TensorView& values, int32_t bs) const {
  const bool integers = values.dtype() == DType::kI32 || values.dtype() == DType::kI64;
  HR_REQUIRE(values && integers && values.rank() == 1 && values.dim(0) >= bs && values.is_contiguous(),
             ErrorCode::kInvalidArgument, "decode batch: ", name, " is ", name_of(values.dtype()), values.shape(),
             ", expected dense int32 or int64 of ", bs, " or more");
  std::vector<int64_t> copy(static_cast<size_t>(bs)), result;
  const auto bytes = static_cast<size_t>(bs * size_of(values.dtype()));
  if (values.device().type == DeviceType::kCPU) {
    std::memcpy(copy.data(), values.data(), bytes);
  } else {
    pools_.runtime->copy_to_host(copy.data(), values.data(), bytes);
  }
  if (values.dtype() == DType::kI64) return copy;
  const auto* narrow = reinterpret_cast<const char*>(copy.data());
  for (int32_t r = 0; r < bs; ++r) {
    int32_t value;
    std::memcpy(&value, narrow + static_cast<size_t>(r) * sizeof(value), sizeof(value));
    result.push_back(value);
  }
  return result;
}

std::vector<DecodeBatch::Row> DecodeBatch::checked(const Rows& rows) const {
  const std::vector<int64_t> table_rows = on_host("req_pool_indices", rows.req_pool_indices, rows.bs);
  const std::vector<int64_t> lens = on_host("seq_lens", rows.seq_lens, rows.bs);
  const int64_t sum = std::accumulate(lens.begin(), lens.end(), int64_t{0});
  HR_REQUIRE(!rows.seq_lens_sum || *rows.seq_lens_sum == sum, ErrorCode::kInvalidArgument,
             "decode batch: seq_lens_sum is ", rows.seq_lens_sum.value_or(0), ", the ", rows.bs, " lengths add up to ",
             sum);
  const int64_t last_row = pools_.requests->page_table().dim(0) - 1, longest = pools_.requests->max_context_len();
  std::vector<Row> result;
  for (size_t r = 0; r < lens.size(); ++r) {
    const int64_t row = table_rows[r], len = lens[r];
    HR_REQUIRE(row >= kPaddingRow && row <= last_row, ErrorCode::kInvalidArgument, "decode batch: request row ", row,
               ", expected 0 (padding) to ", last_row);
    HR_REQUIRE(len >= 1 && len <= longest, ErrorCode::kInvalidArgument, "decode batch: request row ", row, " has ", len,
               " keys, expected 1 to ", longest);
    result.push_back({static_cast<int32_t>(row), static_cast<int32_t>(len - 1), row == kPaddingRow});
  }
  return result;
}

void DecodeBatch::add(const Row& row) {
  const ReqToTokenPool& requests = *pools_.requests;
  const auto index = static_cast<int32_t>(host_.attn.spans.size());
  host_.attn.spans.push_back(
      {.q_off = index, .ctx_len = row.position, .phys0 = row.position, .page_row = row.page_row});
  positions_.push_back(row.position);
  write_slots_.push_back(row.is_padding ? kDoNotStore : requests.slot_of(row.page_row, row.position));
  if (pools_.states == DecodeBatchPools::States::kNone) return;
  StateSlots& slots = host_.attn.state_slots.emplace_back();
  if (row.is_padding) return;
  slots.write = requests.state_slots().as<const int32_t, 1>("state slots")(row.page_row);
  HR_REQUIRE(slots.write > 0, ErrorCode::kInvalidArgument, "decode batch: request row ", row.page_row,
             " has no state slot; call set_state_slot");
  if (row.position > 0) slots.read = slots.write;  // the first token's state starts from zeros
}

const ForwardBatch& DecodeBatch::upload(const std::vector<Row>& rows, ForwardMode mode) {
  const auto count = static_cast<int64_t>(rows.size());
  host_ = {.mode = mode, .attn_backend = pools_.backend};
  positions_.clear(), write_slots_.clear();
  for (const Row& row : rows) add(row);
  for (auto row = rows.rbegin(); row != rows.rend() && row->is_padding; ++row) ++host_.attn.padding_rows;
  host_.attn.page_table = pools_.requests->page_table();
  host_.attn.write_slots = TensorView(write_slots_.data(), DType::kI64, {count});
  host_.positions = TensorView(positions_.data(), DType::kI32, {count});
  host_.logits_rows.resize(rows.size());
  std::iota(host_.logits_rows.begin(), host_.logits_rows.end(), 0);
  return device_.upload(host_);
}

const ForwardBatch& DecodeBatch::build(const Rows& rows) { return upload(checked(rows), rows.mode); }

const ForwardBatch& DecodeBatch::build_longest(const Rows& rows) {
  std::vector<Row> padding = checked(rows);
  for (Row& row : padding) row.position = pools_.requests->max_context_len() - 1, row.is_padding = true;
  return upload(padding, rows.mode);
}

}  // namespace headrace
