// headrace bench: one JSON object per line and case, the machine's limits measured in the same run.
#include <fmt/format.h>

#include <optional>

#include "bench/attention_bench.h"
#include "bench/gdn_bench.h"
#include "bench/measured_limits.h"
#include "commands.h"
#include "headrace/base/parallel.h"
#include "headrace/kernels/cpu/dispatch.h"
#include "headrace/llm/llm.h"
#include "model_path.h"
#include "output.h"

namespace headrace::app {
namespace {

// Every step reads all weights once: a model larger than the caches needs no rotation.
void bench_model(const ModelFlags& flags, int threads, const bench::Report& report) {
  LLMOptions options{.random_weights = flags.random_weights};
  options.context.threads = threads;
  LLM llm(model_directory(flags.model), options);
  constexpr int32_t kTokens = 32;
  llm.engine().add({1, 2, 3, 4},
                   {.max_tokens = kTokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
  llm.engine().step();
  const double seconds = bench::median_seconds(kTokens - 8, [&] { llm.engine().step(); });
  const ModelInfo& info = llm.model_info();
  report({.name = fmt::format("model decode batch 1 {} {}", info.architecture, name_of(info.dtype)),
          .median_s = seconds,
          .bytes = static_cast<double>(info.weight_bytes),
          .limit = bench::Result::Limit::kRead,
          .limit_rate = bench::read_bandwidth(threads)});
}

}  // namespace

int bench(const std::string& what, const ModelFlags& flags) {
  const int threads = flags.threads > 0 ? flags.threads : available_cores();
  const OpSet& ops = flags.kernel_set.empty() ? cpu::select_kernel_set() : cpu::select_kernel_set(flags.kernel_set);
  const bench::Report report = [](const bench::Result& result) { write_out(bench::json_line(result)); };
  if (what == "attention") bench::run_attention_bench({ops, {.threads = threads}}, report);
  if (what == "gdn") bench::run_gdn_bench({ops, {.threads = threads}}, report);
  if (what == "model") bench_model(flags, threads, report);
  return 0;
}

}  // namespace headrace::app
