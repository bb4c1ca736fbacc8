// Copies a ForwardBatch's tables to device memory.
#pragma once
#include <optional>
#include <vector>

#include "headrace/batch/attention_plan_cache.h"
#include "headrace/batch/forward_batch.h"
#include "headrace/core/tensor.h"

namespace headrace {

// Returns kAllStored if every token before the padding has a write slot.
DeviceMetadata::NewKeys new_keys_of(const AttnMetadata& attn);

struct DeviceBatchConfig {
  int64_t max_requests = 0, max_tokens = 0;
  int64_t table_rows = 0, table_pages = 0;  // page table of the batches
  int64_t page_size = 1;                    // tokens
  int64_t max_snapshots = 0, max_encoder_tokens = 0;
  int64_t plan_bytes = AttentionPlanCache::kBytes;  // for the attention plan cache
};

// Owns the device's copy of the arrays that kernels read. Their addresses never change, so upload() alone feeds a
// captured graph. Not thread-safe.
class DeviceBatch {
 public:
  // `runtime` is not owned and outlives the object. Error kOutOfMemory.
  DeviceBatch(const DeviceBatchConfig& config, DeviceRuntime& runtime);
  // Returns the bytes of device memory that the constructor allocates.
  static int64_t bytes_for(const DeviceBatchConfig& config);
  DeviceBatch(const DeviceBatch&) = delete;
  DeviceBatch& operator=(const DeviceBatch&) = delete;

  // Uploads the batch and returns it with every view on the device; valid until the next upload(). `host` has its views
  // on the host and is validated.
  // Copies only those pages of the page table that changed and that the batch reads or writes, near ones together;
  // everything else is one copy. Rows whose AttnMetadata::row_versions are those of their last upload are not read;
  // versions at one address are of one page table, which outlives the uploads.
  // Error kInvalidArgument if the batch exceeds the configuration.
  const ForwardBatch& upload(const ForwardBatch& host);
  // Drops the kernels' plans of the batch, so that a capture contains the making of every plan it uses.
  void forget_plans() { plans_.forget(); }
  // Reserves float32 [rows, vocab] for conditioning at a fixed address, so that a graph can read it. From then on every
  // token of a conditioned batch is marked. conditioning(n) returns the first n rows.
  void reserve_conditioning(int64_t rows, int64_t vocab);
  TensorView conditioning(int64_t rows) const { return conditioning_.view().slice(0, rows); }
  // Sets DeviceMetadata::most_rows of later uploads.
  void set_most_rows(int32_t rows) { metadata_.most_rows = rows; }
  // Sets DeviceMetadata::most_keys of later uploads.
  void set_most_keys(int32_t keys) { metadata_.most_keys = keys; }

 private:
  struct Section {
    int64_t offset = 0, bytes = 0;
  };
  Section reserve(int64_t bytes);
  TensorView place(const Section& section, DType dtype, const void* from, int64_t count);
  void place_merge(const TokenMerge& host);
  void place_conditioning(const SoftInputs& host);
  std::vector<TensorView> place_extra(Tensor& memory, const std::vector<TensorView>& from);
  void note_pages(const AttnMetadata& host, int32_t row, int64_t pages);
  void copy_noted_pages();

  DeviceBatchConfig config_;
  DeviceRuntime& runtime_;  // not owned
  int64_t bytes_ = 0, used_ = 0;
  Section spans_, state_slots_, snapshots_, write_slots_, encoder_slots_, ids_, positions_, logits_rows_, num_rows_;
  std::vector<char> staging_;        // host copy of `memory_` after upload()
  Tensor memory_, table_;            // table_: int32 [table_rows, table_pages]
  std::vector<int32_t> host_table_;  // host copy of table_ after upload()
  struct KnownRow {
    std::optional<int64_t> version;  // absent: the row may have changed
    int64_t pages = 0;               // as many are in host_table_
  };
  std::vector<KnownRow> known_rows_;         // [table_rows]
  const void* versions_of_known_ = nullptr;  // the row_versions that known_rows_ refers to; only compared
  struct PageRange {
    int64_t begin, end;  // elements of the table
  };
  std::vector<PageRange> changed_;   // changes of the current upload
  Tensor merge_;                     // of the last batch with soft embeddings; in no graph
  Tensor conditioning_, marks_;      // likewise, unless reserved: float32 [rows, vocab], uint8 [rows]
  bool keeps_conditioning_ = false;  // reserve_conditioning() was called
  AttentionPlanCache plans_;
  DeviceMetadata metadata_;
  SoftInputs soft_;  // with views on the device
  ForwardBatch batch_;
};

}  // namespace headrace
