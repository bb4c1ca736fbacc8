#include "known_elsewhere.h"

#include <map>

namespace headrace::app {
namespace {

constexpr std::string_view kOnGpu = "--device cuda runs all layers on the GPU";
constexpr std::string_view kOneGpu = "a model runs on one GPU, --device cuda:N";
constexpr std::string_view kNoServer = "there is no server yet, and a command runs one request";
constexpr std::string_view kNoChat = "no chat template is applied yet; write the turns out, with --special-tokens";
constexpr std::string_view kNoDialogue = "a command completes one prompt and ends";
constexpr std::string_view kNoDownload =
    "headrace downloads no models; give a directory, or a name in Hugging Face's cache";
constexpr std::string_view kCacheType = "--kv-cache-dtype is that of keys and of values";
constexpr std::string_view kAttention = "--attention-backend chooses how attention runs";
constexpr std::string_view kSteps = "headrace chooses how much of a prompt runs at once";
constexpr std::string_view kLog = "--log-level info says what was loaded and what runs it";
constexpr std::string_view kMapped = "weights are mapped from their files, and no memory is locked";
constexpr std::string_view kNoGrammar = "no grammar binds the text";
constexpr std::string_view kStop = "--stop TEXT ends the output";
constexpr std::string_view kDrawn = "tokens are drawn by --temperature, --top-k, --top-p and --min-p";
constexpr std::string_view kPenalty = "--repetition-penalty is the penalty of repeated tokens";
constexpr std::string_view kRope = "positions are scaled as config.json says";
constexpr std::string_view kThreads = "-t is the number of threads for prompts, too";

using Words = std::map<std::string_view, std::string_view>;

const Words& words() {
  static const Words kWords = {
      {"-ngl", kOnGpu},
      {"--gpu-layers", kOnGpu},
      {"--n-gpu-layers", kOnGpu},
      {"-tp", kOneGpu},
      {"--tensor-parallel-size", kOneGpu},
      {"-np", kNoServer},
      {"--parallel", kNoServer},
      {"--max-num-seqs", kNoServer},
      {"--host", kNoServer},
      {"--port", kNoServer},
      {"serve", kNoServer},
      {"-cnv", kNoChat},
      {"--conversation", kNoChat},
      {"-sys", kNoChat},
      {"--system-prompt", kNoChat},
      {"--jinja", kNoChat},
      {"--chat-template", kNoChat},
      {"chat", kNoChat},
      {"-no-cnv", "leave it out: no chat template is applied"},
      {"--no-conversation", "leave it out: no chat template is applied"},
      {"-i", kNoDialogue},
      {"--interactive", kNoDialogue},
      {"-hf", kNoDownload},
      {"--hf-repo", kNoDownload},
      {"-ctk", kCacheType},
      {"-ctv", kCacheType},
      {"--cache-type-k", kCacheType},
      {"--cache-type-v", kCacheType},
      {"-fa", kAttention},
      {"--flash-attn", kAttention},
      {"-b", kSteps},
      {"--batch-size", kSteps},
      {"-ub", kSteps},
      {"--ubatch-size", kSteps},
      {"-tb", kThreads},
      {"--threads-batch", kThreads},
      {"-v", kLog},
      {"--verbose", kLog},
      {"--no-mmap", kMapped},
      {"--mlock", kMapped},
      {"--grammar", kNoGrammar},
      {"--grammar-file", kNoGrammar},
      {"-r", kStop},
      {"--reverse-prompt", kStop},
      {"--mirostat", kDrawn},
      {"--typical", kDrawn},
      {"--typical-p", kDrawn},
      {"--presence-penalty", kPenalty},
      {"--frequency-penalty", kPenalty},
      {"--rope-scaling", kRope},
      {"--color", "leave it out: blocks that are denoised on a terminal are coloured without it"},
      {"--stream", "leave it out: text comes as it is made"},
      {"--do-sample", "tokens are drawn where --temperature is above 0"},
      {"--num-return-sequences", "a command makes one text; another --seed draws another one"},
      {"--logit-bias", "no token has a bias; --ban-end-tokens bans those that end a text"},
      {"--quantization", "no quantised weights are read; --kv-cache-dtype fp8_e4m3 is of keys and values"},
      {"--trust-remote-code", "leave it out: no code of a checkpoint is run"},
      {"--gpu-memory-utilization", "keys and values take what a context of -c tokens needs"},
      {"--lora", "--adapter takes the directory of a LoRA"},
      {"--enforce-eager", "--no-graphs decodes without CUDA graphs"},
  };
  return kWords;
}

}  // namespace

std::optional<std::string_view> known_elsewhere(std::string_view word) {
  const auto found = words().find(word);
  return found == words().end() ? std::nullopt : std::optional(found->second);
}

}  // namespace headrace::app
