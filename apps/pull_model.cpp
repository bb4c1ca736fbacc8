#include "pull_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "download_progress.h"
#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"
#include "headrace/core/scope_end.h"
#include "headrace/hub/pull.h"
#include "headrace/text/json_string.h"
#include "hub_environment.h"
#include "interrupt.h"
#include "output.h"

namespace headrace::app {
namespace {

constexpr const char* kKept = "headrace: stopped; what came is kept, and the same command continues\n";
constexpr const char* kKeptBehindBar = "\r\033[Kheadrace: stopped; what came is kept, and the same command continues\n";

std::string plan_text(const PullPlan& plan, const HubSettings& settings) {
  const std::string size = human_bytes(plan.bytes), title = text_of(plan.name);
  if (plan.missing_bytes == 0) return fmt::format("{}: all {} are here\n", title, size);
  const std::string rest = plan.missing_bytes < plan.bytes
                               ? fmt::format("the missing {} of {}", human_bytes(plan.missing_bytes), size)
                               : size;
  return fmt::format("{}: downloading {} from {}\n", title, rest, settings.endpoint);
}

std::string plan_json(const PullPlan& plan) {
  return fmt::format(R"({{"event": "plan", "model": {}, "revision": {}, "commit": "{}", "files": {}, "bytes": {}, )"
                     R"("missing_bytes": {}}})"
                     "\n",
                     json_string(text_of({.repository = plan.name.repository, .gguf = plan.name.gguf})),
                     json_string(plan.name.revision), plan.commit, plan.files.size(), plan.bytes, plan.missing_bytes);
}

std::filesystem::path pull_with_progress(const HubClient& client, const std::filesystem::path& cache,
                                         const PullPlan& plan, PullWish::Events events) {
  using Style = DownloadProgressText::Style;
  const bool json = events == PullWish::Events::kJson, bar = !json && isatty(STDERR_FILENO) != 0;
  DownloadProgressText text(json ? Style::kJson : bar ? Style::kBar : Style::kLines);
  const auto show = [json](const std::string& line) { json ? static_cast<void>(write_out(line)) : write_err(line); };
  const int64_t here = plan.bytes - plan.missing_bytes;
  int64_t before = -1;  // of the files that have something to download
  const ScopeEnd ended([&] {
    say_when_interrupted(nullptr);
    show(text.finish());
  });
  say_when_interrupted(bar ? kKeptBehindBar : kKept);
  return pull(client, cache, plan, [&](const DownloadProgress& now) {
    if (before < 0) before = now.bytes;
    show(text.update(here + now.bytes - before, plan.bytes, std::chrono::steady_clock::now()));
  });
}

PullPlan plan_of(const HubClient& client, const std::filesystem::path& cache, const PullWish& wish) {
  try {
    return plan_pull(client, cache, wish.name);
  } catch (const Error& error) {
    if (wish.reason.empty()) throw;
    throw Error(error.code(), wish.reason + "; " + error.what());
  }
}

}  // namespace

std::filesystem::path pull_model(const PullWish& wish) {
  const std::string title = text_of(wish.name);
  HR_REQUIRE(!hub_is_offline(), ErrorCode::kModelFile, title,
             ": is not downloaded, because HF_HUB_OFFLINE is set; headrace list names the models that are here");
  const std::filesystem::path cache = hub_cache();
  HR_REQUIRE(!cache.empty(), ErrorCode::kModelFile, title,
             ": there is no folder to download to, as HOME is not set; HF_HUB_CACHE names one");
  HubSettings settings = hub_settings(wish.token);
  settings.log = [](LogLevel, std::string_view sentence) {
    write_err(
        fmt::format("{}headrace: {}\n", isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "", without_controls(sentence)));
  };
  const HubClient client(std::move(settings));
  const PullPlan plan = plan_of(client, cache, wish);
  const bool json = wish.events == PullWish::Events::kJson;
  if (json) {
    write_out(plan_json(plan));
  } else {
    write_err(plan_text(plan, client.settings()));
  }
  std::filesystem::path directory = pull_with_progress(client, cache, plan, wish.events);
  if (json) write_out(fmt::format("{{\"event\": \"done\", \"path\": {}}}\n", json_string(directory.string())));
  return directory;
}

}  // namespace headrace::app
