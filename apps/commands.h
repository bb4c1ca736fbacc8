// The commands of the program; each returns the process's exit status.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "headrace/decoding/decoding_option.h"
#include "headrace/decoding/decoding_strategy.h"
#include "headrace/request/sampling_params.h"

namespace CLI {
class Option;
}

namespace headrace {
class SigbusGuard;
}

namespace headrace::app {

enum class Output : unsigned char { kText, kJson };

// Flags that every command with a model takes.
struct ModelFlags {
  std::string model, revision, dtype = "auto", kv_dtype = "auto", device = "auto", backend = "auto", attn_impl = "auto",
                               kernel_set, adapter, quantize, activations = "int8", log_level = "warning";
  int threads = 0, page_size = 64, max_model_len = 0;  // 0: the model's, at most 8192
  std::optional<int64_t> kv_cache_memory_bytes;        // bytes
  std::optional<int32_t> max_num_batched_tokens;
  bool deterministic = false, require_graphs = false, no_graphs = false, offline = false;
  std::string leave_out;  // kernel families that a device's ops do not choose: bench alone has the option
  std::optional<uint64_t> random_weights;
  SigbusGuard* guard = nullptr;  // not owned
};

struct DecodingFlags {
  std::string strategy = "auto", trace;
  std::optional<int32_t> block_size, mask_token_id;
  int32_t num_blocks = 1;
  std::optional<StrategyConfig::BlockCache> block_cache;
  StrategyConfig::Merge merge;
  std::optional<float> merge_weight;
  struct Read {
    DecodingOption option;
    const CLI::Option* flag;  // not owned
  };
  std::vector<Read> read;  // by some strategies, and refused by the others
};

// max_tokens of a text that goes on until the context is full, unless the model ends it.
inline constexpr int32_t kUntilFull = 1 << 30;

struct SamplingFlags {
  SamplingParams params;                                               // what the others do not say
  std::optional<float> temperature, top_p, min_p, repetition_penalty;  // absent: the model's
  std::optional<int32_t> top_k;
};

struct GenerateFlags {
  ModelFlags model;
  DecodingFlags decoding;
  std::vector<std::string> words;  // without an option in front of them: [MODEL] [PROMPT]
  std::optional<std::string> prompt;
  std::string prompt_file;
  enum class Escape : unsigned char { kUnsaid, kYes, kNo } escape = Escape::kUnsaid;
  SamplingFlags sampling;
  bool special_tokens = false, chat = false, json = false, logprobs = false, echo_prompt = false;
};

// max_tokens is 1 or more, kUntilFull, or 0: the model is loaded and the prompt read, and nothing is made.
// `demo`: the bundled model that runs if the flags name none.
int generate(GenerateFlags flags, const std::string& demo = "fairy-hybrid");
int list_models(Output output);
struct PullFlags {
  std::string model, revision, token;
};
int pull_command(const PullFlags& flags, Output output);
struct QuantizeFlags {
  std::string model, to, output;  // output: empty for a name beside the model's, in the current directory
  int threads = 0;                // 0: all cores
  bool overwrite = false;
  SigbusGuard* guard = nullptr;  // not owned
};
int quantize(const QuantizeFlags& flags, Output output);
enum class Confirm : unsigned char { kAsk, kAssumed };
int remove_model(const std::string& model, Confirm confirm, Output output);
int show_model(const std::string& model, Output output);
// `exact`: the same model in another form, to which the divergence is measured; empty: none.
int eval_perplexity(const ModelFlags& flags, const std::string& file, const std::string& exact, Output output);
int doctor(Output output);
int doctor_model(const std::string& model, Output output);
// `what`: a call ("gemm m=8 n=9728 k=2560") or a model; empty: `model`. Error kInvalidArgument unless one is stated.
int doctor_explain(const std::string& what, const std::string& model, Output output);
struct BenchLoad {
  std::vector<int32_t> parallel = {};     // requests at once, one measurement for each; of model, blocks and engine
  std::optional<int32_t> input_len = {};  // tokens of each prompt
  std::optional<int32_t> engines = {};    // engines that share the requests; of model
};
struct LoadFlags;
// `server_load`: of serve and agent.
int bench(const std::string& what, const ModelFlags& flags, const BenchLoad& load, const LoadFlags& server_load);

}  // namespace headrace::app
