// Attention of the rows of a step, whose metadata is read from a source: what a strategy planned, the runner installs,
// and no layer hands on. Models reach it through RadixAttention and their backend.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "headrace/attention/attn_metadata_source.h"
#include "headrace/attention/radix_attention.h"
#include "headrace/ops/op_set.h"

namespace headrace {

// Three code paths, on a CPU and on a device. kGrouped is the default and the only one that performance is reported
// from.
enum class AttnImpl : uint8_t { kReference, kOptimized, kGrouped };
std::string_view name_of(AttnImpl impl);  // "reference", "optimized", "grouped"
// From a name of the above, or Diffulex's naive, triton, triton_grouped. Error kUnsupported for others.
AttnImpl attn_impl_from(std::string_view name);

struct AttentionConfig {
  int32_t num_heads = 0, head_dim = 0;
  float scale = 1;
  int32_t num_kv_heads = 0;
  AttnImpl attn_impl = AttnImpl::kGrouped;
  std::optional<int32_t> sliding_window = {};    // keys that a row sees, its own included
  std::string_view kv_cache_layout = "unified";  // the only one; "distinct" is refused
  OpContext context = {};
  const OpSet* ops = nullptr;  // not owned, of attn_impl; null: this processor's
  float logit_cap = 0;         // 0: none
  AttentionType attn_type = AttentionType::kDecoder;
  PagedAttentionArgs::Keys keys = PagedAttentionArgs::Keys::kSequence;
};

struct AttentionOptions {
  SaveKV save_kv_cache = SaveKV::kYes;
  TensorView lse = {};  // float32 [num_tokens, num_heads]: written with the log-sum-exp; or null
  std::optional<NormRotaryArgs> norm_rotary = {};  // as RadixAttentionOptions
  TensorView gate = {};                            // [num_tokens, num_heads, v_head_dim], likewise
};

// Not thread-safe, as its source.
class Attention {
 public:
  // `source` is not owned and outlives the layer.
  Attention(const AttentionConfig& config, const AttnMetadataSource& source);

  // The layer's slice of the pool; null (the default) attends over the new keys alone.
  void bind_kv_cache(const KVLayerView& kv) { kv_ = kv; }

  // Stores k and v of rows with a write slot (none has one while the source is warming up), then attends.
  //   q [num_tokens, num_heads * head_dim] or 3-D;  out as q, with v's size of a head, written in full; both null: k
  //   and v are stored and nobody attends
  //   k, v likewise with num_kv_heads, or both null: all keys come from the pool
  // Errors as paged_attention; kInvalidArgument when keys are to be stored and the metadata has no slots for them.
  void forward(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
               const AttentionOptions& options = {}) const;

  std::string kernel_name() const;  // of the run report: "grouped avx512"

 private:
  TensorView slots_of(const AttnMetadata& metadata, const TensorView& k, SaveKV save) const;
  void store(const StoreKVArgs& rows, const std::optional<NormRotaryArgs>& norm_rotary) const;
  void run(AttentionStepArgs step) const;

  AttentionConfig config_;
  const OpSet& ops_;  // not owned
  const AttnMetadataSource& source_;
  KVLayerView kv_;
};

// The three implementations as free functions, with the best kernels of this processor. args.grouping is theirs to set.
void reference_attention(const PagedAttentionArgs& args, const OpContext& context);
void optimized_attention(const PagedAttentionArgs& args, const OpContext& context);  // a pass per query head
void grouped_attention(const PagedAttentionArgs& args, const OpContext& context);    // a pass per kv head

// The set that an implementation runs on a CPU whose set is `ops`: the reference's for kReference.
const OpSet& ops_of(AttnImpl impl, const OpSet& ops);

}  // namespace headrace
