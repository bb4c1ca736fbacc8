// One step's work for a model.
//
//   Scheduler -> BatchBuilder -> ForwardBatch -> AttentionBackend::init_forward_metadata -> Model::forward
// A plain value: its builder keeps the memory behind the views alive until the forward pass is over.
#pragma once
#include <vector>

#include "headrace/batch/attn_metadata.h"
#include "headrace/batch/forward_mode.h"
#include "headrace/batch/soft_inputs.h"

namespace headrace {

class AttentionBackend;  // attention/ is a layer above batch/: only a pointer is held here

struct ForwardBatch {
  ForwardMode mode = ForwardMode::kExtend;  // valid for decode tokens, too; kDecode allows faster paths
  AttnMetadata attn = {};
  TensorView input_ids = {};              // int32 [num_tokens]
  TensorView positions = {};              // int32 [num_tokens]: logical positions, as RoPE counts them
  std::vector<int32_t> logits_rows = {};  // tokens with logits, ascending
  TensorView device_logits_rows = {};     // int32 [logits_rows]: copy of logits_rows on the device; null on a CPU
  TensorView device_num_rows = {};        // int32 [1]: tokens before the padding, on the device; null on a CPU
  // Empty for most models.
  SoftInputs soft = {};
  AttentionBackend* attn_backend = nullptr;  // not owned

  int64_t batch_size() const { return attn.num_requests(); }
  int64_t num_tokens() const { return attn.num_tokens(); }

  // pymllm's spellings.
  int32_t seq_len(int64_t request) const { return attn.spans[static_cast<size_t>(request)].seq_len(); }
  int32_t extend_seq_len(int64_t request) const { return attn.spans[static_cast<size_t>(request)].q_len; }
  int32_t extend_prefix_len(int64_t request) const { return attn.spans[static_cast<size_t>(request)].ctx_len; }
  int32_t extend_start_loc(int64_t request) const { return attn.spans[static_cast<size_t>(request)].q_off; }
  const TensorView& out_cache_loc() const { return attn.write_slots; }
};

}  // namespace headrace
