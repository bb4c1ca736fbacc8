// One step's work for a model.
//
//   Scheduler -> BatchBuilder -> ForwardBatch -> AttentionBackend::init_forward_metadata -> Model::forward
//
// A plain value: whoever builds it keeps the memory behind its views alive until the pass is over.
#pragma once
#include <vector>

#include "headrace/batch/attn_metadata.h"
#include "headrace/batch/forward_mode.h"

namespace headrace {

class AttentionBackend;  // attention/ stands after batch/ in the layers: only a pointer is held here

struct ForwardBatch {
  ForwardMode mode = ForwardMode::kExtend;  // right for decode rows too, which kDecode may run by shorter ways
  AttnMetadata attn = {};
  TensorView input_ids = {};              // int32 [num_tokens]
  TensorView positions = {};              // int32 [num_tokens]: logical positions, as RoPE counts them
  std::vector<int32_t> logits_rows = {};  // tokens whose logits are wanted, ascending
  TensorView device_logits_rows = {};     // int32 [logits rows]: the same on the device; null on a CPU
  TensorView device_num_rows = {};        // int32 [1]: tokens before the padding, on the device; null on a CPU
  // In place of attn.self_conditioning's logits, in a batch for a device: those of one request after the other, each on
  // the host or there already.
  std::vector<TensorView> conditioning = {};
  AttentionBackend* attn_backend = nullptr;  // not owned

  int64_t batch_size() const { return attn.num_requests(); }
  int64_t num_tokens() const { return attn.num_tokens(); }
  // Rows of tokens that are conditioned on the step before.
  int64_t num_conditioned() const {
    if (!attn.self_conditioning) return 0;
    int64_t rows = conditioning.empty() ? attn.self_conditioning->logits.dim(0) : 0;
    for (const TensorView& part : conditioning) rows += part.dim(0);
    return rows;
  }

  // pymllm's spellings.
  int32_t seq_len(int64_t request) const { return attn.spans[static_cast<size_t>(request)].seq_len(); }
  int32_t extend_seq_len(int64_t request) const { return attn.spans[static_cast<size_t>(request)].q_len; }
  int32_t extend_prefix_len(int64_t request) const { return attn.spans[static_cast<size_t>(request)].ctx_len; }
  int32_t extend_start_loc(int64_t request) const { return attn.spans[static_cast<size_t>(request)].q_off; }
  const TensorView& out_cache_loc() const { return attn.write_slots; }
};

}  // namespace headrace
