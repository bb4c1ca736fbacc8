#include "known_elsewhere.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

namespace headrace::app {
namespace {

constexpr std::string_view kOnGpu = "--device cuda runs all layers on the GPU";
constexpr std::string_view kOneGpu = "a model runs on one GPU, --device cuda:N";
constexpr std::string_view kServer = "headrace serve MODEL answers requests, and headrace run-batch those of a file";
constexpr std::string_view kPull = "headrace pull NAME downloads a model from Hugging Face's hub";
constexpr std::string_view kWholeModel =
    "headrace pull NAME downloads all that a model needs, and NAME:Q4_K_M one in GGUF";
constexpr std::string_view kOtherHub =
    "headrace pull NAME downloads from Hugging Face's hub, or from that of HF_ENDPOINT";
constexpr std::string_view kToken = "HF_TOKEN is the variable with the hub's token; headrace pull has --token, too";
constexpr std::string_view kCacheFolder = "HF_HUB_CACHE is the variable that names the cache of models";
constexpr std::string_view kRemoval = "headrace rm NAME removes a model from Hugging Face's cache";
constexpr std::string_view kChat = "headrace run MODEL chats, by the model's chat template";
constexpr std::string_view kOneMessage = "headrace run MODEL \"TEXT\" answers one message";
constexpr std::string_view kNoTemplate = "leave it out: headrace generate applies no chat template";
constexpr std::string_view kNoMaking = "headrace reads models as they are; --adapter merges a LoRA while one is loaded";
constexpr std::string_view kNoProcesses =
    "nothing runs in the background: a model is there as long as the command that runs it";
constexpr std::string_view kShowModel = "headrace show MODEL says what a model is";
constexpr std::string_view kCacheType = "--kv-cache-dtype is that of keys and of values";
constexpr std::string_view kAttention = "--attention-backend chooses how attention runs";
constexpr std::string_view kSteps = "--max-num-batched-tokens is how much of a prompt runs at once";
constexpr std::string_view kLog = "--log-level info says what was loaded and what runs it";
constexpr std::string_view kMapped = "weights are mapped from their files, and no memory is locked";
constexpr std::string_view kMemoryShare = "--kv-cache-memory-bytes is the memory of keys, values and recurrent states";
constexpr std::string_view kNoGrammar = "a grammar cannot constrain the output";
constexpr std::string_view kNoTools = "no tools are called yet; write what the model may call into the prompt";
constexpr std::string_view kNoTls = "a proxy in front of the server adds TLS";
constexpr std::string_view kStop = "--stop TEXT ends the output";
constexpr std::string_view kDrawn = "tokens are drawn by --temperature, --top-k, --top-p and --min-p";
constexpr std::string_view kRope = "positions are scaled as config.json says";
constexpr std::string_view kThreads = "-t is the number of threads for prompts, too";
constexpr std::string_view kAdapter = "--adapter takes the directory of a LoRA";
constexpr std::string_view kNoDraft = "no second model drafts tokens; block diffusion models decide several at once";
constexpr std::string_view kNoQuantised =
    "no quantised weights are read; --kv-cache-dtype fp8_e4m3 or int8 is of keys and values";
constexpr std::string_view kPrefix =
    "leave it out: run-batch caches the beginnings of its requests, and other commands have one request";
constexpr std::string_view kAlgorithm =
    "--strategy chooses how blocks are denoised: LowConfidence is multi_bd, JointThreshold multi_bd_edit";
constexpr std::string_view kCached =
    "--strategy dual_cache reuses keys and values of the text around a block, full_attention computes all of it";
constexpr std::string_view kWholeLength = "-n is the number of new tokens, and -c that of prompt and output together";
constexpr std::string_view kFloat16 =
    "activations in float16 are not supported; float32 and bfloat16 are, and weights stored in float16 are read";
constexpr std::string_view kCacheFormat = "keys and values are stored in float32, bfloat16, float16, fp8_e4m3 or int8";

using Table = std::map<std::string_view, std::string_view>;

const Table& sentences() {
  static const Table kSentences = {
      // Commands.
      {"chat", kChat},
      {"complete", "headrace generate completes a text"},
      {"completion", "there is no completion for shells yet; headrace help lists the commands"},
      {"cache", "headrace list shows Hugging Face's cache, and headrace rm NAME removes a model from it"},
      {"cp", "a model of Hugging Face's cache has one name"},
      {"create", kNoMaking},
      {"delete", kRemoval},
      {"download", kPull},
      {"info", kShowModel},
      {"ls", "headrace list shows the models that are here"},
      {"ps", kNoProcesses},
      {"push", "headrace uploads no models"},
      {"quantize", kNoMaking},
      {"remove", kRemoval},
      {"server", kServer},
      {"stop", kNoProcesses},
      // GPUs and memory.
      {"-cmoe", kOnGpu},
      {"-dev", "--device cuda, or cuda:N, chooses the GPU"},
      {"-dt", kMapped},
      {"-mg", kOneGpu},
      {"--main-gpu", kOneGpu},
      {"-ncmoe", kOnGpu},
      {"-ngl", kOnGpu},
      {"--gpu-layers", kOnGpu},
      {"--n-gpu-layers", kOnGpu},
      {"-nkvo", kOnGpu},
      {"--no-kv-offload", kOnGpu},
      {"-ot", kOnGpu},
      {"--override-tensor", kOnGpu},
      {"-sm", kOneGpu},
      {"--split-mode", kOneGpu},
      {"-ts", kOneGpu},
      {"--tensor-split", kOneGpu},
      {"-tp", kOneGpu},
      {"--tp", kOneGpu},
      {"--tp-size", kOneGpu},
      {"--tensor-parallel-size", kOneGpu},
      {"-pp", kOneGpu},
      {"--pipeline-parallel-size", kOneGpu},
      {"-dp", kOneGpu},
      {"--dp-size", kOneGpu},
      {"--data-parallel-size", kOneGpu},
      {"--ep-size", kOneGpu},
      {"--list-devices", "headrace doctor says which GPU is here"},
      {"--cpu-offload-gb", kOnGpu},
      {"--gpu-memory-utilization", kMemoryShare},
      {"--mem-fraction-static", kMemoryShare},
      {"--no-mmap", kMapped},
      {"--mlock", kMapped},
      {"-fit", kMemoryShare},
      {"--fit", kMemoryShare},
      // Servers and batches.
      {"-np", kServer},
      {"--parallel", kServer},
      {"-cb", kServer},
      {"--cont-batching", kServer},
      {"--max-num-seqs", kServer},
      {"--max-running-requests", kServer},
      {"--max-batch-size", kServer},
      {"--host", kServer},
      {"--port", kServer},
      {"--api-key", kServer},
      {"--served-model-name", kServer},
      {"--alias", kServer},
      {"--block-size", "--page-size is the number of tokens of a page of keys and values"},
      {"--enable-chunked-prefill", "leave it out: prompts run in pieces, beside other requests"},
      {"--swap-space", "nothing is swapped: a request that makes room is computed again"},
      {"--disable-log-requests", "leave it out: --log-requests 1 to 3 logs them"},
      {"--no-enable-log-requests", "leave it out: --log-requests 1 to 3 logs them"},
      {"--metrics", "leave it out: /metrics is there"},
      {"--ssl-keyfile", kNoTls},
      {"--ssl-certfile", kNoTls},
      {"-b", kSteps},
      {"--batch-size", kSteps},
      {"-ub", kSteps},
      {"--ubatch-size", kSteps},
      {"--chunked-prefill-size", kSteps},
      {"--max-prefill-tokens", kSteps},
      {"--enable-prefix-caching", kPrefix},
      {"--no-enable-prefix-caching", kPrefix},
      {"--disable-radix-cache", kPrefix},
      // Chat.
      {"-cnv", kChat},
      {"--conversation", kChat},
      {"-st", kOneMessage},
      {"--single-turn", kOneMessage},
      {"-sys", kChat},
      {"--system", kChat},
      {"--system-prompt", kChat},
      {"-sysf", kChat},
      {"--jinja", "leave it out: chat templates are Jinja"},
      {"--chat-template", kChat},
      {"--chat-template-file", kChat},
      {"--tool-call-parser", kNoTools},
      {"--enable-auto-tool-choice", kNoTools},
      {"--reasoning-parser", "leave it out: what stands between <think> and </think> is thinking"},
      {"--think", "--enable-thinking true or false, of headrace run, is what chat templates read"},
      {"--hidethinking", "leave it out: headrace run hides thinking behind one line; --thinking show shows it"},
      {"-no-cnv", kNoTemplate},
      {"--no-conversation", kNoTemplate},
      {"-i", kChat},
      {"--interactive", kChat},
      {"-if", kChat},
      {"--interactive-first", kChat},
      {"--keepalive", kNoProcesses},
      {"--keep-alive", kNoProcesses},
      // Models.
      {"-hff", kWholeModel},
      {"--hf-file", kWholeModel},
      {"-hft", kToken},
      {"--hf-token", kToken},
      {"--token", kToken},
      {"-mu", kOtherHub},
      {"--model-url", kOtherHub},
      {"--cache-dir", kCacheFolder},
      {"--local-dir", kCacheFolder},
      {"--download-dir", kCacheFolder},
      {"--tokenizer", "the tokenizer is that of the model's directory"},
      {"--tokenizer-path", "the tokenizer is that of the model's directory"},
      {"--trust-remote-code", "leave it out: no code of a checkpoint is run"},
      {"--load-format", "weights are read from safetensors files"},
      {"--quantization", kNoQuantised},
      {"--load-in-8bit", kNoQuantised},
      {"--load-in-4bit", kNoQuantised},
      {"--lora", kAdapter},
      {"--lora-path", kAdapter},
      {"--lora-paths", kAdapter},
      {"--enable-lora", kAdapter},
      {"--use-lora", kAdapter},
      {"-md", kNoDraft},
      {"--model-draft", kNoDraft},
      {"--draft", kNoDraft},
      {"-ngld", kNoDraft},
      {"--speculative-config", kNoDraft},
      {"--speculative-algorithm", kNoDraft},
      {"-mm", "a prompt is text: no images are read"},
      {"--mmproj", "a prompt is text: no images are read"},
      {"--image", "a prompt is text: no images are read"},
      // Running.
      {"-ctk", kCacheType},
      {"-ctv", kCacheType},
      {"--cache-type-k", kCacheType},
      {"--cache-type-v", kCacheType},
      {"-fa", kAttention},
      {"--flash-attn", kAttention},
      {"--use-flash-attn", kAttention},
      {"-tb", kThreads},
      {"--threads-batch", kThreads},
      {"-v", kLog},
      {"-lv", kLog},
      {"--verbose", kLog},
      {"--log-disable", "--log-level off leaves warnings out"},
      {"--log-file", "messages go to standard error, which 2>FILE puts into a file"},
      {"--rope-scaling", kRope},
      {"--rope-scale", kRope},
      {"--rope-freq-base", kRope},
      {"--rope-theta", kRope},
      {"--warmup", "leave it out: there is nothing to warm up for one request"},
      {"--no-warmup", "leave it out: there is nothing to warm up for one request"},
      // Sampling and output.
      {"--grammar", kNoGrammar},
      {"--grammar-file", kNoGrammar},
      {"-j", kNoGrammar},
      {"--json-schema", kNoGrammar},
      {"--format", "--json prints one JSON object about the text; a grammar cannot constrain the output"},
      {"-r", kStop},
      {"--reverse-prompt", kStop},
      {"--mirostat", kDrawn},
      {"--typical", kDrawn},
      {"--typical-p", kDrawn},
      {"--dry-multiplier", kDrawn},
      {"--xtc-probability", kDrawn},
      {"--samplers", kDrawn},
      {"--top-n-sigma", kDrawn},
      {"--num-beams", kDrawn},
      {"--gumbel", kDrawn},
      {"--repeat-last-n", "--repetition-penalty counts the tokens of the whole text"},
      {"--color", "leave it out: blocks that are denoised on a terminal are coloured without it"},
      {"--stream", "leave it out: text comes as it is made"},
      {"--do-sample", "tokens are drawn where --temperature is above 0"},
      {"--n", "a command makes one text; another --seed draws another one"},
      {"--num-return-sequences", "a command makes one text; another --seed draws another one"},
      {"--n-probs", "--logprobs, with --json, adds each token's log-probability"},
      {"--max-length", kWholeLength},
      {"--no-display-prompt", "leave it out: the prompt is not printed"},
      {"--display-prompt", "the prompt is not printed; --json counts its tokens"},
      {"-sp", "leave it out: the text of special tokens is part of the output, but for end tokens"},
      // Diffusion.
      {"--dllm-algorithm", kAlgorithm},
      {"--dllm-algorithm-config", "--threshold, --edit-threshold and --block-size are what its file sets"},
      {"--use-cache", kCached},
      {"--dual-cache", kCached},
      {"--prefix-cache", kCached},
      {"--cache-type", kCached},
      {"--cache", kCached},
      {"--eps", "the schedule of masks is fixed; --steps is the number of its passes"},
      {"--algorithm", "--accept chooses which tokens are kept, and --strategy how blocks are denoised"},
      {"--parallel-decoding", "--threshold keeps all tokens of a pass that are likely enough"},
      {"--remask-stages", "--remask-threshold makes decided tokens masks again"},
      {"--output-history", "--trace FILE writes every step"},
      {"--diffusion-visual", "leave it out: on a terminal the blocks are shown while they are denoised"},
      {"--diffusion-eps", "the schedule of masks is fixed; --steps is the number of its passes"},
      {"--diffusion-algorithm", "--accept chooses which tokens are kept"},
      {"--diffusion-add-gumbel-noise", kDrawn},
  };
  return kSentences;
}

const Table& same_options() {
  static const Table kOptions = {
      {"-hf", "--model"},
      {"-hfr", "--model"},
      {"--local-files-only", "--offline"},
      {"--hf-repo", "--model"},
      {"--model-path", "--model"},
      {"--model-name", "--model"},
      {"--model-name-or-path", "--model"},
      {"--pretrained", "--model"},
      {"--torch-dtype", "--dtype"},
      {"--context-length", "--max-model-len"},
      {"--max-seq-len", "--max-model-len"},
      {"--max-sequence-length", "--max-model-len"},
      {"--n-ctx", "--max-model-len"},
      {"--num-ctx", "--max-model-len"},
      {"--num-threads", "--threads"},
      {"--n-threads", "--threads"},
      {"--prompt-file", "--file"},
      {"--tokens", "--max-tokens"},
      {"--max-new-tokens", "--max-tokens"},
      {"--max-completion-tokens", "--max-tokens"},
      {"--max-gen-length", "--max-tokens"},
      {"--min-new-tokens", "--min-tokens"},
      {"--gen-length", "--max-tokens"},
      {"--gen-len", "--max-tokens"},
      {"--num-predict", "--max-tokens"},
      {"--random-seed", "--seed"},
      {"-a", "--served-model-name"},
      {"-H", "--host"},
      {"--disable-radix-cache", "--no-enable-prefix-caching"},
      {"--max-num-queued-reqs", "--max-queued-requests"},
      {"--max-num-queued-tokens", "--max-queued-tokens"},
      {"--timeout", "--request-timeout"},
      {"--chat-template-file", "--chat-template"},
      {"-np", "--max-num-seqs"},
      {"--parallel", "--max-num-seqs"},
      {"--max-running-requests", "--max-num-seqs"},
      {"--max-batch-size", "--max-num-seqs"},
      {"--alias", "--served-model-name"},
      {"-sys", "--system"},
      {"--system-prompt", "--system"},
      {"--chat-template-file", "--chat-template"},
      {"--repeat-penalty", "--repetition-penalty"},
      {"--stop-strings", "--stop"},
      {"--stop-sequence", "--stop"},
      {"--enable-deterministic-inference", "--deterministic"},
      {"--disable-cuda-graph", "--no-graphs"},
      {"--enforce-eager", "--no-graphs"},
      // Diffusion.
      {"--alg", "--accept"},
      {"--remasking", "--accept"},
      {"--remasking-strategy", "--accept"},
      {"--alg-temp", "--order-temperature"},
      {"--bd-size", "--block-size"},
      {"--block-length", "--block-size"},
      {"--block-len", "--block-size"},
      {"--diffusion-block-size", "--block-size"},
      {"--diffusion-block-length", "--block-size"},
      {"--buffer-size", "--blocks"},
      {"--cfg", "--cfg-scale"},
      {"--diffusion-cfg-scale", "--cfg-scale"},
      {"--confidence-threshold", "--threshold"},
      {"--accept-threshold", "--threshold"},
      {"--decoding-strategy", "--strategy"},
      {"--denoising-steps", "--steps"},
      {"--diffusion-steps", "--steps"},
      {"--max-denoising-steps", "--steps"},
      {"--num-steps", "--steps"},
      {"--mask-id", "--mask-token-id"},
  };
  return kOptions;
}

struct ValueWord {
  std::string_view option, value, here;  // `here`: the value's name, or a sentence
};

constexpr std::array kSameValues = {
    ValueWord{"--dtype", "bf16", "bfloat16"},
    ValueWord{"--dtype", "fp32", "float32"},
    ValueWord{"--dtype", "f32", "float32"},
    ValueWord{"--dtype", "float", "float32"},
    ValueWord{"--kv-cache-dtype", "bf16", "bfloat16"},
    ValueWord{"--kv-cache-dtype", "f16", "float16"},
    ValueWord{"--kv-cache-dtype", "fp16", "float16"},
    ValueWord{"--kv-cache-dtype", "half", "float16"},
    ValueWord{"--kv-cache-dtype", "f32", "float32"},
    ValueWord{"--kv-cache-dtype", "fp32", "float32"},
    ValueWord{"--kv-cache-dtype", "e4m3", "fp8_e4m3"},
    ValueWord{"--kv-cache-dtype", "q8_0", "int8"},
    ValueWord{"--device", "gpu", "cuda"},
    ValueWord{"--log-level", "none", "off"},
    ValueWord{"--log-level", "warn", "warning"},
    ValueWord{"--max-model-len", "0", "-1"},                       // llama.cpp: the model's; kWholeContext
    ValueWord{"--max-tokens", "-1", "1073741824"},                 // llama.cpp: no limit; kUntilFull
    ValueWord{"--max-tokens", "-2", "1073741824"},                 // llama.cpp: until the context is full
    ValueWord{"--accept", "low_confidence", "confidence"},         // LLaDA
    ValueWord{"--accept", "low_confidence_static", "confidence"},  // SDAR
    ValueWord{"--accept", "low_confidence_dynamic", "confidence"},
    ValueWord{"--accept", "sequential", "leftmost"},
    ValueWord{"--accept", "entropy_bounded", "entropy_bound"},
    ValueWord{"--accept", "origin", "random"},  // Dream
    ValueWord{"--accept", "maskgit_plus", "confidence"},
    ValueWord{"--accept", "topk_margin", "margin"},
    ValueWord{"--strategy", "ar", "autoregressive"},
};

constexpr std::array kRefusedValues = {
    ValueWord{"--dtype", "f16", kFloat16},
    ValueWord{"--dtype", "fp16", kFloat16},
    ValueWord{"--dtype", "half", kFloat16},
    ValueWord{"--dtype", "float16", kFloat16},
    ValueWord{"--kv-cache-dtype", "q4_0", kCacheFormat},
};

// Long options may be spelled as Python's parameters are.
std::string with_dashes(std::string_view word) {
  std::string name(word);
  if (word.starts_with("--")) std::ranges::replace(name, '_', '-');
  return name;
}

std::optional<std::string_view> found_in(const Table& table, std::string_view word) {
  const auto found = table.find(with_dashes(word));
  return found == table.end() ? std::nullopt : std::optional(found->second);
}

template <size_t N>
std::optional<std::string_view> found_in(const std::array<ValueWord, N>& table, std::string_view option,
                                         std::string_view value) {
  const auto* found =
      std::ranges::find_if(table, [&](const ValueWord& w) { return w.option == option && w.value == value; });
  return found == table.end() ? std::nullopt : std::optional(found->here);
}

}  // namespace

std::optional<std::string_view> known_elsewhere(std::string_view word) { return found_in(sentences(), word); }

std::optional<std::string_view> same_option(std::string_view option) { return found_in(same_options(), option); }

std::optional<std::string_view> same_value(std::string_view option, std::string_view value) {
  return found_in(kSameValues, option, value);
}

std::optional<std::string_view> value_known_elsewhere(std::string_view option, std::string_view value) {
  return found_in(kRefusedValues, option, value);
}

}  // namespace headrace::app
