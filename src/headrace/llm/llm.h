// Text in, text out: what the program, the server and the Python package call.
#pragma once
#include <cmath>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "headrace/engine/engine.h"
#include "headrace/llm/step_recorder.h"
#include "headrace/models/model_registry.h"
#include "headrace/text/tokenizer.h"

namespace headrace {

inline constexpr int32_t kWholeContext = -1;  // of LLMOptions::max_model_len
// Tokens of a context that nobody states, at most.
inline constexpr int32_t kDefaultContext = 8192;

struct LLMOptions {
  std::optional<DType> dtype;     // of activations; absent: the checkpoint's
  std::optional<DType> kv_dtype;  // of keys and values in the cache; absent: that of activations
  std::string device = "auto";    // as open_device
  std::string backend = "auto";
  std::optional<std::string> kernel_set;
  std::optional<AttnImpl> attn_impl;  // absent: the backend's own
  OpContext context;
  RunnerConfig::Graphs graphs = RunnerConfig::Graphs::kPreferred;
  int32_t page_size = 64;
  int32_t max_model_len = 0;      // 0: the model's, at most kDefaultContext; kWholeContext: the model's
  std::string strategy = "auto";  // "auto": what the model was trained for
  StrategyConfig decoding;        // its `model` is the engine's to set
  SchedulerConfig::KeepText keep_text = SchedulerConfig::KeepText::kYes;
  int32_t cached_states = 8;                     // of hybrids, with kept text; each is as large as a running request's
  std::optional<uint64_t> random_weights;        // only config.json is needed; without a tokenizer, bytes are tokens
  std::optional<std::filesystem::path> adapter;  // a LoRA directory, merged into the weights
  ProgressCallback progress;
  LogCallback log;               // what was loaded, what runs it, and what may surprise
  SigbusGuard* guard = nullptr;  // not owned
};

// What LLM encodes prompts with, before weights are read. Error kModelFile, kUnsupported.
Tokenizer tokenizer_of(const std::filesystem::path& model, const LLMOptions& options);

// The name of the strategy that `model` is decoded with, before weights are read. Errors as LLM and its generate() for
// what config.json, the options and the parameters say.
std::string checked_strategy(const std::filesystem::path& model, const LLMOptions& options,
                             const SamplingParams& params);

inline constexpr int32_t kPerplexityWindow = 512;  // tokens

struct Completion {
  std::string text;
  std::vector<int32_t> prompt_ids, ids;
  FinishReason finish_reason = FinishReason::kLength;
  std::vector<float> logprobs;  // of `ids`: natural log of the probability when each was chosen, before temperature
  int32_t num_reused = 0;       // of `prompt_ids`, that an earlier request had computed
  int32_t num_visible = 0;      // of `ids`, of which something is in `text`: no end token, no stop text
  int32_t num_first = 0;        // of these, that came in the step of the first of `ids`
  int32_t num_forwards = 0;     // passes of the model that looked for tokens or stored some

  double tokens_per_forward() const { return num_forwards > 0 ? static_cast<double>(num_visible) / num_forwards : 0; }
};

enum class StreamAction : uint8_t { kContinue, kStop };

// Not thread-safe. Several on one CUDA device share its runtime: one thread at a time makes, uses or destroys any of
// them. On a CPU, or on other devices, each may have a thread of its own.
class LLM {
 public:
  // Error kModelFile, kUnsupported, kOutOfMemory: one sentence.
  LLM(const std::filesystem::path& model, const LLMOptions& options);

  // Calls on_text for each token with the text that it makes certain, and once for a step that makes no token (of a
  // long prompt). That text is often empty; a stop text and what follows it never appear, and none ends inside a
  // character. `so_far` holds it and that token already. kStop ends the request as aborted. Errors as Engine::add
  // and step; the next request finds nothing of one that failed.
  using OnText = std::function<StreamAction(std::string_view piece, const Completion& so_far)>;
  // Called after each step, when the text that became certain in it has been handed out.
  using OnStep = std::function<void(const StepReport& report)>;
  Completion generate(std::string_view prompt, const SamplingParams& params, const OnText& on_text,
                      const OnStep& on_step = {});
  // The same for a prompt that is tokens already.
  Completion generate(std::vector<int32_t> prompt_ids, const SamplingParams& params, const OnText& on_text,
                      const OnStep& on_step = {});

  struct Perplexity {
    double bits = 0;
    int64_t bytes = 0, tokens = 0;
    int32_t window = 0;  // tokens of one
    double per_token() const { return std::exp2(bits / static_cast<double>(tokens)); }
    double bits_per_byte() const { return bits / static_cast<double>(bytes); }  // whatever the vocabulary
  };
  // Windows of `window` tokens without overlap, of fewer where the context holds no more; in each, tokens 1.. are
  // predicted and their bytes counted. Where the tokenizer puts tokens before a text, each window begins with them, and
  // all tokens of the text are predicted. Error kInvalidArgument for models of full attention and of canvases.
  // `on_window` is told after each how many tokens of the text are done, and of how many.
  using OnWindow = std::function<void(int64_t done, int64_t total)>;
  Perplexity perplexity(std::string_view text, int32_t window = kPerplexityWindow, const OnWindow& on_window = {});

  Device device() const { return runtime_.device(); }
  const Model& model() const { return *model_; }
  const ModelInfo& model_info() const { return model_->info(); }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  // As the model's makers want its tokens drawn: by generation_config.json or, for requests of the schedule
  // 'reference', as their published loop does (ReferenceDefaults).
  SamplingParams default_params(DecodingParams::Schedule schedule = DecodingParams::Schedule::kThreshold) const;
  const EngineConfig& config() const { return engine_->config(); }
  Engine& engine() { return *engine_; }

 private:
  LLM(const std::filesystem::path& model, const LLMOptions& options, std::future<Tokenizer> tokenizer);

  std::filesystem::path directory_;   // the model's
  DeviceRuntime& runtime_;            // not owned
  std::future<void> matmul_library_;  // waits in its destructor until the library has started
  Tokenizer tokenizer_;
  SamplingParams default_params_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace headrace
