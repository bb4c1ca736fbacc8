#include "model_options.h"

#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/core/parallel.h"
#include "headrace/ops/cuda/attention/heuristics.h"
#include "headrace/ops/cuda/gemm/heuristics.h"
#include "log_sink.h"

namespace headrace::app {
namespace {

std::optional<DType> dtype_of(const std::string& name) {
  if (name == "auto") return std::nullopt;
  if (name == "float32") return DType::kF32;
  if (name == "float16") return DType::kF16;
  if (name == "int8") return DType::kI8;
  return name == "bfloat16" ? DType::kBF16 : DType::kE4M3;
}

// Error kInvalidArgument for a name that is not a kernel family's, or is that of the last one, which takes every call.
void require_families(std::string_view names) {
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    HR_REQUIRE(!cuda::GemmFamilies(name).empty() || !cuda::AttentionFamilies(name).empty(), ErrorCode::kInvalidArgument,
               "--leave-out: '", name,
               "' is no kernel family that can be left out, expected some of: ", cuda::gemm_family_names(), ", ",
               cuda::attention_family_names());
    names.remove_prefix(std::min(names.size(), name.size() + 1));
  }
}

}  // namespace

LLMOptions options_of(const ModelFlags& f) {
  require_families(f.leave_out);
  HR_REQUIRE(f.kernel_set.empty() || !f.device.starts_with("cuda"), ErrorCode::kInvalidArgument, "--kernel-set is ",
             f.kernel_set, ", expected none with --device ", f.device,
             ": it names a CPU's kernels; --backend cuda or cuda_baseline chooses a device's");
  LLMOptions options{
      .dtype = dtype_of(f.dtype), .kv_dtype = dtype_of(f.kv_dtype), .device = f.device, .backend = f.backend};
  if (f.attn_impl != "auto") options.attn_impl = attn_impl_from(f.attn_impl);
  if (!f.kernel_set.empty()) options.kernel_set = f.kernel_set;
  options.context.threads = f.threads > 0 ? f.threads : available_cores();
  options.context.leave_out = f.leave_out;
  options.context.activations = f.activations == "int8" ? Activations::kInt8 : Activations::kFloat;
  options.context.determinism = f.deterministic ? Determinism::kStrict : Determinism::kFast;
  options.graphs = f.require_graphs ? RunnerConfig::Graphs::kRequired
                   : f.no_graphs    ? RunnerConfig::Graphs::kOff
                                    : RunnerConfig::Graphs::kPreferred;
  options.page_size = f.page_size;
  options.max_model_len = f.max_model_len;
  options.kv_cache_memory_bytes = f.kv_cache_memory_bytes;
  options.max_num_batched_tokens = f.max_num_batched_tokens;
  options.random_weights = f.random_weights;
  if (!f.adapter.empty()) options.adapter = f.adapter;
  options.quantize = quant_preset_named(f.quantize);
  options.log = log_to_stderr(f.log_level);
  options.guard = f.guard;
  return options;
}

}  // namespace headrace::app
