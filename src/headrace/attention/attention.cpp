#include "headrace/attention/attention.h"

#include <array>
#include <utility>

#include "headrace/kernels/cpu/dispatch.h"
#include "headrace/kernels/reference/reference_ops.h"

namespace headrace {
namespace {

TensorView heads_of(const TensorView& x, int64_t heads) {
  HR_REQUIRE(x.rank() == 3 || (x.rank() == 2 && x.dim(1) % heads == 0), ErrorCode::kInvalidArgument,
             "attention: shape ", x.shape(), " is neither [tokens, heads * dim] nor [tokens, heads, dim] for ", heads,
             " heads");
  return x.rank() == 3 ? x : x.reshape({x.dim(0), heads, x.dim(1) / heads});
}

void run(AttnImpl impl, const PagedAttentionArgs& args, const OpContext& context) {
  switch (impl) {
    case AttnImpl::kReference: return reference_attention(args, context);
    case AttnImpl::kOptimized: return optimized_attention(args, context);
    case AttnImpl::kGrouped: return grouped_attention(args, context);
  }
}

}  // namespace

std::string_view name_of(AttnImpl impl) {
  switch (impl) {
    case AttnImpl::kReference: return "reference";
    case AttnImpl::kOptimized: return "optimized";
    case AttnImpl::kGrouped: return "grouped";
  }
  return "unknown";
}

AttnImpl attn_impl_from(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, AttnImpl>, 6> kNames = {{{"reference", AttnImpl::kReference},
                                                                            {"optimized", AttnImpl::kOptimized},
                                                                            {"grouped", AttnImpl::kGrouped},
                                                                            {"naive", AttnImpl::kReference},
                                                                            {"triton", AttnImpl::kOptimized},
                                                                            {"triton_grouped", AttnImpl::kGrouped}}};
  for (const auto& [known, impl] : kNames) {
    if (name == known) return impl;
  }
  throw Error(ErrorCode::kUnsupported,
              str("attention implementation '", name, "' is not built; built are: reference, optimized, grouped"));
}

Attention::Attention(const AttentionConfig& config, const AttnMetadataSource& source)
    : config_(config), source_(source) {
  HR_REQUIRE(config.kv_cache_layout == "unified", ErrorCode::kUnsupported, "attention: kv cache layout '",
             config.kv_cache_layout, "' is not built; built is: unified");
  HR_REQUIRE(!config.sliding_window || *config.sliding_window > 0, ErrorCode::kInvalidArgument,
             "attention: sliding_window is ", config.sliding_window.value_or(0), ", expected 1 or more, or absent");
  HR_REQUIRE(config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads == 0, ErrorCode::kInvalidArgument,
             "attention: ", config.num_heads, " query heads are not a multiple of ", config.num_kv_heads, " kv heads");
}

void Attention::forward(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out) const {
  const AttnMetadata& metadata = source_.fetch_attn_metadata();
  const TensorView k_heads = k ? heads_of(k, config_.num_kv_heads) : k,
                   v_heads = v ? heads_of(v, config_.num_kv_heads) : v;
  if (q.dim(0) == 0) return;
  if (k && kv_ && metadata.write_slots && !source_.is_warming_up()) {
    const StoreKVArgs store{.k = k_heads, .v = v_heads, .slots = metadata.write_slots, .kv = kv_};
    if (config_.attn_impl == AttnImpl::kReference) {
      reference::store_kv(store, config_.context);
    } else {
      cpu::select_kernel_set().store_kv(store, config_.context);
    }
  }
  run(config_.attn_impl,
      {.q = heads_of(q, config_.num_heads),
       .k_new = k_heads,
       .v_new = v_heads,
       .kv = kv_,
       .spans = metadata.spans,
       .page_table = metadata.page_table,
       .scale = config_.scale,
       .window = config_.sliding_window.value_or(kNoWindow),
       .out = heads_of(out, config_.num_heads)},
      config_.context);
}

std::string Attention::kernel_name() const {
  const std::string_view set =
      config_.attn_impl == AttnImpl::kReference ? reference::ops().name : cpu::select_kernel_set().name;
  return str(name_of(config_.attn_impl), " ", set);
}

void reference_attention(const PagedAttentionArgs& args, const OpContext& context) {
  reference::paged_attention(args, context);
}

void optimized_attention(const PagedAttentionArgs& args, const OpContext& context) {
  PagedAttentionArgs per_head = args;
  per_head.grouping = HeadGrouping::kPerHead;
  cpu::select_kernel_set().paged_attention(per_head, context);
}

void grouped_attention(const PagedAttentionArgs& args, const OpContext& context) {
  PagedAttentionArgs grouped = args;
  grouped.grouping = HeadGrouping::kGrouped;
  cpu::select_kernel_set().paged_attention(grouped, context);
}

}  // namespace headrace
