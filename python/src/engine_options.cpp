#include "engine_options.h"

#include "fields.h"
#include "headrace/core/parallel.h"

namespace headrace::python {
namespace {

using Merge = StrategyConfig::Merge;

std::optional<DType> dtype_named(const Fields& flags, const char* name) {
  static constexpr std::array<std::string_view, 7> kNames = {"auto", "float32",  "bfloat16", "float16",
                                                             "fp8",  "fp8_e4m3", "int8"};
  static constexpr std::array kTypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3, DType::kE4M3, DType::kI8};
  const size_t index = flags.choice(name, kNames).value_or(0);
  return index == 0 ? std::nullopt : std::optional(kTypes[index - 1]);
}

std::optional<DType> activation_dtype(const Fields& flags) {
  static constexpr std::array<std::string_view, 3> kNames = {"auto", "float32", "bfloat16"};
  flags.choice("dtype", kNames);
  return dtype_named(flags, "dtype");
}

void read_machine(const Fields& flags, LLMOptions& options) {
  static constexpr std::array<std::string_view, 3> kGraphs = {"auto", "required", "off"};
  static constexpr std::array kModes = {RunnerConfig::Graphs::kPreferred, RunnerConfig::Graphs::kRequired,
                                        RunnerConfig::Graphs::kOff};
  flags.read("device", options.device);
  flags.read("backend", options.backend);
  flags.read("kernel_set", options.kernel_set);
  std::string attn_impl = "auto";
  flags.read("attn_impl", attn_impl);
  if (attn_impl != "auto") options.attn_impl = attn_impl_from(attn_impl);
  int threads = available_cores();
  flags.read("threads", threads);
  HR_REQUIRE(threads >= 1 && threads <= 1024, ErrorCode::kInvalidArgument, "threads is ", threads,
             ", expected 1 to 1024");
  options.context.threads = threads;
  bool deterministic = false;
  flags.read("deterministic", deterministic);
  options.context.determinism = deterministic ? Determinism::kStrict : Determinism::kFast;
  options.graphs = kModes[flags.choice("graphs", kGraphs).value_or(0)];
}

void read_memory(const Fields& flags, LLMOptions& options) {
  flags.read("max_model_len", options.max_model_len);
  HR_REQUIRE(options.max_model_len >= kWholeContext && options.max_model_len != 1, ErrorCode::kInvalidArgument,
             "max_model_len is ", options.max_model_len,
             ", expected 2 or more, or -1 (all that the model was made for)");
  flags.read("page_size", options.page_size);
  flags.read("kv_cache_memory_bytes", options.kv_cache_memory_bytes);
  HR_REQUIRE(!options.kv_cache_memory_bytes || *options.kv_cache_memory_bytes > 0, ErrorCode::kInvalidArgument,
             "kv_cache_memory_bytes is ", options.kv_cache_memory_bytes.value_or(0), ", expected a number above 0");
  flags.read("max_num_batched_tokens", options.max_num_batched_tokens);
  std::optional<int32_t> max_num_seqs;
  flags.read("max_num_seqs", max_num_seqs);
  HR_REQUIRE(!max_num_seqs || *max_num_seqs >= 1, ErrorCode::kInvalidArgument, "max_num_seqs is ",
             max_num_seqs.value_or(0), ", expected 1 or more");
  options.max_num_seqs = max_num_seqs.value_or(0);  // 0: Engine chooses
  bool keeps_text = true;
  flags.read("enable_prefix_caching", keeps_text);
  options.keep_text = keeps_text ? SchedulerConfig::KeepText::kYes : SchedulerConfig::KeepText::kNo;
}

void read_weights(const Fields& flags, LLMOptions& options) {
  static constexpr std::array<std::string_view, 4> kPresets = {"q8_0", "q4_k_m", "q5_k_m", "q6_k"};
  static constexpr std::array<std::string_view, 2> kActivations = {"int8", "bf16"};
  options.dtype = activation_dtype(flags);
  options.kv_dtype = dtype_named(flags, "kv_cache_dtype");
  flags.read("random_weights", options.random_weights);
  std::optional<std::string> adapter;
  flags.read("adapter", adapter);
  if (adapter) options.adapter = *adapter;
  if (const auto preset = flags.choice("quantize", kPresets)) options.quantize = quant_preset_named(kPresets[*preset]);
  const bool rounds = flags.choice("activations", kActivations).value_or(0) == 0;
  options.context.activations = rounds ? Activations::kInt8 : Activations::kFloat;
}

void read_decoding(const Fields& flags, LLMOptions& options) {
  static constexpr std::array<std::string_view, 2> kCaches = {"yes", "no"};
  static constexpr std::array<std::string_view, 3> kMerges = {"dmax_topk", "dmax_topk_as_summed", "iter_smooth_topk"};
  static constexpr std::array kModes = {Merge::Mode::kTopK, Merge::Mode::kTopKAsSummed, Merge::Mode::kSmooth};
  flags.read("strategy", options.strategy);
  StrategyConfig& decoding = options.decoding;
  flags.read("block_size", decoding.block_size);
  flags.read("mask_token_id", decoding.mask_token_id);
  flags.read("num_blocks", decoding.num_blocks);
  if (const auto cache = flags.choice("block_cache", kCaches))
    decoding.block_cache = *cache == 0 ? BlockCache::kYes : BlockCache::kNo;
  decoding.merge.mode = kModes[flags.choice("merge", kMerges).value_or(0)];
  std::optional<float> weight;
  flags.read("merge_weight", weight);
  HR_REQUIRE(!weight || decoding.merge.mode == Merge::Mode::kSmooth, ErrorCode::kInvalidArgument, "merge_weight is ",
             weight.value_or(0), ", expected none without merge='iter_smooth_topk'");
  decoding.merge.weight = weight.value_or(decoding.merge.weight);
}

}  // namespace

LLMOptions options_of(const nanobind::dict& given) {
  const Fields flags(given);
  LLMOptions options;
  read_machine(flags, options);
  read_memory(flags, options);
  read_weights(flags, options);
  read_decoding(flags, options);
  HR_REQUIRE(!options.kernel_set || !options.device.starts_with("cuda"), ErrorCode::kInvalidArgument, "kernel_set is ",
             options.kernel_set.value_or(""), ", expected none with device='", options.device,
             "': it names a CPU's kernels");
  return options;
}

}  // namespace headrace::python
