#include "run_batch.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <system_error>

#include "batch_input.h"
#include "batch_runner.h"
#include "exit_status.h"
#include "headrace/gguf/gguf_file.h"
#include "headrace/hub/gguf_choice.h"
#include "headrace/llm/async_llm.h"
#include "headrace/serve/stable_hash.h"
#include "headrace/text/json_string.h"
#include "interrupt.h"
#include "load_model.h"
#include "many_requests.h"
#include "model_files.h"
#include "model_flags.h"
#include "model_options.h"
#include "model_path.h"
#include "option_values.h"
#include "output.h"
#include "partial_results.h"
#include "seconds_since.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

fs::path directory_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : "."; }

// Before a model is loaded for nothing.
void check_files(const RunBatchFlags& flags, const std::string& partial) {
  HR_REQUIRE(flags.input != "-", ErrorCode::kInvalidArgument,
             "--input-file: is -, expected a file: a run that is interrupted reads its requests again");
  const fs::path directory = directory_of(flags.output);
  std::error_code error;
  HR_REQUIRE(fs::is_directory(directory, error), ErrorCode::kInvalidArgument, flags.output,
             ": cannot be written: there is no directory ", directory.string());
  HR_REQUIRE(!fs::is_directory(flags.output, error), ErrorCode::kInvalidArgument, flags.output,
             ": is a directory, expected a file");
  for (const std::string& written : {flags.output, partial}) {
    HR_REQUIRE(!fs::equivalent(flags.input, written, error), ErrorCode::kInvalidArgument, "--output-file: ", written,
               " is the input file, expected another one");
  }
}

// Files decide results by what is in them; their sizes and times stand for it.
std::string state_of_files(const fs::path& directory) {
  uint64_t hash = 0;                             // of a set: a directory has no order
  std::error_code none;                          // who loads the model says what is wrong with its directory
  const bool is_file = is_gguf_path(directory);  // its parts lie beside it
  const std::string stem(gguf_stem(directory.filename().string()));
  for (const fs::directory_entry& entry :
       fs::directory_iterator(is_file ? directory.parent_path() / "" : directory, none)) {
    struct stat about {};
    const std::string extension = entry.path().extension();
    const bool counts = is_file ? gguf_stem(entry.path().filename().string()) == stem
                                : extension == ".json" || extension == ".safetensors";
    if (!counts || stat(entry.path().c_str(), &about) != 0) continue;
    hash +=
        stable_hash(str(entry.path().filename().string(), ':', int64_t{about.st_size}, ':', int64_t{about.st_mtime}));
  }
  return hash_text(hash);
}

// All that decides the results of a run in strict mode.
RunSettings settings_of(const RunBatchFlags& flags, const BatchInput& input, const fs::path& model,
                        const std::vector<std::string>& names) {
  const ModelFlags& m = flags.model;
  const auto text = [](const auto& number) { return number ? str(*number) : ""; };
  return {{"input file", str(hash_text(input.hash()), ' ', input.modified())},
          {"model", state_of_files(model)},
          {"adapter", m.adapter.empty() ? "" : state_of_files(m.adapter)},
          {"--served-model-name", fmt::format("{}", fmt::join(names, ","))},
          {"--seed", str(flags.seed)},
          {"--random-weights", text(m.random_weights)},
          {"--quantize", m.quantize},
          {"--max-model-len", str(m.max_model_len)},
          {"--dtype", m.dtype},
          {"--kv-cache-dtype", m.kv_dtype},
          {"--deterministic", m.deterministic ? "yes" : ""},
          {"--device", m.device},
          {"--backend", m.backend},
          {"--attn-impl", m.attn_impl},
          {"--kernel-set", m.kernel_set},
          {"--page-size", str(m.page_size)}};
}

class BatchProgress {
 public:
  explicit BatchProgress(int64_t total) : total_(total), shows_(isatty(STDERR_FILENO) != 0) {}
  BatchProgress(const BatchProgress&) = delete;
  BatchProgress& operator=(const BatchProgress&) = delete;
  ~BatchProgress() {
    if (shows_) write_err(LoadProgress::kWipe);
  }

  void update(int64_t done, double tokens_per_s) const {
    constexpr int64_t kBarWidth = 32;
    if (!shows_) return;
    write_err(fmt::format("\r[{:<{}}] {} of {} requests, {:.0f} tokens/s\033[K",
                          std::string(static_cast<size_t>(done * kBarWidth / total_), '#'), kBarWidth, done, total_,
                          tokens_per_s));
  }

 private:
  int64_t total_;
  bool shows_;
};

// Figures of a run, for its last line.
struct RunReport {
  int64_t requests = 0, failed = 0, earlier = 0;  // of the file; of these, done by an interrupted run
  BatchTotals totals = {};                        // of this run
  double load_s = 0, seconds = 0;                 // seconds: without loading

  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(totals.completion_tokens) / seconds : 0; }
};

std::string json_line(const RunReport& r) {
  return fmt::format(
      R"({{"requests": {}, "failed": {}, "resumed": {}, "prompt_tokens": {}, "completion_tokens": {}, "cached_tokens": {}, )"
      R"("load_s": {:.3f}, "seconds": {:.3f}, "tokens_per_s": {:.1f}}})"
      "\n",
      r.requests, r.failed, r.earlier, r.totals.prompt_tokens, r.totals.completion_tokens, r.totals.cached_tokens,
      r.load_s, r.seconds, r.tokens_per_s());
}

std::string text_line(const RunReport& r) {
  const std::string earlier = r.earlier > 0 ? fmt::format(", {} of them done before", r.earlier) : "";
  return fmt::format("[{} requests{}, {} failed, {} tokens, {:.0f} tokens/s, {:.1f} s]\n", r.requests, earlier,
                     r.failed, r.totals.completion_tokens, r.tokens_per_s(), r.seconds);
}

// A run and its files.
struct Run {
  const RunBatchFlags& flags;
  const ModelDescription& description;
  const BatchInput& input;
  PartialResults& results;
  std::vector<std::string> names;
};

// Fills in what the report says of this run.
void run_requests(const Run& run, const LLMOptions& options, RunReport& report) {
  const auto start = Clock::now();
  EventQueue events;  // outlives the model
  const auto llm = load_with_progress<AsyncLLM>(run.description, options);
  report.load_s = seconds_since(start);
  const auto warn = [&options](const std::string& sentence) {
    if (options.log) options.log(LogLevel::kWarning, sentence);
  };
  BatchRunner runner(*llm, events, run.input, run.results,
                     {.model_names = run.names,
                      .chat = ChatTemplate::of_model(run.description.directory),
                      .seed = run.flags.seed,
                      .window = 2 * options.max_num_seqs,
                      .warn = warn});
  const BatchProgress progress(run.input.size());
  const auto begin = Clock::now();
  finish_when_interrupted();
  report.totals = runner.run([&](const BatchTotals& so_far) {
    report.totals = so_far, report.seconds = seconds_since(begin);
    progress.update(report.earlier + so_far.lines, report.tokens_per_s());
    return !interrupted();
  });
  report.seconds = seconds_since(begin);
}

std::string interruption(const RunReport& report, const std::string& partial) {
  return fmt::format("headrace: interrupted: {} of {} requests are done and kept in {}; the same command goes on\n",
                     report.earlier + report.totals.lines, report.requests, without_controls(partial));
}

}  // namespace

void add_run_batch_flags(CLI::App& command, RunBatchFlags& f) {
  command.option_defaults()->group("Batch");
  command
      .add_option("-i,--input-file", f.input,
                  "the requests, one JSON object in each line: custom_id, method, url and body")
      ->type_name(kFile)
      ->required();
  CLI::Option* output = command.add_option(
      "-o,--output-file", f.output,
      "the results, in the order of the requests; while it runs they are in FILE.partial, from which a run that was "
      "interrupted goes on");
  refuse_standard_output(*output->type_name(kFile)->required());
  command.add_flag("--overwrite", f.overwrite, "replace an output file that exists, once all results are there");
  command
      .add_option("-s,--seed", f.seed,
                  "requests without a seed draw their tokens by this one and the number of their line")
      ->check(integer_in<uint64_t>(0, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  add_many_requests_flags(command, f.many);
  add_model_flags(command, f.model);
}

int run_batch(const RunBatchFlags& flags, Output output) {
  const std::string partial = flags.output + ".partial";
  check_files(flags, partial);
  const LLMOptions options = options_of(flags.model);
  const fs::path directory = model_directory(flags.model);
  const ModelDescription description = read_description(directory, options.random_weights);
  if (!options.random_weights) require_model_files(directory);
  const BatchInput input(flags.input);
  const std::vector<std::string> names = model_names(flags.many, flags.model, directory);
  PartialResults results(partial, settings_of(flags, input, directory, names), input.size());
  HR_REQUIRE(flags.overwrite || results.complete() || !fs::exists(flags.output), ErrorCode::kInvalidArgument,
             flags.output, ": exists; --overwrite replaces it");
  RunReport report{.requests = input.size(), .earlier = results.size()};
  if (!results.complete()) {
    const Run run{flags, description, input, results, names};
    run_requests(run, for_many_requests(flags.many, description, options), report);
  }
  if (!results.complete()) {
    write_err(interruption(report, partial));
    return kInterrupted;
  }
  report.failed = results.num_failed();
  results.finish(flags.output);
  write_out(output == Output::kJson ? json_line(report) : text_line(report));
  return report.failed > 0 ? kSomeFailed : 0;
}

}  // namespace headrace::app
