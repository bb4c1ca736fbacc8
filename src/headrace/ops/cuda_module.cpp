#include "headrace/ops/cuda_module.h"

#include <dlfcn.h>

#include <array>
#include <string>
#include <string_view>

namespace headrace {
namespace {

constexpr const char* kLibrary = "libheadrace_cuda.so";
// Paths of a build and of an installation come before any path from the environment. glibc replaces $ORIGIN by the
// directory of the program or library that contains this code; other loaders would take it as a directory's name.
#ifdef __GLIBC__
constexpr std::array kPlaces = {"$ORIGIN/libheadrace_cuda.so", "$ORIGIN/../lib/libheadrace_cuda.so", kLibrary};
#else
constexpr std::array kPlaces = {kLibrary};
#endif

// Returns true if the loader found no such file, and false if the file exists but could not be loaded.
bool is_of_no_file(std::string_view reason) {
  return reason.find(str(kLibrary, ": ")) != std::string_view::npos && reason.ends_with("No such file or directory");
}

void* open_library() {
  std::string reason;  // from the first path that has the file; later paths only report that they lack it
  for (const char* place : kPlaces) {
    if (void* library = dlopen(place, RTLD_NOW | RTLD_LOCAL)) return library;
    const std::string failure = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread alone, in glibc and in musl
    if (reason.empty() && !is_of_no_file(failure)) reason = failure;
  }
  HR_REQUIRE(!reason.empty(), ErrorCode::kNoDevice, "cuda: the CUDA part of headrace is not here: no ", kLibrary,
             " beside the program, in ../lib or where the loader looks (script/build cuda makes it, "
             "or pip with -C cmake.define.HEADRACE_CUDA=ON)");
  throw Error(ErrorCode::kNoDevice, str("cuda: the CUDA part of headrace could not be loaded: ", reason));
}

const CudaModule* open_module() {
  void* const library = open_library();  // never closed: runtimes may live until the program ends
  using Entry = const CudaModule* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "headrace_cuda_module"));
  HR_REQUIRE(entry != nullptr, ErrorCode::kNoDevice, "cuda: ", kLibrary, " has no entry headrace_cuda_module");
  const CudaModule* module = entry();
  HR_REQUIRE(module->version == kCudaModuleVersion, ErrorCode::kNoDevice, "cuda: ", kLibrary, " is of version ",
             module->version, ", expected ", kCudaModuleVersion);
  return module;
}

}  // namespace

const CudaModule& cuda_module() {
  static const CudaModule* module = open_module();
  return *module;
}

}  // namespace headrace
