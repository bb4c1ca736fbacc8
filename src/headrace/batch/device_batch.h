// A ForwardBatch whose tables lie in a device's memory.
#pragma once
#include <vector>

#include "headrace/batch/attention_plan_cache.h"
#include "headrace/batch/forward_batch.h"
#include "headrace/core/tensor.h"

namespace headrace {

// Of the rows that count: those before the padding.
DeviceMetadata::NewKeys new_keys_of(const AttnMetadata& attn);

struct DeviceBatchConfig {
  int64_t max_requests = 0, max_tokens = 0;
  int64_t table_rows = 0, table_pages = 0;  // of the page table that batches refer to
  int64_t page_size = 1;                    // tokens
  int64_t max_snapshots = 0, max_encoder_tokens = 0;
  int64_t plan_bytes = AttentionPlanCache::kBytes;  // for what kernels work out about a batch
};

// Keeps a device's copy of the arrays that kernels read of a batch, at addresses that never change, so a captured
// graph can be fed by upload() alone. Not thread-safe.
class DeviceBatch {
 public:
  // `runtime` is not owned and outlives the object. Error kOutOfMemory.
  DeviceBatch(const DeviceBatchConfig& config, DeviceRuntime& runtime);
  // What it allocates of the device's memory.
  static int64_t bytes_for(const DeviceBatchConfig& config);
  DeviceBatch(const DeviceBatch&) = delete;
  DeviceBatch& operator=(const DeviceBatch&) = delete;

  // The batch with every view on the device; valid until the next upload(). `host` has its views on the host and is
  // validated. Of the page table only the pages that the batch can read or write, and that changed, are copied, near
  // ones together; the rest is one copy. Error kInvalidArgument when the batch is larger than the configuration.
  const ForwardBatch& upload(const ForwardBatch& host);
  // Kernels make their plans of the batch again: a recording is to hold the making of all that it uses.
  void forget_plans() { plans_.forget(); }
  // What kernels have said of the batch since its upload: AttentionPlanCache::shorter_keys().
  const std::set<int32_t>& shorter_keys() const { return plans_.shorter_keys(); }
  // The first `pages` entries of a row of `table`, on the host, come with the next upload(): batches that a kernel lays
  // out behind it may refer to them.
  void upload_pages(const TensorView& table, int32_t row, int64_t pages) { note_pages(table, row, pages); }
  // From now on conditioning lies at one address, so that a graph can read it, and marks every row of its batch: up to
  // `rows` of them. conditioning(n) are the first n.
  void reserve_conditioning(int64_t rows, int64_t vocab);
  TensorView conditioning(int64_t rows) const { return conditioning_.view().slice(0, rows); }
  // Its arrays in full, for a kernel that lays out the next batch by itself: the spans' bytes, ids, positions, write
  // slots, rows of logits, how many rows are no padding, and the page table.
  struct Arrays {
    TensorView spans, ids, positions, write_slots, logits_rows, num_rows, page_table;
  };
  Arrays arrays() const;
  // DeviceMetadata::most_rows of what is uploaded from now on.
  void set_most_rows(int32_t rows) { metadata_.most_rows = rows; }
  // Likewise DeviceMetadata::most_keys.
  void set_most_keys(int32_t keys) { metadata_.most_keys = keys; }

 private:
  struct Section {
    int64_t offset = 0, bytes = 0;
  };
  Section reserve(int64_t bytes);
  TensorView place(const Section& section, DType dtype, const void* from, int64_t count);
  void place_merge(const TokenMerge& host);
  void place_conditioning(const ForwardBatch& host);
  std::vector<TensorView> place_extra(Tensor& memory, const std::vector<TensorView>& from);
  void note_pages(const TensorView& table, int32_t row, int64_t pages);
  void copy_noted_pages();

  DeviceBatchConfig config_;
  DeviceRuntime& runtime_;  // not owned
  int64_t bytes_ = 0, used_ = 0;
  Section spans_, state_slots_, snapshots_, write_slots_, encoder_slots_, ids_, positions_, logits_rows_, num_rows_;
  std::vector<char> staging_;        // what the device's `memory_` holds after upload()
  Tensor memory_, table_;            // table_: int32 [table_rows, table_pages]
  std::vector<int32_t> host_table_;  // what table_ holds after upload()
  struct PageRange {
    int64_t begin, end;  // elements of the table
  };
  std::vector<PageRange> changed_;   // by the upload under way
  Tensor merge_;                     // of the last batch that had such: it is in no graph
  Tensor conditioning_, marks_;      // likewise but for reserve_conditioning: float32 [rows, vocab], uint8 [rows]
  bool keeps_conditioning_ = false;  // at one address
  AttentionPlanCache plans_;
  DeviceMetadata metadata_;
  ForwardBatch batch_;
};

}  // namespace headrace
