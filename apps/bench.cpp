// headrace bench: one JSON object per line and case, the machine's limits measured in the same run.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent_bench.h"
#include "arrivals_bench.h"
#include "batch_bench.h"
#include "bench/attention_bench.h"
#include "bench/gdn_bench.h"
#include "bench/limit_beside.h"
#include "bench/linear_bench.h"
#include "bench/measured_limits.h"
#include "block_bench.h"
#include "canvas_bench.h"
#include "chat_bench.h"
#include "commands.h"
#include "engine_bench.h"
#include "headrace/core/parallel.h"
#include "headrace/llm/llm.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/device_registry.h"
#include "model_options.h"
#include "model_path.h"
#include "output.h"
#include "prefix_tree_bench.h"
#include "random_prompt.h"
#include "seconds_since.h"
#include "serve_bench.h"
#include "template_bench.h"

namespace headrace::app {
namespace {

constexpr int32_t kInputLen = 256;

// Seconds of prompts that fill the steps of the engine, one token decided.
double prefill_seconds(LLM& llm, int32_t tokens) {
  const std::vector<int32_t> prompt = random_prompt(llm.model_info(), tokens, 1);
  return bench::median_seconds(5, [&] {
    llm.engine().add(prompt, {.max_tokens = 1, .temperature = 0});
    while (!llm.engine().idle()) throw_if_failed(llm.engine().step());
  });
}

// Seconds of a step that decides one request's next token, behind this prompt.
double decode_seconds(LLM& llm, const std::vector<int32_t>& prompt, int32_t tokens) {
  const auto per_step = static_cast<size_t>(llm.config().runner.max_tokens);
  const auto prompt_steps = static_cast<int32_t>(prompt.size() / per_step) + 1;  // or fewer
  llm.engine().add(prompt,
                   {.max_tokens = tokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
  for (int32_t i = 0; i < prompt_steps; ++i) throw_if_failed(llm.engine().step());
  const double seconds =
      bench::median_seconds(tokens - prompt_steps - 7, [&] { throw_if_failed(llm.engine().step()); });
  while (!llm.engine().idle()) throw_if_failed(llm.engine().step());
  return seconds;
}

// `llm` and others like it, an engine each.
void bench_at_once(std::unique_ptr<LLM> llm, const std::filesystem::path& directory, const LLMOptions& options,
                   const BenchLoad& load) {
  std::vector<std::unique_ptr<LLM>> llms;
  llms.push_back(std::move(llm));
  while (std::ssize(llms) < *load.engines) llms.push_back(std::make_unique<LLM>(directory, options));
  for (const int32_t requests : load.parallel) bench_engines(llms, requests, load.input_len.value_or(kInputLen));
}

// Every step reads all weights once: a model larger than the caches needs no rotation.
void bench_model(const ModelFlags& flags, const BenchLoad& load, int threads, const bench::Report& report) {
  LLMOptions options = options_of(flags);
  options.context.threads = threads;
  options.keep_text = SchedulerConfig::KeepText::kNo;  // every prompt is to be computed
  const auto start = Clock::now();
  const Device device = open_device(options.device, options.log)->device();
  options.device = to_string(device);
  const double device_start = seconds_since(start);
  const std::filesystem::path directory = model_directory(flags);
  auto loaded = std::make_unique<LLM>(directory, options);
  LLM& llm = *loaded;
  const bool on_cpu = device.type == DeviceType::kCPU;
  if (!on_cpu) {
    report({.name = "start of " + to_string(device), .median_s = device_start, .limit_rate = std::nullopt});
    report({.name = "load on " + to_string(device),
            .median_s = seconds_since(start) - device_start,
            .limit_rate = std::nullopt});
  }
  bench::LimitBeside read([&] { return on_cpu ? std::optional(bench::read_bandwidth(threads)) : std::nullopt; });
  const ModelInfo& info = llm.model_info();
  const double seconds = decode_seconds(llm, random_prompt(info, 4, 1), on_cpu ? 32 : 256);
  const std::string model = fmt::format("{} {} {}", info.architecture, info.weight_types(), to_string(llm.device()));
  report(read.counted({.name = "model decode batch 1 " + model,
                       .median_s = seconds,
                       .bytes = info.bytes_read(1),
                       .limit = bench::Result::Limit::kRead}));
  const int32_t input_len = load.input_len.value_or(kInputLen);
  for (const int32_t requests : load.parallel) bench_batch(llm, requests, input_len);
  if (load.engines) return bench_at_once(std::move(loaded), directory, options, load);
  const int32_t context = llm.config().max_context_len;
  for (const int32_t prompt : on_cpu ? std::vector{128, 512, 2048} : std::vector{16384}) {
    const int32_t decided = on_cpu ? 48 : 256;
    if (prompt + decided > context) continue;
    report({.name = fmt::format("model prefill of {} tokens {}", prompt, model),
            .median_s = prefill_seconds(llm, prompt),
            // Without attention: two for each weight of 2 bytes.
            .flops = on_cpu ? 0 : info.bytes_multiplied() * prompt,
            .limit = bench::Result::Limit::kMatrix,
            .tokens = prompt,
            .limit_rate = std::nullopt});
    report({.name = fmt::format("model decode batch 1 behind {} tokens {}", prompt, model),
            .median_s = decode_seconds(llm, random_prompt(info, prompt, 1), decided),
            .tokens = 1,
            .limit_rate = std::nullopt});
  }
}

bool loads_server(const std::string& what) { return what == "serve" || what == "agent"; }

// Refuses what is not measured of `what`.
void refuse_load(const std::string& what, const BenchLoad& load) {
  const bool takes_both = what == "engine" || what == "blocks" || what == "arrivals";
  const bool takes_length = takes_both || loads_server(what) || !load.parallel.empty();
  HR_REQUIRE(takes_both || what == "model" || load.parallel.empty(), ErrorCode::kInvalidArgument, "bench ", what,
             ": --parallel has no effect on it; bench model, arrivals, blocks and engine take it");
  HR_REQUIRE(
      takes_length || !load.input_len, ErrorCode::kInvalidArgument, "bench ", what,
      ": --input-len has no effect on it; bench agent, arrivals, blocks, engine, serve and bench model --parallel "
      "take it");
  HR_REQUIRE(!load.engines || (what == "model" && !load.parallel.empty()), ErrorCode::kInvalidArgument, "bench ", what,
             ": --engines has no effect on it; bench model --parallel takes it");
  for (const int32_t requests : load.parallel) {
    HR_REQUIRE(!load.engines || requests >= *load.engines, ErrorCode::kInvalidArgument, "bench model: --parallel ",
               requests, " is too few for --engines ", *load.engines, ", expected a request for each engine");
  }
}

// `bench attention`, `gdn`, `linear` and `engine` run without a GPU, in dtypes and with models of their own.
void refuse_model_flags(const std::string& what, const ModelFlags& flags) {
  const auto refuse = [&what](std::string_view flag, const std::string& value) {
    if (value.empty() || value == "auto" || value == "cpu") return;
    throw Error(ErrorCode::kInvalidArgument,
                str("bench ", what, ": ", flag, " ", value,
                    " has no effect on it; bench model, arrivals, chat, blocks and canvases take it, and ",
                    "attention_gpu_bench and gdn_gpu_bench measure a GPU's kernels"));
  };
  refuse("the model", flags.model);
  refuse("--revision", flags.revision);
  refuse("--adapter", flags.adapter);
  refuse("-c", flags.max_model_len != 0 ? std::to_string(flags.max_model_len) : "");
  refuse("--deterministic", flags.deterministic ? "yes" : "");
  refuse("--device", flags.device);
  refuse("--dtype", flags.dtype);
  refuse("--kv-cache-dtype", flags.kv_dtype);
  refuse("--backend", flags.backend);
  refuse("--attn-impl", flags.attn_impl);
}

}  // namespace

int bench(const std::string& what, const ModelFlags& flags, const BenchLoad& load, const LoadFlags& server_load) {
  const bool engine = what == "engine";
  refuse_load(what, load);
  const int32_t input_len = load.input_len.value_or(kInputLen);
  if (what == "serve") bench_serve(flags, server_load, input_len);
  if (what == "agent") bench_agent(flags, server_load, input_len);
  if (what == "template") bench_template(model_directory(flags));
  if (loads_server(what) || what == "template") return 0;
  HR_REQUIRE(!engine || flags.threads == 0, ErrorCode::kInvalidArgument,
             "bench engine: --threads has no effect on it: it measures the engine's own thread");
  if (engine || what == "attention" || what == "gdn" || what == "linear") refuse_model_flags(what, flags);
  const int threads = flags.threads > 0 ? flags.threads : available_cores();
  const OpSet& ops = flags.kernel_set.empty() ? cpu::select_kernel_set() : cpu::select_kernel_set(flags.kernel_set);
  const bench::Report report = [](const bench::Result& result) { write_out(bench::json_line(result)); };
  if (what == "attention") bench::run_attention_bench({ops, {.threads = threads}}, report);
  if (what == "linear") bench::run_linear_bench({ops, {.threads = threads}}, report);
  if (what == "gdn") bench::run_gdn_bench({ops, {.threads = threads}}, report);
  if (engine) {
    bench_engine({.running = load.parallel,
                  .input_len = load.input_len,
                  .page_size = flags.page_size,
                  .kernel_set = flags.kernel_set.empty() ? std::nullopt : std::optional(flags.kernel_set)});
    if (load.parallel.empty() && !load.input_len) bench_prefix_tree();
  }
  if (what == "model") bench_model(flags, load, threads, report);
  if (what == "arrivals" || what == "blocks" || what == "canvases" || what == "chat") {
    LLM llm(model_directory(flags), options_of(flags));
    if (what == "arrivals") {
      for (const int32_t requests : load.parallel.empty() ? std::vector<int32_t>{64} : load.parallel) {
        bench_arrivals(llm, requests, input_len);
      }
    }
    if (what == "blocks") bench_blocks(llm, load.parallel, input_len);
    if (what == "canvases") bench_canvases(llm);
    if (what == "chat") bench_chat(llm, report);
  }
  return 0;
}

}  // namespace headrace::app
