// LLM: text in, text out, one request at a time.
#pragma once
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/llm/async_llm.h"
#include "headrace/llm/completion.h"
#include "headrace/llm/llm_options.h"
#include "headrace/llm/step_recorder.h"

namespace headrace {

inline constexpr int32_t kPerplexityWindow = 512;  // tokens

enum class StreamAction : uint8_t { kContinue, kStop };

// An AsyncLLM for one caller, one request at a time. Not thread-safe. Each has a runtime of its own (open_device), so
// several may be created, used and destroyed by threads of their own, also on one GPU. They share no memory: each loads
// its weights. Those created at once count the same free memory, so give each a kv_cache_memory_bytes. A kernel that
// faults ends all of its device with error kCuda.
class LLM {
 public:
  // Loads the model. Errors as AsyncLLM.
  LLM(const ModelDescription& model, const LLMOptions& options) : directory_(model.directory), async_(model, options) {}
  LLM(const std::filesystem::path& directory, const LLMOptions& options)
      : directory_(directory), async_(directory, options) {}

  // Generates text. An absent seed is 0. Calls on_text for each token with the text that it completes, and once for a
  // step without tokens (of a long prompt). That text is often empty, never contains a stop text or anything after one,
  // and never ends inside a character. `so_far` includes it and that token. kStop ends the request as aborted.
  // Both functions run on the caller's thread, while the engine may be some steps ahead of them. An exception of theirs
  // ends the request before it leaves.
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

  struct Divergence {
    double nats = 0;  // sum over `tokens` next-token distributions
    int64_t tokens = 0, same_top = 0;
    double mean() const { return nats / static_cast<double>(tokens); }
    double same_top_share() const { return static_cast<double>(same_top) / static_cast<double>(tokens); }
  };
  // Computes the Kullback-Leibler divergence D(exact || this) of the next-token distributions, and how often both have
  // the same likeliest token, over windows as perplexity() has them. `exact` is another form of this model: errors as
  // perplexity(), and kInvalidArgument where vocabularies differ.
  Divergence divergence_from(LLM& exact, std::string_view text, int32_t window = kPerplexityWindow,
                             const OnWindow& on_window = {});

  Device device() const { return async_.device(); }
  const Model& model() const { return async_.model(); }
  const ModelInfo& model_info() const { return async_.model_info(); }
  const Tokenizer& tokenizer() const { return async_.tokenizer(); }
  SamplingParams default_params(DecodingParams::Schedule schedule = DecodingParams::Schedule::kThreshold) const {
    return async_.default_params(schedule);
  }
  const MemoryPlan& memory_plan() const { return async_.memory_plan(); }
  const EngineConfig& config() const { return async_.config(); }
  AsyncLLM& async() { return async_; }
  Engine& engine() { return async_.engine(); }  // while generate() does not run

 private:
  struct Windows {
    std::vector<std::vector<int32_t>> texts;  // tokens, those that the tokenizer puts before a text included
    size_t num_prefix = 0;                    // these, of each
    size_t num_given = 1;                     // tokens of each that are not predicted
    int32_t size = 0;                         // most tokens of one
    int64_t num_tokens = 0;                   // of the text
  };
  // Error kInvalidArgument: as perplexity().
  Windows windows_of(std::string_view text, int32_t window);

  std::filesystem::path directory_;  // of the model
  AsyncLLM async_;
};

}  // namespace headrace
