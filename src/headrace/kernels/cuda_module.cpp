#include "headrace/kernels/cuda_module.h"

#include <dlfcn.h>

namespace headrace {
namespace {

constexpr const char* kLibrary = "libheadrace_cuda.so";

const CudaModule* open_module() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // stays open: its runtimes live until the program ends
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
