// LLM: text in, text out. Used by the program, the server and the Python package.
#pragma once
#include <cmath>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "headrace/cache/memory_plan.h"
#include "headrace/engine/engine.h"
#include "headrace/llm/step_recorder.h"
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
  SchedulerConfig::KeepText keep_text = SchedulerConfig::KeepText::kYes;
  // Bytes of K, V and recurrent states, of one running request and of cached text (plan_memory). Absent: those of eight
  // chats, at most half of the free memory (default_memory). A CPU takes memory when it is used, a GPU at once.
  std::optional<int64_t> cache_memory;
  std::optional<uint64_t> random_weights;        // only config.json is needed; without a tokenizer, bytes are tokens
  std::optional<std::filesystem::path> adapter;  // a LoRA directory, merged into the weights
  ProgressCallback progress;
  LogCallback log;               // what was loaded and what runs it; warnings
  SigbusGuard* guard = nullptr;  // not owned
};

// Returns the tokenizer that LLM would use, before weights are read. Error kModelFile, kUnsupported.
Tokenizer tokenizer_of(const std::filesystem::path& model, const LLMOptions& options);

// Returns the name of the strategy that would decode `model`, before weights are read. Throws the errors of LLM and
// generate() that follow from the description, the options and the parameters.
std::string checked_strategy(const ModelDescription& model, const LLMOptions& options, const SamplingParams& params);

inline constexpr int32_t kPerplexityWindow = 512;  // tokens

struct Completion {
  std::string text;
  std::vector<int32_t> prompt_ids, ids;
  FinishReason finish_reason = FinishReason::kLength;
  std::vector<float> logprobs;  // per id: natural log-probability when chosen, before temperature
  int32_t num_reused = 0;       // prompt tokens taken from the prefix cache
  int32_t num_visible = 0;      // ids with some text in `text`: no end token, no stop text
  int32_t num_first = 0;        // of these, from the step of the first id
  int32_t num_forwards = 0;     // forward passes that sampled or stored tokens

  double tokens_per_forward() const { return num_forwards > 0 ? static_cast<double>(num_visible) / num_forwards : 0; }
};

enum class StreamAction : uint8_t { kContinue, kStop };

// Not thread-safe. Each LLM has a runtime of its own (open_device), so several may be created, used and destroyed by
// threads of their own, also on one GPU. They share no memory: each loads its weights. Those created at once count
// the same free memory, so give each a cache_memory. A kernel that faults ends all LLMs of its device with error kCuda.
class LLM {
 public:
  // Loads the model. Error kModelFile, kUnsupported, kOutOfMemory: one sentence.
  LLM(const ModelDescription& model, const LLMOptions& options);
  // Reads the description of the model in `directory` first. Errors also as read_description.
  LLM(const std::filesystem::path& directory, const LLMOptions& options);

  // Generates text. Calls on_text for each token with the text that it completes, and once for a step without tokens
  // (of a long prompt). That text is often empty, never contains a stop text or anything after one, and never ends
  // inside a character. `so_far` includes it and that token. kStop ends the request as aborted.
  // Errors as Engine::add and step, and that of the request (StepOutput::error); a failed request leaves nothing
  // behind.
  using OnText = std::function<StreamAction(std::string_view piece, const Completion& so_far)>;
  // Called after each step, after its text was delivered.
  using OnStep = std::function<void(const StepReport& report)>;
  Completion generate(std::string_view prompt, const SamplingParams& params, const OnText& on_text,
                      const OnStep& on_step = {});
  // As above for a tokenized prompt.
  Completion generate(std::vector<int32_t> prompt_ids, const SamplingParams& params, const OnText& on_text,
                      const OnStep& on_step = {});

  struct Perplexity {
    double bits = 0;
    int64_t bytes = 0, tokens = 0;
    int32_t window = 0;  // tokens per window
    double per_token() const { return std::exp2(bits / static_cast<double>(tokens)); }
    double bits_per_byte() const { return bits / static_cast<double>(bytes); }  // independent of the vocabulary
  };
  // Computes perplexity over windows of `window` tokens without overlap, shorter if the context or a step is; each
  // predicts its tokens 1.. and counts their bytes. If the tokenizer puts tokens before a text, each window begins with
  // them and predicts all tokens of the text. Error kInvalidArgument for full-attention and canvas models. Calls
  // `on_window` after each window with the tokens done and their total.
  using OnWindow = std::function<void(int64_t done, int64_t total)>;
  Perplexity perplexity(std::string_view text, int32_t window = kPerplexityWindow, const OnWindow& on_window = {});

  Device device() const { return runtime_->device(); }
  const Model& model() const { return *model_; }
  const ModelInfo& model_info() const { return model_->info(); }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Returns the model's default sampling parameters: generation_config.json's or, for the schedule 'reference', the
  // published loop's (ReferenceDefaults).
  SamplingParams default_params(DecodingParams::Schedule schedule = DecodingParams::Schedule::kThreshold) const;
  const MemoryPlan& memory_plan() const { return memory_plan_; }
  const EngineConfig& config() const { return engine_->config(); }
  Engine& engine() { return *engine_; }

 private:
  LLM(const ModelDescription& model, const LLMOptions& options, std::future<Tokenizer> tokenizer);

  std::filesystem::path directory_;         // of the model
  std::shared_ptr<DeviceRuntime> runtime_;  // before what is made with it, which is destroyed first
  std::future<void> matmul_library_;        // its destructor waits until the library has started
  Tokenizer tokenizer_;
  SamplingParams default_params_;
  std::unique_ptr<Model> model_;
  MemoryPlan memory_plan_;  // of the engine's pools
  std::unique_ptr<Engine> engine_;
};

}  // namespace headrace
