#include "model_path.h"

#include "headrace/base/error.h"

namespace headrace::app {

std::filesystem::path model_directory(const std::string& given, const std::string& demo) {
  namespace fs = std::filesystem;
  if (!given.empty()) {
    HR_REQUIRE(fs::exists(given), ErrorCode::kModelFile, given, ": no such model directory");
    return given;
  }
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  for (const fs::path& place :
       {program.parent_path() / ".." / "share" / "headrace" / "demo_models", fs::path(HEADRACE_BUILD_DEMO_MODELS)}) {
    if (fs::is_directory(place / demo, ignored)) return place / demo;
  }
  throw Error(ErrorCode::kModelFile,
              str("the demo model ", demo, " is neither beside the program nor in the source tree"));
}

}  // namespace headrace::app
