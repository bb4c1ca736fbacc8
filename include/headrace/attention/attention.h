// Attention of one layer over a batch's metadata, which is an argument or comes from an AttnMetadataSource. Backends
// are made of it. Models use RadixAttention and their backend instead.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "headrace/attention/attention_backend.h"
#include "headrace/ops/paged_attention.h"

namespace headrace {

struct AttentionStepArgs;
struct OpSet;
struct StoreKVArgs;

struct AttentionConfig {
  int32_t num_heads = 0, head_dim = 0;
  float scale = 1;
  int32_t num_kv_heads = 0;
  AttnImpl attn_impl = AttnImpl::kGrouped;
  std::optional<int32_t> sliding_window = {};    // keys that a token sees, its own included
  std::string_view kv_cache_layout = "unified";  // the only layout; "distinct" is refused
  OpContext context = {};
  const OpSet* ops = nullptr;  // ops of attn_impl, not owned; null: this CPU's
  float logit_cap = 0;         // 0: none
  AttentionType attn_type = AttentionType::kDecoder;
  PagedAttentionArgs::Keys keys = PagedAttentionArgs::Keys::kSequence;
};

struct AttentionOptions {
  SaveKV save_kv_cache = SaveKV::kYes;
  TensorView lse = {};  // float32 [num_tokens, num_heads]: written with the log-sum-exp; or null
  std::optional<NormRotaryArgs> norm_rotary = {};  // see RadixAttentionOptions
  TensorView gate = {};                            // [num_tokens, num_heads, v_head_dim]; see RadixAttentionOptions
};

// Not thread-safe, like its source.
class Attention {
 public:
  // `source` is not owned and outlives the layer.
  Attention(const AttentionConfig& config, const AttnMetadataSource& source);

  // Sets the layer's K and V in the pool; null (the default): attends only to the new keys.
  void bind_kv_cache(const KVLayerView& kv) { kv_ = kv; }

  // Stores k and v of tokens with a write slot (none has one during a warm-up), then attends.
  //   metadata: of the batch, validated
  //   q [num_tokens, num_heads * head_dim] or 3-D;  out as q, with v's head size, written in full. Null q and
  //     out: only stores k and v
  //   k, v likewise with num_kv_heads, or both null: all keys come from the pool
  // Errors as paged_attention; kInvalidArgument if keys are to be stored and the metadata has no slots for them.
  void forward(const AttnMetadata& metadata, const TensorView& q, const TensorView& k, const TensorView& v,
               const TensorView& out, const AttentionOptions& options = {}) const;
  // Diffulex's spelling: the metadata is what the source fetches. Errors as above and as fetch_attn_metadata.
  void forward(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
               const AttentionOptions& options = {}) const {
    forward(source_.fetch_attn_metadata(), q, k, v, out, options);
  }

  std::string kernel_name() const;  // for the run report

 private:
  TensorView slots_of(const AttnMetadata& metadata, const TensorView& k, SaveKV save) const;
  void store(const StoreKVArgs& rows, const std::optional<NormRotaryArgs>& norm_rotary) const;
  void run(AttentionStepArgs& step) const;

  AttentionConfig config_;
  const OpSet& ops_;  // not owned
  const AttnMetadataSource& source_;
  KVLayerView kv_;
};

// The implementations as free functions, with the best kernels of this CPU. They set args.grouping.
void reference_attention(const PagedAttentionArgs& args, const OpContext& context);
void optimized_attention(const PagedAttentionArgs& args, const OpContext& context);  // one pass per query head
void grouped_attention(const PagedAttentionArgs& args, const OpContext& context);    // one pass per KV head

// Returns the ops of an implementation on a CPU whose ops are `ops`: the reference's for kReference.
const OpSet& ops_of(AttnImpl impl, const OpSet& ops);

}  // namespace headrace
