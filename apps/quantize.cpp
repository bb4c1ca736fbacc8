// headrace quantize: a model as a GGUF file.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "commands.h"
#include "exit_status.h"
#include "headrace/core/error.h"
#include "headrace/core/parallel.h"
#include "headrace/core/scope_end.h"
#include "headrace/models/gguf_model_file.h"
#include "interrupt.h"
#include "load_progress.h"
#include "log_sink.h"
#include "model_path.h"
#include "output.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

GgufTarget target_named(const std::string& name) {
  if (name == "f16") return DType::kF16;
  const auto preset = quant_preset_named(name);
  return preset ? GgufTarget(*preset) : GgufTarget(DType::kBF16);
}

fs::path output_of(const QuantizeFlags& flags, const fs::path& model) {
  if (!flags.output.empty()) return flags.output;
  std::string format = flags.to;
  std::ranges::transform(format, format.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return gguf_model_name(model) + "-" + format + ".gguf";
}

void require_writable(const fs::path& file, const fs::path& model, const QuantizeFlags& flags) {
  std::error_code unknown;
  HR_REQUIRE(file.extension() == ".gguf", ErrorCode::kInvalidArgument, file.string(),
             ": expected a name that ends with .gguf");
  HR_REQUIRE(!fs::is_directory(file, unknown), ErrorCode::kInvalidArgument, file.string(), ": is a directory");
  HR_REQUIRE(!fs::equivalent(file, model, unknown), ErrorCode::kInvalidArgument, file.string(),
             ": is the model to quantise, expected another file");
  HR_REQUIRE(flags.overwrite || !fs::exists(file, unknown), ErrorCode::kInvalidArgument, file.string(),
             ": exists; --overwrite replaces it");
}

constexpr int64_t kLargeFile = 100'000'000;  // a second's work, or more

// An interrupt stops the work at the next piece, and what was written is removed.
void write_with_progress(const ModelDescription& model, const fs::path& file, const QuantizeFlags& flags) {
  LoadProgress progress(isatty(STDERR_FILENO) != 0 ? LoadProgress::Style::kBar : LoadProgress::Style::kLines,
                        "quantising", kLargeFile);
  const ScopeEnd ended([&progress] { write_err(progress.finish()); });
  finish_when_interrupted();
  write_gguf(model, file,
             {.target = target_named(flags.to),
              .threads = flags.threads > 0 ? flags.threads : available_cores(),
              .progress =
                  [&progress](std::string_view, int64_t done, int64_t total) {
                    HR_REQUIRE(!interrupted(), ErrorCode::kCancelled, "stopped; no file was written");
                    write_err(progress.update(done, total));
                  },
              .log = log_to_stderr("warning"),
              .guard = flags.guard});
}

}  // namespace

int quantize(const QuantizeFlags& flags, Output output) {
  const fs::path model = model_directory(flags.model), file = output_of(flags, model);
  require_writable(file, model, flags);
  try {
    write_with_progress(read_description(model), file, flags);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
    write_err(str("headrace: ", error.what(), "\n"));
    return kInterrupted;
  }
  return show_model(file.string(), output);
}

}  // namespace headrace::app
