#include "headrace/llm/llm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "headrace/attention/backend_registry.h"
#include "headrace/cache/memory_plan.h"
#include "headrace/core/device_runtime.h"
#include "headrace/core/file_exists.h"
#include "headrace/core/host_memory.h"
#include "headrace/core/scope_end.h"
#include "headrace/decoding/decoding_option.h"
#include "headrace/engine/decoding_checks.h"
#include "headrace/engine/step_rows.h"
#include "headrace/llm/sampling_defaults.h"
#include "headrace/llm/start_report.h"
#include "headrace/llm/stop_filter.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/device_registry.h"
#include "headrace/text/detokenizer.h"

namespace headrace {
namespace {

constexpr int32_t kMostRequests = 1;                                   // running at a time
constexpr int32_t kTokensPerStep = 512, kTokensPerDeviceStep = 16384;  // a device needs many tokens to be busy

OpContext context_on(DeviceRuntime& runtime, const LLMOptions& o) {
  OpContext context = o.context;
  context.stream = runtime.stream();
  return context;
}

ModelOptions model_options(DeviceRuntime& runtime, const LLMOptions& o) {
  return {.dtype = o.dtype,
          .mask_token_id = o.decoding.mask_token_id,
          .block_size = o.decoding.block_size,
          .ops = &backend_ops(o.backend, runtime.device(), {.kernel_set = o.kernel_set}),
          .context = context_on(runtime, o),
          .runtime = &runtime,
          .random_weights = o.random_weights,
          .adapter = o.adapter,
          .progress = o.progress,
          .log = o.log,
          .guard = o.guard};
}

struct StepRows {
  int32_t least = 1, most = 1;  // tokens that a step may need; that a step can have
};

// Full attention runs a text as a whole. Causal and block masks run it in chunks, at least as large as a request's step
// may need. Texts may end inside a block, steps never do.
StepRows rows_of_steps(const ModelInfo& model, const EngineConfig& c) {
  const int32_t context = c.max_context_len;
  const auto& diffusion = model.diffusion;
  if (!diffusion) return {.least = 1, .most = context};
  const int32_t whole = context + c.decoding.block_size.value_or(diffusion->block_size);
  if (diffusion->attention == DiffusionInfo::Attention::kFull) {
    const bool guided =
        diffusion->guidance != DiffusionInfo::Guidance::kNone && reads_option(c.strategy, DecodingOption::kCfgScale);
    const int32_t rows = guided ? 2 * whole : whole;  // a guided request's step runs its text twice
    return {.least = rows, .most = rows};
  }
  StrategyConfig decoding = c.decoding;
  decoding.model = diffusion;
  const int32_t needed = std::min(most_step_rows(make_strategy(c.strategy, decoding)->traits()), whole);
  return {.least = needed, .most = std::max(context, needed)};
}

StepRows checked_rows(const ModelInfo& model, const EngineConfig& c, const LLMOptions& o) {
  const StepRows rows = rows_of_steps(model, c);
  HR_REQUIRE(!o.max_num_batched_tokens || *o.max_num_batched_tokens >= rows.least, ErrorCode::kInvalidArgument,
             "max_num_batched_tokens is ", *o.max_num_batched_tokens, ", expected ", rows.least,
             " or more: a step of strategy '", c.strategy, "' may need so many");
  return rows;
}

void set_step_rows(EngineConfig& c, const ModelInfo& model, const LLMOptions& o) {
  const StepRows rows = checked_rows(model, c, o);
  const bool on_cpu = c.runner.runtime->device().type == DeviceType::kCPU;
  const int32_t most = o.max_num_batched_tokens.value_or(on_cpu ? kTokensPerStep : kTokensPerDeviceStep);
  c.runner.max_tokens = std::clamp(most, rows.least, rows.most);
  const int32_t least = std::max(rows.least, kRowsMultiple);
  if (!o.max_num_batched_tokens && least < c.runner.max_tokens) c.least_step_rows = least;
}

int32_t context_of(const ModelInfo& model, const LLMOptions& o) {
  if (o.max_model_len == kWholeContext) return model.context_length;
  return o.max_model_len > 0 ? o.max_model_len : std::min(model.context_length, kDefaultContext);
}

// Returns the name of the context limit for errors: without -c it may be the model's.
std::string context_name(const ModelInfo& model, const LLMOptions& o) {
  const bool of_model = o.max_model_len <= 0 && context_of(model, o) == model.context_length;
  return of_model ? "the model's context (config.json)" : EngineConfig().context_name;
}

std::string strategy_name(const ModelInfo& model, const LLMOptions& o) {
  return o.strategy == "auto" ? std::string(default_strategy(model.diffusion)) : o.strategy;
}

// Holds the fields that strategy_of() reads.
EngineConfig strategy_config(const ModelInfo& model, const LLMOptions& o) {
  return {.max_context_len = context_of(model, o), .strategy = strategy_name(model, o), .decoding = o.decoding};
}

CacheNeeds cache_needs(const ModelInfo& model, const LLMOptions& o, const StrategyTraits& traits) {
  const bool caches = o.keep_text == SchedulerConfig::KeepText::kYes && traits.text_block.has_value();
  const DType dtype = o.kv_dtype.value_or(model.dtype);
  GDNPoolConfig states = model.gdn;
  states.num_slots = 0;  // a pool has one more, for padding
  return {.page_bytes = KVPool::bytes_for({.groups = model.kv_groups, .page_size = o.page_size, .dtype = dtype}),
          .state_bytes = model.num_gdn_layers > 0 ? GDNPool::bytes_for(states) : 0,
          .page_size = o.page_size,
          .max_requests = kMostRequests,
          .max_context_len = context_of(model, o),
          .caches_text = caches ? CacheNeeds::CachesText::kYes : CacheNeeds::CachesText::kNo};
}

int64_t free_memory(Device device) {
  if (device.type != DeviceType::kCPU) return cuda_module().free_bytes(device.index);
  return available_host_memory().value_or(std::numeric_limits<int64_t>::max());
}

MemoryPlan cache_plan(const ModelInfo& model, Device device, const LLMOptions& o) {
  const auto strategy = strategy_of(model, strategy_config(model, o));
  const CacheNeeds needs = cache_needs(model, o, strategy->traits());
  return plan_memory(o.cache_memory ? *o.cache_memory : default_memory(needs, free_memory(device)), needs);
}

EngineConfig engine_config(const Model& model, const Tokenizer& tokenizer, DeviceRuntime& runtime,
                           const MemoryPlan& memory, const LLMOptions& o) {
  const int32_t context = context_of(model.info(), o);
  EngineConfig c{.runner = {.backend = o.backend,
                            .kernel_set = o.kernel_set,
                            .attn_impl = o.attn_impl,
                            .runtime = &runtime,
                            .context = context_on(runtime, o),
                            .num_pages = memory.num_pages,
                            .page_size = o.page_size,
                            .num_states = memory.num_states,
                            .kv_dtype = o.kv_dtype,
                            .graphs = o.graphs},
                 .max_requests = kMostRequests,
                 .max_context_len = context,
                 .context_name = context_name(model.info(), o),
                 .vocab = std::min(tokenizer.vocab_size(), model.info().vocab_size),
                 .strategy = strategy_name(model.info(), o),
                 .keep_text = o.keep_text,
                 .decoding = o.decoding,
                 .log = o.log};
  set_step_rows(c, model.info(), o);
  return c;
}

std::unique_ptr<Model> load_checked(const ModelDescription& model, DeviceRuntime& runtime, const LLMOptions& o) {
  checked_strategy(model, o, {});
  return load_model(model, model_options(runtime, o));
}

// Warns about end tokens that the tokenizer lacks: they are never chosen and end nothing.
void warn_of_end_tokens(const LLMOptions& o, const Tokenizer& tokenizer, const ModelInfo& model) {
  if (!o.log || o.random_weights) return;
  for (const int32_t id : model.eos_ids) {
    if (id < tokenizer.vocab_size()) continue;
    o.log(LogLevel::kWarning, str("the end token ", id, " is never chosen: the tokenizer has ids below ",
                                  tokenizer.vocab_size(), "; --stop or -n ends the text"));
  }
}

// Checks options before anything is loaded.
const LLMOptions& checked(const LLMOptions& o) {
  KVPool::check_page_size(o.page_size);
  return o;
}

// Turns final tokens into text that cannot change any more. A token counts as visible once some of its text is out;
// tokens without text, or within a stop text, never count.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stops)
      : tokenizer_(tokenizer), detokenizer_(tokenizer), stops_(stops) {}

  // Returns the text that `out` completes, and adds it and the token to `result`.
  std::string push(const StepOutput& out, Completion& result) {
    if (result.ids.empty()) first_forwards_ = out.num_forwards;
    result.ids.push_back(out.token.id);
    result.logprobs.push_back(out.token.logprob);
    result.num_forwards = out.num_forwards;
    result.num_reused = out.num_reused;
    std::string piece;
    if (out.finish_reason != FinishReason::kStop) {  // end tokens have no text
      if (spells(out.token.id)) hidden_.push_back({num_bytes_, out.num_forwards});
      piece += filtered(detokenizer_.push(out.token.id));
      if (tokenizer_.is_special(out.token.id))  // hidden in the text, but may match a stop text
        piece += stops_.push(tokenizer_.bytes_of(out.token.id), StopFilter::Shown::kNo);
    }
    if (out.finish_reason) {
      result.finish_reason = *out.finish_reason;
      piece += filtered(detokenizer_.flush());
      piece += stops_.flush();
    }
    result.text += piece;
    count(result);
    return piece;
  }
  bool stopped() const { return stops_.stopped(); }

 private:
  // A token without visible text so far.
  struct Hidden {
    size_t begin;  // bytes of text before it
    int32_t num_forwards;
  };
  bool spells(int32_t id) const {
    return !tokenizer_.is_special(id) && tokenizer_.id_to_token(id) && !tokenizer_.bytes_of(id).empty();
  }
  std::string filtered(const std::string& text) {
    num_bytes_ += text.size();
    return stops_.push(text);
  }
  void count(Completion& result) {
    const auto still = std::ranges::find_if(hidden_, [&](const Hidden& h) { return h.begin >= result.text.size(); });
    result.num_visible += static_cast<int32_t>(still - hidden_.begin());
    result.num_first += static_cast<int32_t>(
        std::count_if(hidden_.begin(), still, [this](const Hidden& h) { return h.num_forwards == first_forwards_; }));
    hidden_.erase(hidden_.begin(), still);
  }

  const Tokenizer& tokenizer_;  // not owned
  Detokenizer detokenizer_;
  StopFilter stops_;
  size_t num_bytes_ = 0;  // bytes from the detokenizer, before stop texts
  std::vector<Hidden> hidden_;
  int32_t first_forwards_ = 0;
};

// Adds the model's path to errors about its files, which the engine does not know.
template <class Run>
auto naming(const std::filesystem::path& model, const Run& run) {
  try {
    return run();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kModelFile) throw;
    throw Error(e.code(), str(model.string(), ": ", e.what()));
  }
}

}  // namespace

Tokenizer tokenizer_of(const std::filesystem::path& model, const LLMOptions& o) {
  require_model_directory(model, o.random_weights);
  const auto has = [&model](const char* file) { return file_exists(model / file); };
  if (o.random_weights && !has("tokenizer.json") && !has("merges.txt")) return Tokenizer::of_bytes();
  return Tokenizer::from_directory(model);
}

std::string checked_strategy(const ModelDescription& model, const LLMOptions& o, const SamplingParams& params) {
  const ModelInfo stated = stated_info(
      model, {.dtype = o.dtype, .mask_token_id = o.decoding.mask_token_id, .block_size = o.decoding.block_size});
  const EngineConfig engine = strategy_config(stated, o);
  const auto strategy = strategy_of(stated, engine);
  checked_rows(stated, engine, o);
  if (o.cache_memory) plan_memory(*o.cache_memory, cache_needs(stated, o, strategy->traits()));
  check_params(params, engine.strategy, stated);
  check_graphs(params, o.graphs);
  return engine.strategy;
}

// Reads the tokenizer while the device starts: large ones take as long.
LLM::LLM(const ModelDescription& model, const LLMOptions& options)
    : LLM(model, options, std::async([&] { return tokenizer_of(model.directory, options); })) {}

LLM::LLM(const std::filesystem::path& directory, const LLMOptions& options)
    : LLM(read_description(directory, checked(options).random_weights), options) {}

LLM::LLM(const ModelDescription& model, const LLMOptions& options, std::future<Tokenizer> tokenizer)
    : directory_(model.directory),
      runtime_(open_device(checked(options).device, options.log)),
      matmul_library_(runtime_->start_matmul_library()),
      tokenizer_(tokenizer.get()),
      default_params_(sampling_defaults(model, options.log)),
      model_(load_checked(model, *runtime_, options)),
      memory_plan_(cache_plan(model_->info(), runtime_->device(), options)),
      engine_(std::make_unique<Engine>(*model_, engine_config(*model_, tokenizer_, *runtime_, memory_plan_, options))) {
  if (!engine_->runner().on_cpu()) naming(directory_, [this] { engine_->run_largest_step(); });
  warn_of_end_tokens(options, tokenizer_, model_info());
  if (options.log) report_start(options, *this);
}

SamplingParams LLM::default_params(DecodingParams::Schedule schedule) const {
  const auto& diffusion = model_info().diffusion;
  if (schedule == DecodingParams::Schedule::kThreshold || !diffusion) return default_params_;
  const ReferenceDefaults& loop = diffusion->reference;
  return {.temperature = loop.temperature, .top_k = loop.top_k, .top_p = loop.top_p};
}

Completion LLM::generate(std::string_view prompt, const SamplingParams& params, const OnText& on_text,
                         const OnStep& on_step) {
  return generate(tokenizer_.encode(prompt), params, on_text, on_step);
}

Completion LLM::generate(std::vector<int32_t> prompt_ids, const SamplingParams& params, const OnText& on_text,
                         const OnStep& on_step) {
  Completion result{.prompt_ids = std::move(prompt_ids)};
  TextStream stream(tokenizer_, params.stop);
  StepRecorder recorder;
  if (on_step) {
    engine_->observe([&recorder](StepMoment m, const Sequence& s, const StepPlan& p) { recorder.observe(m, s, p); });
  }
  const ScopeEnd stop_observing([this] { engine_->observe({}); });
  const int64_t id = engine_->add(result.prompt_ids, params);
  // If a step or the callback throws, the request must not keep running.
  const ScopeEnd stop_running([this, id] { engine_->abort(id); });
  while (!engine_->idle()) {
    const std::vector<StepOutput> outputs = naming(directory_, [this] { return throw_if_failed(engine_->step()); });
    if (outputs.empty()) result.num_forwards = engine_->num_forwards(id);  // on_text may end the request here
    bool aborted = outputs.empty() && on_text({}, result) == StreamAction::kStop;
    for (const StepOutput& out : outputs) {
      const std::string piece = stream.push(out, result);
      aborted = on_text(piece, result) == StreamAction::kStop;
      if (aborted || stream.stopped()) break;  // the step's other tokens are after the stop
    }
    if (aborted || stream.stopped()) {
      result.finish_reason = aborted ? FinishReason::kAborted : FinishReason::kStop;
      engine_->abort(id);
    }
    if (on_step) on_step(recorder.report());
  }
  return result;
}

LLM::Perplexity LLM::perplexity(std::string_view text, int32_t window, const OnWindow& on_window) {
  check_scores(model_info());
  const std::vector<int32_t> ids = tokenizer_.encode(text, {.add_special_tokens = AddSpecialTokens::kNo});
  const std::span<const int32_t> prefix = tokenizer_.prefix_ids();
  const auto num_prefix = static_cast<int32_t>(prefix.size()), least = std::max(3, num_prefix + 2);
  const int32_t context = engine_->scheduler().table().max_context_len();
  HR_REQUIRE(context >= least, ErrorCode::kInvalidArgument, "perplexity: the context holds ", context,
             " tokens, expected ", least, " or more");
  const auto most = static_cast<int32_t>(std::min<int64_t>(context - 1, config().runner.max_tokens));
  Perplexity total{.window = std::min(window, most)};  // a request needs room for one more token
  HR_REQUIRE(total.window > num_prefix, ErrorCode::kInvalidArgument, "perplexity: a window has ", total.window,
             " tokens, expected more than the ", num_prefix, " that the tokenizer puts before a text");
  const size_t first = std::max<size_t>(1, prefix.size()), each = static_cast<size_t>(total.window) - prefix.size();
  for (size_t at = 0; at < ids.size(); at += each) {
    const size_t end = std::min(ids.size(), at + each);
    std::vector<int32_t> part(prefix.begin(), prefix.end());
    part.insert(part.end(), ids.begin() + static_cast<int64_t>(at), ids.begin() + static_cast<int64_t>(end));
    if (part.size() < 2) break;
    const std::vector<float> logprobs = naming(directory_, [&] { return engine_->score(part); });
    for (size_t i = first; i < part.size(); ++i) {
      total.bits -= static_cast<double>(logprobs[i - 1]) / std::log(2.0);
      total.bytes += static_cast<int64_t>(tokenizer_.bytes_of(part[i]).size());
    }
    total.tokens += static_cast<int64_t>(part.size() - first);
    if (on_window) on_window(static_cast<int64_t>(end), static_cast<int64_t>(ids.size()));
  }
  HR_REQUIRE(total.bytes > 0, ErrorCode::kInvalidArgument, "perplexity: the text has fewer than two tokens");
  return total;
}

}  // namespace headrace
