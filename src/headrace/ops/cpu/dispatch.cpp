#include "headrace/ops/cpu/dispatch.h"

#include <algorithm>
#include <array>
#include <string>

#include "headrace/ops/cpu/causal_conv1d.h"
#include "headrace/ops/cpu/cpu_features.h"
#include "headrace/ops/cpu/gated_delta_rule.h"
#include "headrace/ops/cpu/linear.h"
#include "headrace/ops/cpu/packed_linear.h"
#include "headrace/ops/cpu/paged_attention_plan.h"
#include "headrace/ops/cpu/rows.h"
#include "headrace/ops/cpu/sample_tokens.h"
#include "headrace/ops/cpu/store_kv.h"
#include "headrace/ops/cpu/token_confidence.h"
#include "headrace/ops/cpu/top_tokens.h"
#include "headrace/ops/cpu/unpacked_rows.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::cpu {
namespace {

// Run functions of all ops and variants: check, early return, params, kernel.
template <void (*kKernel)(const StoreKVParams&)>
void run_store_kv(const StoreKVArgs& args, const OpContext& context) {
  check(args);
  if (args.k.numel() == 0) return;
  kKernel(params_of(args, context));
}

template <void (*kKernel)(const PagedAttentionParams&)>
void run_paged_attention(const PagedAttentionArgs& args, const OpContext& context) {
  check(args);
  if (args.q.dim(0) == 0 || args.q.dim(1) == 0) return;
  const PagedAttentionPlan plan(args, context);
  kKernel(plan.params());
}

template <void (*kKernel)(const CausalConv1dParams&)>
void run_causal_conv1d(const CausalConv1dArgs& args, const OpContext& context) {
  check(args);
  if (args.x.numel() == 0) return;
  kKernel(params_of(args, context));
}

template <void (*kKernel)(const GatedDeltaRuleParams&)>
void run_gated_delta_rule(const GatedDeltaRuleArgs& args, const OpContext& context) {
  check(args);
  if (args.out.numel() == 0) return;
  kKernel(params_of(args, context));
}

template <void (*kKernel)(const LinearParams&), void (*kPackedKernel)(const PackedLinearParams&)>
void run_linear(const LinearArgs& args, const OpContext& context) {
  check(args);
  if (args.y.numel() == 0) return;
  if (!args.weight.packed()) return kKernel(params_of(args, context));
  if (context.activations == Activations::kFloat) return linear_of_unpacked(args, context, kKernel);
  kPackedKernel(packed_params_of(args, context));
}

template <void (*kKernel)(const RMSNormParams&)>
void run_rms_norm(const RMSNormArgs& args, const OpContext& context) {
  check(args);
  if (args.out.numel() == 0) return;
  kKernel(params_of(args, context));
}

template <void (*kKernel)(const RotaryEmbeddingParams&)>
void run_rotary_embedding(const RotaryEmbeddingArgs& args, const OpContext& context) {
  check(args);
  if (args.x.numel() == 0) return;
  kKernel(params_of(args, context));
}

template <void (*kKernel)(const PointwiseParams&)>
void run_pointwise(const PointwiseArgs& args, const OpContext& context) {
  check(args);
  if (args.out.numel() == 0) return;
  kKernel(params_of(args, context));
}

template <void (*kKernel)(const EmbeddingParams&)>
void run_embedding(const EmbeddingArgs& args, const OpContext& context) {
  check(args);
  if (args.out.numel() == 0) return;
  if (args.table.packed()) return embedding_of_packed(args, context);
  kKernel(params_of(args, context));
}

template <void (*kKernel)(const TokenConfidenceParams&)>
void run_token_confidence(const TokenConfidenceArgs& args, const OpContext& context) {
  check(args);
  if (args.logits.dim(0) == 0) return;
  kKernel(params_of(args, context));
}

constexpr int32_t kLibraryRows = 16;
constexpr int32_t kLibraryRowsBesidePairs = 32;  // see linear_pairs.h

#define HR_OP_SET(isa, rows)                                                                  \
  constexpr OpSet k_##isa = {.name = #isa,                                                    \
                             .store_kv = run_store_kv<isa::store_kv>,                         \
                             .paged_attention = run_paged_attention<isa::paged_attention>,    \
                             .causal_conv1d = run_causal_conv1d<isa::causal_conv1d>,          \
                             .gated_delta_rule = run_gated_delta_rule<isa::gated_delta_rule>, \
                             .linear = run_linear<isa::linear, isa::packed_linear>,           \
                             .rms_norm = run_rms_norm<isa::rms_norm>,                         \
                             .rotary_embedding = run_rotary_embedding<isa::rotary_embedding>, \
                             .pointwise = run_pointwise<isa::pointwise>,                      \
                             .embedding = run_embedding<isa::embedding>,                      \
                             .token_confidence = run_token_confidence<isa::token_confidence>, \
                             .sample_tokens = sample_tokens,                                  \
                             .penalize_tokens = reference::penalize_tokens /* a few words */, \
                             .bias_tokens = reference::bias_tokens,                           \
                             .mask_tokens = reference::mask_tokens,                           \
                             .top_tokens = top_tokens,                                        \
                             .take_tokens = reference::take_tokens,                           \
                             .library_rows = (rows),                                          \
                             .most_conv_width = kMaxConvWidth}

HR_OP_SET(portable, kLibraryRows);
#ifdef HR_HAVE_AVX2
HR_OP_SET(avx2, kLibraryRows);
#endif
#ifdef HR_HAVE_AVX512
HR_OP_SET(avx512, kLibraryRows);
#endif
#ifdef HR_HAVE_AVX512BF16
HR_OP_SET(avx512bf16, kLibraryRowsBesidePairs);
#endif
#ifdef HR_HAVE_AMX
HR_OP_SET(amx, kLibraryRows);
#endif

bool always() { return true; }

// Best first.
constexpr std::array kSets = {
#ifdef HR_HAVE_AMX
    KernelSet{&k_amx, has_amx},
#endif
#ifdef HR_HAVE_AVX512BF16
    KernelSet{&k_avx512bf16, has_avx512_bf16},
#endif
#ifdef HR_HAVE_AVX512
    KernelSet{&k_avx512, has_avx512},
#endif
#ifdef HR_HAVE_AVX2
    KernelSet{&k_avx2, has_avx2},
#endif
    KernelSet{&k_portable, always},
};

}  // namespace

std::span<const KernelSet> kernel_sets() { return kSets; }

std::span<const std::string_view> known_kernel_sets() {
#if defined(__x86_64__)
  static constexpr std::array<std::string_view, 5> kNames = {"amx", "avx512bf16", "avx512", "avx2", "portable"};
#else
  static constexpr std::array<std::string_view, 1> kNames = {"portable"};
#endif
  return kNames;
}

const OpSet& select_kernel_set(std::optional<std::string_view> name) {
  std::string runnable;
  bool built = false;
  for (const KernelSet& set : kSets) {
    built = built || name == set.ops->name;
    if (!set.runs_here()) continue;
    if (!name || *name == set.ops->name) return *set.ops;
    runnable += (runnable.empty() ? "" : ", ") + std::string(set.ops->name);
  }
  const bool known = std::ranges::find(known_kernel_sets(), *name) != known_kernel_sets().end();
  const char* why = built ? "does not run on this machine" : known ? "is not built in" : "is unknown";
  throw Error(ErrorCode::kUnsupported,
              str("cpu kernels: set '", *name, "' ", why, "; sets that are built in and run here: ", runnable));
}

}  // namespace headrace::cpu
