// One step's work for a model.
//
//   Scheduler -> BatchBuilder -> ForwardBatch -> AttentionBackend::init_forward_metadata -> Model::forward
// A plain value: its builder keeps the memory behind the views alive until the forward pass is over.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "headrace/batch/attn_metadata.h"
#include "headrace/batch/soft_inputs.h"

namespace headrace {

// The kind of a batch. The values are pymllm's.
enum class ForwardMode : int32_t {
  kExtend = 1,  // new tokens after a cached prefix (which may be empty)
  kDecode = 2,  // one new token per request
  kMixed = 3,   // both kinds of rows
  kIdle = 4,    // nothing to do: outputs are zeros, nothing is stored
};

constexpr bool is_extend(ForwardMode mode) { return mode == ForwardMode::kExtend || mode == ForwardMode::kMixed; }
constexpr bool is_decode_or_idle(ForwardMode mode) { return !is_extend(mode); }

constexpr std::string_view name_of(ForwardMode mode) {
  switch (mode) {
    case ForwardMode::kExtend: return "extend";
    case ForwardMode::kDecode: return "decode";
    case ForwardMode::kMixed: return "mixed";
    case ForwardMode::kIdle: return "idle";
  }
  return "unknown";
}

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
