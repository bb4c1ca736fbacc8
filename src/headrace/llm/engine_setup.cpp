#include "headrace/llm/engine_setup.h"

#include <algorithm>
#include <limits>

#include "headrace/core/device_runtime.h"
#include "headrace/core/file_exists.h"
#include "headrace/core/host_memory.h"
#include "headrace/decoding/decoding_option.h"
#include "headrace/engine/decoding_checks.h"
#include "headrace/engine/step_rows.h"
#include "headrace/gguf/gguf_file.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/device_registry.h"

namespace headrace {
namespace {

constexpr int32_t kTokensPerStep = 512, kTokensPerDeviceStep = 16384;  // a device needs many tokens to be busy
constexpr int32_t kMostRows = 1 << 20;                                 // of a step

OpContext context_on(DeviceRuntime& runtime, const LLMOptions& o) {
  OpContext context = o.context;
  context.stream = runtime.stream();
  return context;
}

ModelOptions model_options(DeviceRuntime& runtime, const LLMOptions& o) {
  return {.dtype = o.dtype,
          .mask_token_id = o.decoding.mask_token_id,
          .block_size = o.decoding.block_size,
          .ops = &backend_ops(o.backend, runtime.device(), {.kernel_set = o.kernel_set}),
          .context = context_on(runtime, o),
          .runtime = &runtime,
          .random_weights = o.random_weights,
          .adapter = o.adapter,
          .quantize = o.quantize,
          .progress = o.progress,
          .log = o.log,
          .guard = o.guard};
}

struct StepRows {
  int32_t least = 1, most = 1;  // tokens that a step of one request may need; that a step can have
};

// Full attention runs a text as a whole. Causal and block masks run it in chunks, at least as large as a request's step
// may need. Texts may end inside a block, steps never do.
StepRows rows_of_steps(const ModelInfo& model, const EngineConfig& c) {
  const int32_t context = c.max_context_len;
  const auto& diffusion = model.diffusion;
  if (!diffusion) return {.least = 1, .most = context};
  const int32_t whole = context + c.decoding.block_size.value_or(diffusion->block_size);
  if (diffusion->attention == DiffusionInfo::Attention::kFull) {
    const bool guided =
        diffusion->guidance != DiffusionInfo::Guidance::kNone && reads_option(c.strategy, DecodingOption::kCfgScale);
    const int32_t rows = guided ? 2 * whole : whole;  // a guided request's step runs its text twice
    return {.least = rows, .most = rows};
  }
  StrategyConfig decoding = c.decoding;
  decoding.model = diffusion;
  const int32_t needed = std::min(most_step_rows(make_strategy(c.strategy, decoding)->traits()), whole);
  return {.least = needed, .most = std::max(context, needed)};
}

StepRows checked_rows(const ModelInfo& model, const EngineConfig& c, const LLMOptions& o) {
  StepRows rows = rows_of_steps(model, c);
  rows.most = static_cast<int32_t>(std::min<int64_t>(int64_t{rows.most} * o.max_num_seqs, kMostRows));
  HR_REQUIRE(!o.max_num_batched_tokens || *o.max_num_batched_tokens >= rows.least, ErrorCode::kInvalidArgument,
             "max_num_batched_tokens is ", *o.max_num_batched_tokens, ", expected ", rows.least,
             " or more: a step of strategy '", c.strategy, "' may need so many");
  return rows;
}

void set_step_rows(EngineConfig& c, const ModelInfo& model, const LLMOptions& o) {
  const StepRows rows = checked_rows(model, c, o);
  const bool on_cpu = c.runner.runtime->device().type == DeviceType::kCPU;
  const int32_t usual = std::max(on_cpu ? kTokensPerStep : kTokensPerDeviceStep, o.max_num_seqs);
  const int32_t most = o.max_num_batched_tokens.value_or(usual);
  c.runner.max_tokens = std::clamp(most, rows.least, rows.most);
  const int32_t least = std::max({rows.least, kRowsMultiple, o.max_num_seqs});
  if (!o.max_num_batched_tokens && least < c.runner.max_tokens) c.least_step_rows = least;
}

int32_t context_of(const ModelInfo& model, const LLMOptions& o) {
  if (o.max_model_len == kWholeContext) return model.context_length;
  return o.max_model_len > 0 ? o.max_model_len : std::min(model.context_length, kDefaultContext);
}

// Returns the name of the context limit for errors: without -c it may be the model's.
std::string context_name(const ModelInfo& model, const LLMOptions& o) {
  const bool of_model = o.max_model_len <= 0 && context_of(model, o) == model.context_length;
  return of_model ? "the model's context" : EngineConfig().context_name;
}

std::string strategy_name(const ModelInfo& model, const LLMOptions& o) {
  return o.strategy == "auto" ? std::string(default_strategy(model.diffusion)) : o.strategy;
}

// Holds the fields that strategy_of() reads.
EngineConfig strategy_config(const ModelInfo& model, const LLMOptions& o) {
  return {.max_context_len = context_of(model, o), .strategy = strategy_name(model, o), .decoding = o.decoding};
}

CacheNeeds cache_needs(const ModelInfo& model, const LLMOptions& o, const StrategyTraits& traits) {
  const bool caches = o.keep_text == SchedulerConfig::KeepText::kYes && traits.text_block.has_value();
  const DType dtype = o.kv_dtype.value_or(model.dtype);
  GDNPoolConfig states = model.gdn;
  states.num_slots = 0;  // a pool has one more, for padding
  return {.page_bytes = KVPool::bytes_for({.groups = model.kv_groups, .page_size = o.page_size, .dtype = dtype}),
          .state_bytes = model.num_gdn_layers > 0 ? GDNPool::bytes_for(states) : 0,
          .page_size = o.page_size,
          .max_requests = o.max_num_seqs,
          .max_context_len = context_of(model, o),
          .caches_text = caches ? CacheNeeds::CachesText::kYes : CacheNeeds::CachesText::kNo};
}

int64_t free_memory(Device device) {
  if (device.type != DeviceType::kCPU) return cuda_module().free_bytes(device.index);
  return available_host_memory().value_or(std::numeric_limits<int64_t>::max());
}

}  // namespace

void check_options(const LLMOptions& o) {
  KVPool::check_page_size(o.page_size);
  HR_REQUIRE(o.max_num_seqs >= 1, ErrorCode::kInvalidArgument, "max_num_seqs is ", o.max_num_seqs,
             ", expected 1 or more");
}

MemoryPlan cache_plan(const ModelInfo& model, Device device, const LLMOptions& o) {
  const auto strategy = strategy_of(model, strategy_config(model, o));
  const CacheNeeds needs = cache_needs(model, o, strategy->traits());
  return plan_memory(o.kv_cache_memory_bytes ? *o.kv_cache_memory_bytes : default_memory(needs, free_memory(device)),
                     needs);
}

EngineConfig engine_config(const Model& model, const Tokenizer& tokenizer, DeviceRuntime& runtime,
                           const MemoryPlan& memory, const LLMOptions& o) {
  const int32_t context = context_of(model.info(), o);
  EngineConfig c{.runner = {.backend = o.backend,
                            .kernel_set = o.kernel_set,
                            .attn_impl = o.attn_impl,
                            .runtime = &runtime,
                            .context = context_on(runtime, o),
                            .num_pages = memory.num_pages,
                            .page_size = o.page_size,
                            .num_states = memory.num_states,
                            .kv_dtype = o.kv_dtype,
                            .graphs = o.graphs},
                 .max_requests = o.max_num_seqs,
                 .max_context_len = context,
                 .context_name = context_name(model.info(), o),
                 .vocab = std::min(tokenizer.vocab_size(), model.info().vocab_size),
                 .strategy = strategy_name(model.info(), o),
                 .keep_text = o.keep_text,
                 .decoding = o.decoding,
                 .log = o.log};
  set_step_rows(c, model.info(), o);
  return c;
}

std::unique_ptr<Model> load_checked(const ModelDescription& model, DeviceRuntime& runtime, const LLMOptions& o) {
  if (o.kv_dtype) KVPool::check_dtype_on(runtime.device(), *o.kv_dtype);
  checked_strategy(model, o, {});
  return load_model(model, model_options(runtime, o));
}

Tokenizer tokenizer_of(const std::filesystem::path& model, const LLMOptions& o) {
  require_model_directory(model, o.random_weights);
  if (is_gguf_path(model)) return Tokenizer::from_directory(model);
  const auto has = [&model](const char* file) { return file_exists(model / file); };
  if (o.random_weights && !has("tokenizer.json") && !has("merges.txt")) return Tokenizer::of_bytes();
  return Tokenizer::from_directory(model);
}

std::string checked_strategy(const ModelDescription& model, const LLMOptions& o, const SamplingParams& params) {
  const ModelInfo stated = stated_info(
      model, {.dtype = o.dtype, .mask_token_id = o.decoding.mask_token_id, .block_size = o.decoding.block_size});
  const EngineConfig engine = strategy_config(stated, o);
  const auto strategy = strategy_of(stated, engine);
  checked_rows(stated, engine, o);
  if (o.kv_cache_memory_bytes) plan_memory(*o.kv_cache_memory_bytes, cache_needs(stated, o, strategy->traits()));
  check_params(params, engine.strategy, stated);
  check_graphs(params, o.graphs);
  return engine.strategy;
}

}  // namespace headrace
