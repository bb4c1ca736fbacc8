#include "headrace/attention/attention.h"

#include <array>
#include <utility>

#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/op_set.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace {
namespace {

TensorView heads_of(const TensorView& x, int64_t heads) {
  HR_REQUIRE(x.rank() == 3 || (x.rank() == 2 && x.dim(1) % heads == 0), ErrorCode::kInvalidArgument,
             "attention: shape ", x.shape(), " is neither [tokens, heads * dim] nor [tokens, heads, dim] for ", heads,
             " heads");
  return x.rank() == 3 ? x : x.reshape({x.dim(0), heads, x.dim(1) / heads});
}

HeadGrouping grouping_of(AttnImpl impl) {
  return impl == AttnImpl::kOptimized ? HeadGrouping::kPerHead : HeadGrouping::kGrouped;
}

void attend(AttnImpl impl, const PagedAttentionArgs& args, const OpContext& context) {
  PagedAttentionArgs of_impl = args;
  of_impl.grouping = grouping_of(impl);
  ops_of(impl, cpu::select_kernel_set()).paged_attention(of_impl, context);
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
    : config_(config),
      ops_(config.ops != nullptr ? *config.ops : ops_of(config.attn_impl, cpu::select_kernel_set())),
      source_(source) {
  HR_REQUIRE(config.kv_cache_layout == "unified", ErrorCode::kUnsupported, "attention: kv cache layout '",
             config.kv_cache_layout, "' is not built; built is: unified");
  HR_REQUIRE(!config.sliding_window || *config.sliding_window > 0, ErrorCode::kInvalidArgument,
             "attention: sliding_window is ", config.sliding_window.value_or(0), ", expected 1 or more, or absent");
  HR_REQUIRE(config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads == 0, ErrorCode::kInvalidArgument,
             "attention: ", config.num_heads, " query heads are not a multiple of ", config.num_kv_heads, " kv heads");
}

const OpSet& ops_of(AttnImpl impl, const OpSet& ops) { return impl == AttnImpl::kReference ? reference::ops() : ops; }

// Returns the write slots of the new keys; null: they are not stored.
TensorView Attention::slots_of(const AttnMetadata& metadata, const TensorView& k, SaveKV save) const {
  if (!k || !kv_ || save == SaveKV::kNo) return {};
  const bool encoder = config_.keys == PagedAttentionArgs::Keys::kEncoder;
  const TensorView& slots = encoder ? metadata.encoder_write_slots : metadata.write_slots;
  HR_REQUIRE(slots, ErrorCode::kInvalidArgument, "attention: keys are to be stored, but the batch has no ",
             encoder ? "encoder write slots" : "write slots");
  return slots;
}

void Attention::run(AttentionStepArgs& step) const {
  step.attention.grouping = grouping_of(config_.attn_impl);
  const bool fuses = config_.attn_impl == AttnImpl::kGrouped && (step.rotates() || step.gate);
  if (fuses && ops_.attention_step(step, config_.context)) return;
  attention_step_apart(ops_, step, config_.context);
}

void Attention::store(const StoreKVArgs& rows, const std::optional<NormRotaryArgs>& norm_rotary) const {
  if (!rows.slots) return;
  if (norm_rotary) {
    if (norm_rotary->k_weight) ops_.rms_norm(norm_rotary->norm_of(rows.k, norm_rotary->k_weight), config_.context);
    ops_.rotary_embedding(norm_rotary->rotation_of(rows.k), config_.context);
  }
  ops_.store_kv(rows, config_.context);
}

void Attention::forward(const AttnMetadata& metadata, const TensorView& q, const TensorView& k, const TensorView& v,
                        const TensorView& out, const AttentionOptions& options) const {
  if ((q ? q : k).dim(0) == 0) return;
  const TensorView new_k = k ? heads_of(k, config_.num_kv_heads) : k, new_v = v ? heads_of(v, config_.num_kv_heads) : v;
  const TensorView slots = slots_of(metadata, new_k, options.save_kv_cache);
  if (!q) return store({.k = new_k, .v = new_v, .slots = slots, .kv = kv_}, options.norm_rotary);
  // Device kernels are fastest if all keys come from one place; encoder keys are always the pool's.
  const bool all_stored =
      metadata.on_device != nullptr && metadata.on_device->new_keys == DeviceMetadata::NewKeys::kAllStored;
  const bool from_pool = config_.keys == PagedAttentionArgs::Keys::kEncoder || (slots && all_stored);
  AttentionStepArgs step{.norm_rotary = options.norm_rotary.value_or(NormRotaryArgs{}),
                         .store = {.k = new_k, .v = new_v, .slots = slots, .kv = kv_},
                         .attention = {.q = heads_of(q, config_.num_heads),
                                       .k_new = from_pool ? TensorView() : new_k,
                                       .v_new = from_pool ? TensorView() : new_v,
                                       .kv = kv_,
                                       .spans = metadata.spans,
                                       .on_device = metadata.on_device,
                                       .page_table = metadata.page_table,
                                       .scale = config_.scale,
                                       .logit_cap = config_.logit_cap,
                                       .window = config_.sliding_window.value_or(kNoWindow),
                                       .type = config_.attn_type,
                                       .keys = config_.keys,
                                       .out = heads_of(out, config_.num_heads),
                                       .lse = options.lse},
                         .gate = options.gate};
  if (options.norm_rotary) step.norm_rotary.q = step.attention.q, step.norm_rotary.k = new_k;
  run(step);
}

std::string Attention::kernel_name() const { return str(name_of(config_.attn_impl), " ", ops_.name); }

void reference_attention(const PagedAttentionArgs& args, const OpContext& context) {
  attend(AttnImpl::kReference, args, context);
}

void optimized_attention(const PagedAttentionArgs& args, const OpContext& context) {
  attend(AttnImpl::kOptimized, args, context);
}

void grouped_attention(const PagedAttentionArgs& args, const OpContext& context) {
  attend(AttnImpl::kGrouped, args, context);
}

}  // namespace headrace
