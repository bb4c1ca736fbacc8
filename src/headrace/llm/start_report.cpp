#include "headrace/llm/start_report.h"

#include "headrace/core/error.h"

namespace headrace {

namespace {

// They are never chosen and end nothing.
void warn_of_end_tokens(const LLMOptions& o, const Tokenizer& tokenizer, const ModelInfo& model) {
  if (o.random_weights) return;
  for (const int32_t id : model.eos_ids) {
    if (id < tokenizer.vocab_size()) continue;
    o.log(LogLevel::kWarning, str("the end token ", id, " is never chosen: the tokenizer has ids below ",
                                  tokenizer.vocab_size(), "; --stop or -n ends the text"));
  }
}

}  // namespace

void report_start(const LLMOptions& options, AsyncLLM& llm) {
  const LogCallback& log = options.log;
  warn_of_end_tokens(options, llm.tokenizer(), llm.model_info());
  const ModelInfo& model = llm.model_info();
  const EngineConfig& engine = llm.config();
  log(LogLevel::kInfo, str(model.architecture, " on ", to_string(llm.device()), ": ", model.num_layers, " layers, ",
                           model.num_gdn_layers, " of them Gated DeltaNet, ", model.weight_bytes / 1000000,
                           " MB of weights, activations in ", name_of(model.dtype), ", keys and values in ",
                           name_of(llm.engine().runner().kv_dtype())));
  if (!model.packed_formats.empty()) {
    const bool int8 = options.context.activations == Activations::kInt8;
    log(LogLevel::kInfo, str("weights in ", model.weight_types(), ", multiplied by ",
                             int8 ? "activations rounded to int8, in groups of 32" : "activations as they are"));
  }
  log(LogLevel::kInfo, str("attention by ", llm.engine().runner().describe(), "; strategy ", engine.strategy,
                           "; a context of ", engine.max_context_len, " tokens"));
  log(LogLevel::kInfo, "cache: " + llm.memory_plan().reasons);
  report_failed_capture(log, llm.engine().runner().failed_capture());
  if (engine.max_context_len > model.context_length) {
    log(LogLevel::kWarning, str("a context of ", engine.max_context_len, " tokens is beyond the ", model.context_length,
                                " that the model was made for"));
  }
  if (llm.tokenizer().vocab_size() > model.vocab_size) {
    log(LogLevel::kWarning, str("the tokenizer knows ", llm.tokenizer().vocab_size(), " tokens, the model ",
                                model.vocab_size, ": a prompt with one of the others is refused"));
  }
  // config.json does not show whether an adapter was merged into a checkpoint, so this is no error.
  if (model.diffusion && requires_adapter(engine.strategy, *model.diffusion) && !options.adapter) {
    log(LogLevel::kWarning,
        str("strategy '", engine.strategy, "' decodes models that were trained for it, and no adapter is given: ",
            model.architecture, " itself is trained to see a text as a whole"));
  }
  if (model.diffusion && misreads(engine.strategy, *model.diffusion)) {
    log(LogLevel::kWarning,
        str("strategy '", engine.strategy, "' replaces decided tokens by what their rows say, ",
            "which this model was not trained for, so that right ones are lost; its own strategy is '",
            default_strategy(model.diffusion), "'"));
  }
}

void report_failed_capture(const LogCallback& log, const std::optional<std::string>& reason) {
  if (reason) log(LogLevel::kWarning, str("no CUDA graphs, so that steps take longer: ", *reason));
}

}  // namespace headrace
