#include "commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>

#include "checked_model.h"
#include "exit_status.h"
#include "headrace/decoding/decoding_option.h"
#include "headrace/decoding/reference_loop.h"
#include "headrace/engine/decoding_checks.h"
#include "headrace/llm/llm.h"
#include "headrace/ops/device_registry.h"
#include "headrace/sampling/acceptance.h"
#include "headrace/text/json_string.h"
#include "input.h"
#include "interrupt.h"
#include "load_model.h"
#include "measuring.h"
#include "model_files.h"
#include "model_options.h"
#include "model_path.h"
#include "output.h"
#include "prompt.h"
#include "prompt_length.h"
#include "sampling_flags.h"
#include "screen.h"
#include "seconds_since.h"
#include "status_line.h"
#include "terminal.h"

namespace headrace::app {
namespace {

class LoadedModel {
 public:
  LoadedModel(const ModelDescription& model, LLMOptions options) {
    if (!options.random_weights) require_model_files(model.directory);
    const auto start = Clock::now();
    // Driver, context, kernels; no model yet. They stay until the model opens the device again.
    const Device device = open_device(options.device, options.log)->device();
    options.device = to_string(device);
    device_start_s_ = seconds_since(start);
    if (options.log && device.type != DeviceType::kCPU) {
      options.log(LogLevel::kInfo,
                  str(to_string(device), " was started in ", fmt::format("{:.2f}", device_start_s_), " s"));
    }
    options.keep_text = SchedulerConfig::KeepText::kNo;  // these commands' requests go on behind nothing
    llm_ = load_with_progress<LLM>(model, std::move(options));
  }
  LLM& operator*() { return *llm_; }
  double device_start_s() const { return device_start_s_; }

 private:
  double device_start_s_ = 0;
  std::unique_ptr<LLM> llm_;
};

// A prompt that spells special tokens has all that it needs: none is added in front.
EncodeOptions encoding_of(const GenerateFlags& flags) {
  if (!flags.special_tokens) return {};
  return {.special_tokens = SpecialTokens::kParse, .add_special_tokens = AddSpecialTokens::kNo};
}

void warn(const LLMOptions& options, const std::optional<std::string>& sentence) {
  if (sentence && options.log) options.log(LogLevel::kWarning, *sentence);
}

// Before a model is loaded for nothing. Some tokenizers put a token in front, behind which an empty prompt is one.
void refuse_empty(const std::string& prompt, const GenerateFlags& flags, const std::filesystem::path& directory,
                  const LLMOptions& options) {
  if (!prompt.empty()) return;
  const Tokenizer tokenizer = tokenizer_of(directory, options);
  HR_REQUIRE(!tokenizer.encode(prompt, encoding_of(flags)).empty(), ErrorCode::kInvalidArgument,
             "the prompt is empty, expected a text: no token is put in front of it");
}

// JSON has no infinity.
std::string threshold_json(std::optional<float> threshold) {
  if (!threshold) return "null";
  return std::isinf(*threshold) ? R"("inf")" : fmt::format("{:g}", *threshold);
}

// As OpenAI's API takes them.
std::string biases_json(const std::vector<LogitBias>& biases) {
  std::vector<std::string> all;
  all.reserve(biases.size());
  for (const auto& [id, bias] : biases) {
    all.push_back(fmt::format(R"("{}": {})", id, std::isinf(bias) ? R"("-inf")" : fmt::format("{:g}", bias)));
  }
  return fmt::format("{{{}}}", fmt::join(all, ", "));
}

std::string_view text_of(SamplingParams::EndOfText end) {
  using EndOfText = SamplingParams::EndOfText;
  return end == EndOfText::kStops ? "stops" : end == EndOfText::kIgnored ? "ignored" : "banned";
}

// Returns the strategy's choices as JSON; null for a strategy without such choices.
std::string decoding_json(const LLM& llm, const DecodingParams& p) {
  const EngineConfig& engine = llm.config();
  const auto& diffusion = llm.model_info().diffusion;
  if (!diffusion || engine.strategy == "autoregressive") return "null";
  const bool caches = reads_option(engine.strategy, DecodingOption::kBlockCache);
  const bool one = follows_reference(p) && diffusion->loop == DiffusionInfo::Loop::kTimesteps;  // all of the output
  return fmt::format(
      R"({{"schedule": "{}", "steps": {}, "rule": "{}", "threshold": {}, "cfg_scale": {:g}, "block_size": {}, "blocks": {}, "block_cache": {}}})",
      text_of(p.schedule), p.steps ? std::to_string(*p.steps) : "null", text_of(rule_of(p, *diffusion)),
      threshold_json(threshold_of(p, *diffusion)), p.cfg_scale,
      one ? "null" : std::to_string(engine.decoding.block_size.value_or(diffusion->block_size)),
      engine.decoding.num_blocks,
      caches ? fmt::format("\"{}\"", text_of(block_cache_of(p, engine.decoding.block_cache, *diffusion))) : "null");
}

// As OpenAI's completions and vLLM name them, one for each of the ids.
std::string logprobs_json(const Completion& c, const Tokenizer& tokenizer) {
  std::vector<std::string> tokens;
  for (const int32_t id : c.ids) tokens.push_back(json_string(tokenizer.decode(std::array{id})));
  return fmt::format(R"("logprobs": {{"tokens": [{}], "token_logprobs": [{:.6f}]}}, )", fmt::join(tokens, ", "),
                     fmt::join(c.logprobs, ", "));
}

// The model, options and parameters of a completion.
struct Ran {
  LLM& llm;
  const LLMOptions& options;
  const SamplingParams& params;
  const GenerateFlags& flags;
};

std::vector<std::string> quoted_formats(const ModelInfo& model) {
  std::vector<std::string> names;
  for (const BlockFormat format : model.packed_formats) names.push_back(json_string(layout_of(format).name));
  return names;
}

// The activations of GEMMs with quantised weights; those of the model where it has none.
std::string_view activations_of(const ModelInfo& model, const OpContext& context) {
  const bool int8 = !model.packed_formats.empty() && context.activations == Activations::kInt8;
  return int8 ? "int8" : name_of(model.dtype);
}

std::string report_json(const Completion& c, const Ran& ran, const Timings& t) {
  auto& [llm, o, p, flags] = ran;
  const double decode_s = t.total_s - t.first_token_s;
  const int32_t decoded = c.num_visible - c.num_first;  // in that time
  return fmt::format(
      R"({{"text": {}, "ids": [{}], {}"finish_reason": "{}", "truncated": {}, "usage": {{"prompt_tokens": {}, "completion_tokens": {}}}, )"
      R"("timings": {{"device_start_s": {:.4f}, "load_s": {:.4f}, "first_token_s": {:.4f}, "total_s": {:.4f}, "decode_tokens_per_s": {}}}, )"
      R"("forwards": {}, "tokens_per_forward": {:.3f}, )"
      R"("sampling": {{"temperature": {:g}, "top_k": {}, "top_p": {:g}, "min_p": {:g}, "repetition_penalty": {:g}, "presence_penalty": {:g}, "frequency_penalty": {:g}, "logit_bias": {}, "min_tokens": {}, "seed": {}, "end_tokens": "{}", "stop_token_ids": [{}]}}, "decoding": {}, )"
      R"("ran": {{"architecture": "{}", "adapter": {}, "strategy": "{}", "device": "{}", "attention": {}, "dtype": "{}", "kv_cache_dtype": "{}", "quantised_weights": [{}], "activations": "{}", "threads": {}, "deterministic": {}, "steps": {}}}}})"
      "\n",
      json_string(c.text), fmt::join(c.ids, ", "), flags.logprobs ? logprobs_json(c, llm.tokenizer()) : "",
      name_of(c.finish_reason), c.finish_reason == FinishReason::kContext, c.prompt_ids.size(), c.num_visible,
      t.device_start_s, t.load_s, t.first_token_s, t.total_s,
      decoded > 0 ? fmt::format("{:.1f}", static_cast<double>(decoded) / decode_s) : "null", c.num_forwards,
      c.tokens_per_forward(), p.temperature, p.top_k, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty,
      p.frequency_penalty, biases_json(p.logit_bias), p.min_tokens, p.seed.value_or(0), text_of(p.end_of_text),
      fmt::join(p.stop_token_ids, ", "), decoding_json(llm, p.decoding), llm.model_info().architecture,
      o.adapter ? json_string(o.adapter->string()) : "null", llm.config().strategy, to_string(llm.device()),
      json_string(llm.engine().runner().describe()), name_of(llm.model_info().dtype),
      name_of(llm.engine().runner().kv_dtype()), fmt::join(quoted_formats(llm.model_info()), ", "),
      activations_of(llm.model_info(), o.context), o.context.threads, o.context.determinism == Determinism::kStrict,
      llm.engine().counters().steps);
}

constexpr int kAnyWidth = 1000;  // of a file or a pipe

std::string summary(const Completion& c, LLM& llm, const Timings& t) {
  using Line = StatusLine;
  const bool token_by_token = llm.config().strategy == "autoregressive";
  return status_line({.completion = c,
                      .timings = t,
                      .decoding = token_by_token ? Line::Decoding::kTokenByToken : Line::Decoding::kBlocks,
                      .runs = llm.device().type == DeviceType::kCPU ? Line::Runs::kOnHost : Line::Runs::kOnDevice,
                      .columns = terminal_size(STDERR_FILENO).value_or(TerminalSize{.columns = kAnyWidth}).columns});
}

// A warning to whoever reads the text.
void warn_of_random_weights(const GenerateFlags& flags, const LLMOptions& options) {
  if (!options.random_weights || !options.log) return;
  const bool read = isatty(STDOUT_FILENO) != 0 && !flags.json;
  options.log(read ? LogLevel::kWarning : LogLevel::kInfo, "the weights are random: the text is noise");
}

// Warns if the context's end stopped the text: not the model, -n or a stop text.
void warn_of_full_context(const Completion& c, const Ran& ran) {
  if (c.finish_reason != FinishReason::kContext || ran.params.max_tokens == kUntilFull) return;
  warn(ran.options, str("the context of ", ran.llm.config().max_context_len, " tokens is full after ", c.ids.size(),
                        " of ", ran.params.max_tokens, " new ones; -c N makes it larger"));
}

// A block is computed as a whole, as models are trained, however little of it is asked for.
void warn_of_large_block(const LLM& llm, const LLMOptions& options, const SamplingParams& params) {
  const std::optional<int32_t> size = options.decoding.block_size;
  const auto& diffusion = llm.model_info().diffusion;
  if (!size || !diffusion || *size <= std::max(params.max_tokens, diffusion->block_size)) return;
  warn(options, str("--block-size is ", *size, " and -n ", params.max_tokens,
                    ": each forward pass computes a whole block; a smaller --block-size is faster"));
}

// Behind the text, or with it.
void finish(const Completion& result, const Ran& ran, const Timings& timings) {
  if (ran.flags.json) {
    write_out(report_json(result, ran, timings));
  } else {
    write_out("\n");
    if (isatty(STDERR_FILENO) != 0 || ran.flags.echo_prompt) write_err(summary(result, ran.llm, timings));
  }
  warn_of_full_context(result, ran);
}

}  // namespace

namespace {

// From the model that `exact` names, in float32 and without rounded activations.
LLM::Divergence divergence(LLM& llm, const std::string& text, const std::string& exact, LLMOptions options) {
  options.dtype = DType::kF32;
  options.context.activations = Activations::kFloat;
  options.quantize.reset();
  LoadedModel model(read_description(model_directory(exact), options.random_weights), options);
  Measuring progress("tokens compared");
  return llm.divergence_from(*model, text, kPerplexityWindow,
                             [&progress](int64_t done, int64_t total) { progress.update(done, total); });
}

}  // namespace

int generate(GenerateFlags flags, const std::string& demo) {
  const auto start = Clock::now();
  const std::optional<std::string> about_words = place_words(flags);
  const std::string prompt = prompt_of(flags);
  const bool nothing = flags.sampling.params.max_tokens == 0;
  if (nothing) flags.sampling.params.max_tokens = 1;  // the engine makes a token or more
  const auto [options, description] = checked_model(flags, demo);
  std::optional<ChatPrompt> chat;
  if (flags.chat) {
    chat = as_chat(prompt, description.directory);
  } else {
    refuse_empty(prompt, flags, description.directory, options);
  }
  for (const auto& sentence : {about_words, not_utf8("the prompt", prompt), escape_warning(flags)}) {
    warn(options, sentence);
  }
  LoadedModel model(description, options);
  LLM& llm = *model;
  if (!chat) warn(options, template_warning(flags, prompt, llm.tokenizer(), description.directory));
  const SamplingParams params = params_of(flags.sampling, llm.default_params(flags.sampling.params.decoding.schedule));
  warn_of_large_block(llm, options, params);
  Timings timings{.device_start_s = model.device_start_s(), .load_s = seconds_since(start) - model.device_start_s()};
  std::vector<int32_t> ids = chat ? encode(llm.tokenizer(), *chat) : llm.tokenizer().encode(prompt, encoding_of(flags));
  warn(options, prompt_length_warning(description, ids.size()));
  warn_of_random_weights(flags, options);
  Screen screen(flags, llm);
  const auto on_text = [&](std::string_view piece, const Completion& so_far) {
    if (!so_far.ids.empty()) finish_when_interrupted();
    if (timings.first_token_s == 0 && !so_far.ids.empty()) timings.first_token_s = seconds_since(start);
    screen.text(piece);
    return screen.reader_gone() || interrupted() ? StreamAction::kStop : StreamAction::kContinue;
  };
  if (flags.echo_prompt) screen.opening(prompt);
  const Completion result = nothing ? Completion{.prompt_ids = std::move(ids)}
                                    : llm.generate(std::move(ids), params, on_text, screen.on_step());
  timings.total_s = seconds_since(start);
  screen.finish();
  if (screen.reader_gone()) return 0;  // a closed pipe is the reader's choice
  const Ran ran{llm, options, params, flags};
  finish(result, ran, timings);
  return interrupted() ? kInterrupted : 0;
}

int eval_perplexity(const ModelFlags& flags, const std::string& file, const std::string& exact, Output output) {
  const std::string text = read_text(file);
  const ModelDescription description = read_description(model_directory(flags), flags.random_weights);
  check_scores(stated_info(description, {}));  // before weights
  const LLMOptions options = options_of(flags);
  warn(options, not_utf8(file == "-" ? "standard input" : file, text));
  LoadedModel model(description, options);
  LLM& llm = *model;
  const auto start = Clock::now();
  const LLM::Perplexity p = [&] {
    Measuring progress("tokens");
    return llm.perplexity(text, kPerplexityWindow,
                          [&progress](int64_t done, int64_t total) { progress.update(done, total); });
  }();
  const double rate = static_cast<double>(p.tokens) / seconds_since(start);
  std::optional<LLM::Divergence> d;
  if (!exact.empty()) d = divergence(llm, text, exact, options);
  if (output == Output::kJson) {
    const std::string divergence_json =
        d ? fmt::format(R"(, "divergence": {{"mean_kl": {:.6e}, "same_top": {:.5f}, "tokens": {}}})", d->mean(),
                        d->same_top_share(), d->tokens)
          : "";
    write_out(fmt::format(
        "{{\"perplexity\": {:.6f}, \"bits_per_byte\": {:.6f}, \"tokens\": {}, \"tokens_per_second\": {:.1f}, "
        "\"window\": {}{}}}\n",
        p.per_token(), p.bits_per_byte(), p.tokens, rate, p.window, divergence_json));
    return 0;
  }
  const std::string why = p.window < kPerplexityWindow ? ", which is what the context holds" : "";
  write_out(fmt::format("perplexity {:.4f}, {:.4f} bits per byte, over {} tokens in windows of {}{}, {:.0f} tokens/s\n",
                        p.per_token(), p.bits_per_byte(), p.tokens, p.window, why, rate));
  if (d) {
    write_out(fmt::format(
        "divergence {:.6f} nats from {} in float32 on average; the likeliest token is the same for {:.2f} %\n",
        d->mean(), exact, 100 * d->same_top_share()));
  }
  return 0;
}

}  // namespace headrace::app
