// A language model as the engine sees it.
#pragma once
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "headrace/batch/forward_batch.h"
#include "headrace/cache/gdn_pool.h"
#include "headrace/cache/kv_pool.h"
#include "headrace/core/tensor.h"
#include "headrace/models/diffusion_info.h"

namespace headrace {

// What the engine needs to know of a model to build its pools.
struct ModelInfo {
  std::string architecture;
  int32_t vocab_size = 0, context_length = 0, num_layers = 0;
  std::vector<int32_t> eos_ids;
  std::vector<KVLayerGroup> kv_groups;  // full-attention layers only
  std::vector<int32_t> full_attn_layer_ids;
  std::vector<KVLayerScales> kv_scales;  // that the checkpoint brings, for a cache of 8 bits
  int32_t num_gdn_layers = 0;
  GDNPoolConfig gdn;         // num_slots is the engine's to choose
  int64_t weight_bytes = 0;  // as stored, or as made up
  // Of these: an embedding that is not the head as well, of which a token reads a row.
  int64_t gathered_bytes = 0;
  struct Experts {
    int64_t bytes = 0;                 // of weight_bytes, of all layers
    int32_t count = 1, per_token = 1;  // of a layer; shared ones count elsewhere
  } experts;
  DType dtype = DType::kF32;               // of activations
  std::optional<DiffusionInfo> diffusion;  // absent: decoded token by token

  // Bytes of weights that a step of `rows` rows reads, where routers choose evenly: an expert is left out of a layer
  // with (1 - per_token / count)^rows. Rows that choose alike read less.
  double bytes_read(double rows) const { return without_experts() + expert_share(1 - std::pow(1 - chosen(), rows)); }
  // Of those that one row is multiplied with.
  double bytes_multiplied() const { return without_experts() + expert_share(chosen()); }

 private:
  double chosen() const { return static_cast<double>(experts.per_token) / experts.count; }
  double expert_share(double share) const { return static_cast<double>(experts.bytes) * share; }
  double without_experts() const { return static_cast<double>(weight_bytes - gathered_bytes - experts.bytes); }
};

// Owns its weights. Not thread-safe: one engine runs it.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  // Runs the batch, which its backend has planned. Returns float32 [logits_rows, vocab]; the head runs on those rows
  // alone.
  virtual Tensor forward(const ForwardBatch& batch) const = 0;
};

}  // namespace headrace
