#include "model_flags.h"

#include <limits>

#include "headrace/llm/llm.h"
#include "option_values.h"

namespace headrace::app {
namespace {

CLI::Validator context_length() {
  const CLI::Validator range =
      integer_in(2, 1 << 24, "an integer from 2 to 16777216, or 0 or -1 (all that the model was made for)");
  const auto check = [range](const std::string& text) {
    return text == std::to_string(kWholeContext) ? std::string() : range(text);
  };
  return {check, range.get_description()};
}

void add_attention_flags(CLI::App& app, ModelFlags& f) {
  app.option_defaults()->group("Attention and memory");
  app.add_option(
         "-c,--max-model-len,--ctx-size", f.max_model_len,
         "context: tokens of prompt and output together; 0 or -1: all that the model was made for (default: that, "
         "but at most 8192)")
      ->check(context_length());
  app.add_option("--kv-cache-dtype", f.kv_dtype, "data type of cached keys and values; auto: as --dtype")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "int8"}))
      ->capture_default_str();
  app.add_option("--page-size", f.page_size, "tokens per page of the KV cache: 1, 16, 32, 64, 128 or 256")
      ->capture_default_str();
  app.add_option("--kv-cache-memory-bytes", f.kv_cache_memory_bytes,
                 "memory for keys, values and recurrent states, of the running text and of earlier ones: bytes, or 4G, "
                 "512M, 64K (default: of eight chats of 4096 tokens, at most half of what is free)")
      ->type_name(kSize)
      ->transform(memory_size());
  app.add_option("--max-num-batched-tokens", f.max_num_batched_tokens,
                 "most tokens of a step, so that long prompts run in parts (default: what takes about 0.1 s, measured "
                 "with the first long prompt; 256 to 512 on a CPU, to 16384 on a GPU)")
      ->check(integer_in(1, 1 << 24));
  app.add_option("--backend,--attention-backend", f.backend,
                 "attention backend and kernels: auto, cpu, reference, cuda or cuda_baseline")
      ->type_name("BACKEND")
      ->capture_default_str();
  app.add_option("--attn-impl", f.attn_impl,
                 "attention kernel: reference, optimized (one pass over the keys per query head) or grouped (one pass "
                 "per group of heads) (default: grouped)")
      ->type_name("KERNEL");
}

void add_machine_flags(CLI::App& app, ModelFlags& f) {
  app.option_defaults()->group("Machine");
  app.add_option("--device", f.device, "where to run: auto, cpu, cuda or cuda:N")
      ->type_name("DEVICE")
      ->capture_default_str();
  add_threads_flag(app, f);
  app.add_option("--kernel-set", f.kernel_set,
                 "CPU kernels by instruction set, as headrace doctor names them (default: the best that runs here)")
      ->type_name(kName);
  app.add_flag("--deterministic", f.deterministic,
               "batch-invariant mode: the same bits with any number of threads, any chunking and any batch");
  CLI::Option* required =
      app.add_flag("--require-graphs", f.require_graphs,
                   "on a GPU: end with status 4 unless every step after a prompt can be a CUDA graph");
  app.add_flag("--no-graphs", f.no_graphs, "on a GPU: decode without CUDA graphs")->excludes(required);
}

}  // namespace

void add_threads_flag(CLI::App& app, ModelFlags& f) {
  app.add_option("-t,--threads", f.threads, "CPU threads (default: as many as there are cores)")
      ->check(integer_in(1, 1024))
      ->group("Machine");
}

void add_model_flags(CLI::App& app, ModelFlags& f, const char* names) {
  app.option_defaults()->group("Model");
  app.add_option(names, f.model,
                 "a model's directory (Hugging Face format), or its name: of a bundled model, or one on Hugging Face's "
                 "hub, which is downloaded unless it is here (headrace list) (default: a bundled model)")
      ->type_name(kModel);
  app.add_option("--revision", f.revision, "branch, tag or commit of a model on the hub; MODEL@REV means the same")
      ->type_name(kName);
  app.add_flag("--offline", f.offline,
               "download nothing: a model that is not here is refused (also: HF_HUB_OFFLINE=1)");
  app.add_option("--dtype", f.dtype, "data type of activations; auto: the model's")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--adapter", f.adapter, "directory of a LoRA (PEFT format) to merge into the weights")
      ->type_name(kDirectory);
  app.add_option(
         "--quantize", f.quantize,
         "make the weights smaller at load, as headrace quantize does: 8.5, 4.8, 5.7 or 6.6 bits each; on a CPU")
      ->check(CLI::IsMember({"q8_0", "q4_k_m", "q5_k_m", "q6_k"}));
  app.add_option("--activations", f.activations,
                 "what quantised weights multiply on a CPU; int8: activations rounded in groups of 32, fast; bf16: as "
                 "they are")
      ->check(CLI::IsMember({"int8", "bf16"}))
      ->capture_default_str();
  app.add_option("--random-weights", f.random_weights, "random weights from this seed; only config.json is needed")
      ->check(integer_in<uint64_t>(0, std::numeric_limits<uint64_t>::max()));
  add_attention_flags(app, f);
  add_machine_flags(app, f);
  app.option_defaults()->group("Output");
  app.add_option("--log-level", f.log_level, "messages on standard error: off, error, warning, info or debug")
      ->check(CLI::IsMember({"off", "error", "warning", "info", "debug"}))
      ->capture_default_str();
}

}  // namespace headrace::app
