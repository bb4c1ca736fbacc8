#include "headrace/kernels/cuda_module.h"

#include <dlfcn.h>

#include <array>

namespace headrace {
namespace {

constexpr const char* kLibrary = "libheadrace_cuda.so";
// Where a build and an installation have it, before any place that the environment names. glibc puts the directory of
// the program or library that this is part of in place of $ORIGIN; to another loader it would be a directory's name.
#ifdef __GLIBC__
constexpr std::array kPlaces = {"$ORIGIN/libheadrace_cuda.so", "$ORIGIN/../lib/libheadrace_cuda.so", kLibrary};
#else
constexpr std::array kPlaces = {kLibrary};
#endif

const CudaModule* open_module() {
  void* library = nullptr;  // stays open: its runtimes live until the program ends
  for (const char* place : kPlaces) {
    if (library == nullptr) library = dlopen(place, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    const char* reason = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread alone, in glibc and in musl
    throw Error(ErrorCode::kNoDevice,
                str("cuda: the CUDA part of headrace could not be loaded (script/build cuda makes it): ", reason));
  }
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
