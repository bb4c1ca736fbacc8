// The interface between models and the engine.
#pragma once
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "headrace/attention/radix_attention.h"
#include "headrace/batch/forward_batch.h"
#include "headrace/cache/gdn_pool.h"
#include "headrace/cache/kv_pool.h"
#include "headrace/core/block_format.h"
#include "headrace/core/tensor.h"
#include "headrace/models/diffusion_info.h"

namespace headrace {

// Facts about a model from which the engine builds its pools.
struct ModelInfo {
  std::string architecture;
  int32_t vocab_size = 0, context_length = 0, num_layers = 0;
  std::vector<int32_t> eos_ids;
  std::vector<KVLayerGroup> kv_groups;  // full-attention layers only
  std::vector<int32_t> full_attn_layer_ids;
  std::vector<RadixAttentionConfig> attention_kinds;  // the first full-attention layer of each kind
  std::vector<KVLayerScales> kv_scales;               // from the checkpoint, for an 8-bit KV cache
  int32_t num_gdn_layers = 0;
  GDNPoolConfig gdn;         // the engine sets num_slots
  int64_t weight_bytes = 0;  // as stored, or as generated
  int64_t num_parameters = 0;
  std::vector<BlockFormat> packed_formats;  // of quantised weights that run as blocks; each once
  // The part of weight_bytes in an embedding that is not also the LM head. A token reads one row of it.
  int64_t gathered_bytes = 0;
  struct Experts {
    int64_t bytes = 0;                 // of weight_bytes, all layers
    int32_t count = 1, per_token = 1;  // per layer, without shared experts
  } experts;
  DType dtype = DType::kF32;               // activations
  std::optional<DiffusionInfo> diffusion;  // absent: autoregressive

  // Returns the types of weights in GEMMs: "Q4_K and Q6_K", or "bfloat16".
  std::string weight_types() const {
    std::string names;
    for (size_t i = 0; i < packed_formats.size(); ++i) {
      if (i > 0) names += i + 1 == packed_formats.size() ? " and " : ", ";
      names += layout_of(packed_formats[i]).name;
    }
    return names.empty() ? std::string(name_of(dtype)) : names;
  }
  // Returns the bytes of weights that a step of `rows` tokens reads if routing is uniform: a layer's expert is unused
  // with probability (1 - per_token / count)^rows. Correlated tokens read less.
  double bytes_read(double rows) const { return without_experts() + expert_share(1 - std::pow(1 - chosen(), rows)); }
  // Returns the bytes of weights in one token's GEMMs.
  double bytes_multiplied() const { return without_experts() + expert_share(chosen()); }

 private:
  double chosen() const { return static_cast<double>(experts.per_token) / experts.count; }
  double expert_share(double share) const { return static_cast<double>(experts.bytes) * share; }
  double without_experts() const { return static_cast<double>(weight_bytes - gathered_bytes - experts.bytes); }
};

// Owns its weights. Not thread-safe: used by one engine.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  // Runs a batch that its backend has planned. Returns float32 [logits_rows, vocab]; the LM head runs on those rows
  // only.
  virtual Tensor forward(const ForwardBatch& batch) const = 0;
};

}  // namespace headrace
