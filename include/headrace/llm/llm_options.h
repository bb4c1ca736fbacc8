// How a model is loaded and run.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "headrace/cache/memory_plan.h"
#include "headrace/engine/engine.h"
#include "headrace/models/model_registry.h"
#include "headrace/text/tokenizer.h"

namespace headrace {

inline constexpr int32_t kWholeContext = -1;  // value of LLMOptions::max_model_len
// Upper bound, in tokens, of the default context.
inline constexpr int32_t kDefaultContext = 8192;

struct LLMOptions {
  std::optional<DType> dtype;     // activations; absent: the checkpoint's
  std::optional<DType> kv_dtype;  // KV cache; absent: that of activations
  std::string device = "auto";    // see open_device
  std::string backend = "auto";
  std::optional<std::string> kernel_set;
  std::optional<AttnImpl> attn_impl;  // absent: the backend's own
  OpContext context;
  RunnerConfig::Graphs graphs = RunnerConfig::Graphs::kPreferred;
  int32_t page_size = 64;
  // Most tokens of a step, of all prompts together (Scheduler). Absent: about 0.1 s of them, by the time of the first
  // step of 256 tokens or more; 256 to 512 on a CPU, to 16384 on a GPU, at most the context. At least what one step of
  // the strategy needs.
  std::optional<int32_t> max_num_batched_tokens;
  int32_t max_model_len = 0;      // 0: the model's, at most kDefaultContext; kWholeContext: the model's
  std::string strategy = "auto";  // "auto": the strategy that the model was trained for
  StrategyConfig decoding;        // the engine sets its `model`
  int32_t max_num_seqs = 1;       // most requests that run at a time; others wait
  SchedulerConfig::KeepText keep_text = SchedulerConfig::KeepText::kYes;
  // Bytes of K, V and recurrent states, of running requests and of cached text (plan_memory). Absent: those of eight
  // chats, or of max_num_seqs if these are more, at most half of the free memory (default_memory). A CPU takes memory
  // when it is used, a GPU at once.
  std::optional<int64_t> kv_cache_memory_bytes;
  std::optional<uint64_t> random_weights;        // only config.json is needed; without a tokenizer, bytes are tokens
  std::optional<std::filesystem::path> adapter;  // a LoRA directory, merged into the weights
  std::optional<QuantPreset> quantize;           // weights of floats become blocks at load; on a CPU
  ProgressCallback progress;
  LogCallback log;               // what was loaded and what runs it; warnings
  SigbusGuard* guard = nullptr;  // not owned
};

// Returns the tokenizer that an LLM would use, before weights are read. Error kModelFile, kUnsupported.
Tokenizer tokenizer_of(const std::filesystem::path& model, const LLMOptions& options);

// Returns the name of the strategy that would decode `model`, before weights are read. Throws the errors of LLM and
// generate() that follow from the description, the options and the parameters.
std::string checked_strategy(const ModelDescription& model, const LLMOptions& options, const SamplingParams& params);

}  // namespace headrace
