#include "model_path.h"

#include <sys/auxv.h>

#include <algorithm>

#include "commands.h"
#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"
#include "headrace/hub/hub_cache.h"
#include "hub_environment.h"
#include "pull_model.h"
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

// The name on a hub that `given` is; none where it rather is a path: one that leads through a folder which is here.
std::optional<HubName> downloadable(const std::string& given) {
  auto name = parse_hub_name(given);
  if (!name || !is_hub_repository(name->repository)) return std::nullopt;
  const std::string owner = name->repository.substr(0, name->repository.find('/'));
  return file_exists(owner) ? std::nullopt : name;
}

// "a/b: no such model directory, nor is it in the cache"
std::string not_here(const std::string& given) {
  const fs::path cache = hub_cache();
  return str(given, given.ends_with(".gguf") ? ": no such file" : ": no such model directory",
             cache.empty() ? std::string(", and without HOME no cache of models to look in")
                           : ", nor is it in " + cache.string());
}

Error no_model(const std::string& given) {
  std::vector<std::string> bundled;
  for (const BundledModel& model : bundled_models()) bundled.push_back(model.name);
  const auto guess = nearest(given, bundled);
  const auto name = parse_hub_name(given);
  std::string advice;
  if (guess) {
    advice = str("; did you mean '", *guess, "'?");
  } else if (given.find('/') == given.npos) {
    advice = "; headrace list names the models that are here, and one on a hub is ORG/NAME";
  }
  if (name && is_hub_repository(name->repository) && !hub_cache().empty()) {
    advice = hub_is_offline() ? "; HF_HUB_OFFLINE is set: nothing is downloaded"
                              : str("; headrace pull ", given, " downloads it, if the hub has it");
  }
  return {ErrorCode::kModelFile, not_here(given) + advice};
}

// find_model, or the error that refuses what is there.
std::optional<fs::path> find_or_note(const std::string& given, std::optional<Error>& fault) {
  try {
    return find_model(given);
  } catch (const Error& error) {
    fault = error;
    return std::nullopt;
  }
}

// --model with --revision behind it.
std::string given_model(const ModelFlags& flags) {
  HR_REQUIRE(flags.revision.empty() || !flags.model.empty(), ErrorCode::kInvalidArgument, "--revision: is ",
             flags.revision, ", expected a model beside it: the name of one on Hugging Face's hub");
  return flags.revision.empty() ? flags.model : flags.model + "@" + flags.revision;
}

// Whoever makes up weights wants none downloaded.
Network network_of(const ModelFlags& flags) {
  return flags.offline || flags.random_weights ? Network::kOffline : Network::kUsed;
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

void refuse_bundled(const std::string& name, std::string_view sentence) {
  HR_REQUIRE(!bundled_model(name), ErrorCode::kInvalidArgument, name, ": comes with headrace: ", sentence);
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
  const auto name = parse_hub_name(given);
  return name ? hub_model(cache, *name) : std::nullopt;
}

fs::path model_directory(const std::string& given, const std::string& demo, Network network) {
  std::optional<Error> fault;
  const auto found = given.empty() ? bundled_model(demo) : find_or_note(given, fault);
  if (found) return *found;
  HR_REQUIRE(!given.empty(), ErrorCode::kModelFile, "the demo model ", demo,
             " is neither beside the program nor in the source tree");
  const auto name = downloadable(given);
  const bool offline = network == Network::kOffline || hub_is_offline();
  if (name && !offline)
    return pull_model({.name = *name, .reason = fault ? std::string(fault->what()) : not_here(given)});
  throw fault ? *fault : no_model(given);
}

fs::path model_directory(const ModelFlags& flags, const std::string& demo) {
  return model_directory(given_model(flags), demo, network_of(flags));
}

void require_model_name(const ModelFlags& flags) {
  const std::string given = given_model(flags);
  std::optional<Error> fault;
  const bool offline = network_of(flags) == Network::kOffline || hub_is_offline();
  if (given.empty() || find_or_note(given, fault) || (downloadable(given) && !offline)) return;
  throw fault ? *fault : no_model(given);
}

}  // namespace headrace::app
