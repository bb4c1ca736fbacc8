// The strategies' attention layer: the same call as RadixAttention, reading the step's metadata from a source.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "headrace/attention/attn_metadata_source.h"
#include "headrace/kernels/paged_attention.h"

namespace headrace {

// Three code paths. kGrouped is the default and the only one that performance is reported from.
enum class AttnImpl : uint8_t { kReference, kOptimized, kGrouped };
std::string_view name_of(AttnImpl impl);  // "reference", "optimized", "grouped"
// From a name of the above, or the origin's naive, triton, triton_grouped. Error kUnsupported for others.
AttnImpl attn_impl_from(std::string_view name);

struct AttentionConfig {
  int32_t num_heads = 0, head_dim = 0;
  float scale = 1;
  int32_t num_kv_heads = 0;
  AttnImpl attn_impl = AttnImpl::kGrouped;
  std::optional<int32_t> sliding_window;         // keys that a row sees, its own included
  std::string_view kv_cache_layout = "unified";  // the only one; "distinct" is refused
  OpContext context;
};

// Not thread-safe, as its source.
class Attention {
 public:
  // `source` is not owned and outlives the layer.
  Attention(const AttentionConfig& config, const AttnMetadataSource& source);

  // The layer's slice of the pool; null (the default) attends over the new keys alone.
  void bind_kv_cache(const KVLayerView& kv) { kv_ = kv; }

  // Stores k and v of rows with a write slot (never while the source is warming up), then attends.
  //   q [num_tokens, num_heads * head_dim] or 3-D;  k, v likewise with num_kv_heads;  out as q, written in full
  // Errors as paged_attention.
  void forward(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out) const;

  std::string kernel_name() const;  // of the run report: "grouped avx512"

 private:
  AttentionConfig config_;
  const AttnMetadataSource& source_;
  KVLayerView kv_;
};

// The three implementations as free functions. args.grouping is theirs to set.
void reference_attention(const PagedAttentionArgs& args, const OpContext& context);
void optimized_attention(const PagedAttentionArgs& args, const OpContext& context);  // a pass per query head
void grouped_attention(const PagedAttentionArgs& args, const OpContext& context);    // a pass per kv head

}  // namespace headrace
