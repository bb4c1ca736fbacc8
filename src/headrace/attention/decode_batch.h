// Decode batches of a request table's rows, in fixed device memory: what pymllm's argument lists describe.
#pragma once
#include <optional>
#include <vector>

#include "headrace/batch/device_batch.h"
#include "headrace/cache/req_to_token_pool.h"

namespace headrace {

// None of these is owned; all outlive the batches.
struct DecodeBatchPools {
  const ReqToTokenPool* requests = nullptr;
  enum class States : uint8_t { kNone, kRecurrent } states = States::kNone;  // kRecurrent: the table names state slots
  DeviceRuntime* runtime = nullptr;
  AttentionBackend* backend = nullptr;  // runs the batches
};

// Not thread-safe.
class DecodeBatch {
 public:
  // Allocates device memory for batches of up to max_bs requests. Error kOutOfMemory.
  DecodeBatch(const DecodeBatchPools& pools, int32_t max_bs);

  struct Rows {
    int32_t bs = 0;
    TensorView req_pool_indices = {}, seq_lens = {};  // as CudaGraphSupport describes them
    std::optional<int64_t> seq_lens_sum = {};         // checked if given
    ForwardMode mode = ForwardMode::kDecode;
  };
  // Build and upload the batch of the first rows.bs rows. The result's address stays; it is valid until the next call.
  // Error kInvalidArgument.
  const ForwardBatch& build(const Rows& rows);
  // For a capture: all rows are padding with the table's longest context. Launches sized for it suit every replay.
  const ForwardBatch& build_longest(const Rows& rows);

 private:
  struct Row {
    int32_t page_row = 0, position = 0;
    bool is_padding = false;
  };
  std::vector<int64_t> on_host(const char* name, const TensorView& values, int32_t bs) const;
  std::vector<Row> checked(const Rows& rows) const;
  void add(const Row& row);
  const ForwardBatch& upload(const std::vector<Row>& rows, ForwardMode mode);

  DecodeBatchPools pools_;
  DeviceBatch device_;
  std::vector<int32_t> positions_;  // memory of host_
  std::vector<int64_t> write_slots_;
  ForwardBatch host_;
};

}  // namespace headrace
