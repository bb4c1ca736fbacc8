#include "model_path.h"

#include <sys/auxv.h>

#include <algorithm>

#include "commands.h"
#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"
#include "hub_cache.h"
#include "suggest.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

// Without /proc (a bare chroot), returns the path that the kernel was told to start.
fs::path program_file() {
  std::error_code ignored;
  fs::path running = fs::read_symlink("/proc/self/exe", ignored);
  if (!running.empty()) return running;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the auxiliary vector holds pointers as integers
  return fs::weakly_canonical(reinterpret_cast<const char*>(getauxval(AT_EXECFN)), ignored);
}

// A repository's folder in a cache ("hub/models--Qwen--Qwen3-0.6B") holds snapshots and is no model itself.
std::optional<fs::path> snapshot_of_folder(fs::path folder) {
  if (!folder.has_filename()) folder = folder.parent_path();  // of "hub/models--a--b/"
  const auto repository = hub_repository(folder.filename().string());
  if (!repository || file_exists(folder / "config.json") || !file_exists(folder / "snapshots")) return std::nullopt;
  const fs::path cache = folder.parent_path();
  return hub_snapshot(cache.empty() ? "." : cache, *repository);
}

std::optional<fs::path> bundled_model(const std::string& name) {
  const std::vector<BundledModel> all = bundled_models();
  const auto found = std::ranges::find(all, name, &BundledModel::name);
  return found == all.end() ? std::nullopt : std::optional(found->directory);
}

// "hf download Qwen/Qwen3-0.6B --revision v1" where `given` may be a repository's name; else empty.
std::string download_of(const std::string& given) {
  const size_t at = given.find('@');
  const std::string name = given.substr(0, at), revision = at == given.npos ? "" : given.substr(at + 1);
  if (!is_hub_repository(name)) return "";
  return "hf download " + name + (revision.empty() ? "" : " --revision " + revision);
}

Error no_model(const std::string& given) {
  const fs::path cache = hub_cache();
  std::vector<std::string> bundled;
  for (const BundledModel& model : bundled_models()) bundled.push_back(model.name);
  const auto guess = nearest(given, bundled);
  const std::string download = download_of(given);
  const std::string advice = download.empty() ? "" : ", " + download + " (of Hugging Face's tools) does";
  const std::string where = cache.empty()
                                ? std::string(", and without HOME no cache of models to look in")
                                : str(", nor is it in ", cache.string(), "; headrace downloads no models", advice);
  return {ErrorCode::kModelFile, str(given, ": no such model directory", where,
                                     guess ? str("; did you mean '", *guess, "'?") : std::string())};
}

}  // namespace

std::vector<BundledModel> bundled_models() {
  for (const fs::path& place : {program_file().parent_path() / ".." / "share" / "headrace" / "demo_models",
                                fs::path(HEADRACE_BUILD_DEMO_MODELS)}) {
    std::vector<BundledModel> models;
    for (const fs::path& folder : folders_in(place)) {
      if (file_exists(folder / "config.json")) models.push_back({folder.filename(), folder});
    }
    if (!models.empty()) return models;
  }
  return {};
}

std::optional<fs::path> find_model(const std::string& given) {
  const fs::path path = with_home(given);
  if (file_exists(path)) {
    const auto snapshot = snapshot_of_folder(path);
    return snapshot ? snapshot : path;
  }
  if (auto bundled = bundled_model(given)) return bundled;
  const fs::path cache = hub_cache();
  if (cache.empty()) return std::nullopt;
  const size_t at = given.find('@');
  if (at == std::string::npos) return hub_snapshot(cache, given);
  return hub_snapshot(cache, given.substr(0, at), given.substr(at + 1));
}

fs::path model_directory(const std::string& given, const std::string& demo) {
  const auto found = given.empty() ? bundled_model(demo) : find_model(given);
  if (found) return *found;
  if (!given.empty()) throw no_model(given);
  throw Error(ErrorCode::kModelFile,
              str("the demo model ", demo, " is neither beside the program nor in the source tree"));
}

fs::path model_directory(const ModelFlags& flags, const std::string& demo) {
  HR_REQUIRE(flags.revision.empty() || !flags.model.empty(), ErrorCode::kInvalidArgument, "--revision: is ",
             flags.revision, ", expected a model beside it: the name of one in Hugging Face's cache");
  return model_directory(flags.revision.empty() ? flags.model : flags.model + "@" + flags.revision, demo);
}

}  // namespace headrace::app
