#include "model_path.h"

#include <sys/auxv.h>

#include "headrace/base/error.h"
#include "headrace/base/file_exists.h"
#include "hub_cache.h"

namespace headrace::app {
namespace {

// Where /proc is not mounted (a bare chroot), what the kernel was asked to start.
std::filesystem::path program_file() {
  std::error_code ignored;
  std::filesystem::path running = std::filesystem::read_symlink("/proc/self/exe", ignored);
  if (!running.empty()) return running;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the auxiliary vector holds pointers as integers
  return std::filesystem::weakly_canonical(reinterpret_cast<const char*>(getauxval(AT_EXECFN)), ignored);
}

std::filesystem::path given_directory(const std::string& given) {
  if (file_exists(given)) return given;
  const std::filesystem::path cache = hub_cache();
  HR_REQUIRE(!cache.empty(), ErrorCode::kModelFile, given,
             ": no such model directory, and without HOME no cache of models to look in");
  const auto snapshot = hub_snapshot(cache, given);
  HR_REQUIRE(snapshot.has_value(), ErrorCode::kModelFile, given, ": no such model directory, nor is it in ",
             cache.string(), "; headrace downloads no models");
  return *snapshot;
}

}  // namespace

std::filesystem::path model_directory(const std::string& given, const std::string& demo) {
  namespace fs = std::filesystem;
  if (!given.empty()) return given_directory(given);
  std::error_code ignored;
  for (const fs::path& place : {program_file().parent_path() / ".." / "share" / "headrace" / "demo_models",
                                fs::path(HEADRACE_BUILD_DEMO_MODELS)}) {
    if (fs::is_directory(place / demo, ignored)) return place / demo;
  }
  throw Error(ErrorCode::kModelFile,
              str("the demo model ", demo, " is neither beside the program nor in the source tree"));
}

}  // namespace headrace::app
