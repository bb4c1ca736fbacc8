// A side library whose one device is the CPU under another name and fails for good in the midst of a text, as a GPU
// does whose kernel faulted, or, with FULL_DEVICE in the environment, as a GPU that others fill, or, with
// HANGING_DEVICE, as one whose kernel does not end. failing_device_test.sh and the exam put it beside the program.
#include <unistd.h>

#include <cstdlib>

#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "support/host_memory.h"

namespace headrace {
namespace {

constexpr int kGoodSteps = 12;

// What follows the first failure fails, too.
class FailingRuntime final : public testing_support::HostMemory {
 public:
  Device device() const override { return {DeviceType::kCUDA, 0}; }
  void* allocate(size_t bytes) override { return require_works(), HostMemory::allocate(bytes); }
  void copy_to_device(void* to, const void* from, size_t bytes) override {
    require_works();
    HostMemory::copy_to_device(to, from, bytes);
  }
  void synchronize() override { require_works(); }
  std::unique_ptr<DeviceEvent> make_event() override { return std::make_unique<Mark>(*this); }

 private:
  // A step's tokens are waited for here.
  struct Mark final : DeviceEvent {
    explicit Mark(FailingRuntime& runtime) : runtime_(runtime) {}
    void set() override {}
    void wait() override {
      const bool has_failed = ++runtime_.waits_ > kGoodSteps;
      while (has_failed && std::getenv("HANGING_DEVICE") != nullptr) pause();
      runtime_.require_works();
    }
    FailingRuntime& runtime_;  // not owned
  };
  void require_works() const {
    HR_REQUIRE(waits_ <= kGoodSteps, ErrorCode::kCuda,
               "cuda: waiting for the device failed: an illegal memory access was encountered");
  }

  int waits_ = 0;
};

std::unique_ptr<DeviceRuntime> make_runtime(int32_t) {
  HR_REQUIRE(std::getenv("FULL_DEVICE") == nullptr, ErrorCode::kOutOfMemory,
             "cuda: cudaSetDevice failed: out of memory");
  return std::make_unique<FailingRuntime>();
}

const OpSet& ops(std::string_view) { return cpu::select_kernel_set(); }

std::vector<CudaDevice> devices() {
  return {{.name = "a device that fails", .total_bytes = 1 << 30, .capability = 90}};
}
int64_t free_bytes(int32_t) { return 1 << 29; }
int32_t driver_cuda() { return 13000; }

constexpr CudaModule kModule = {.version = kCudaModuleVersion,
                                .make_runtime = make_runtime,
                                .ops = ops,
                                .devices = devices,
                                .free_bytes = free_bytes,
                                .driver_cuda = driver_cuda};

}  // namespace
}  // namespace headrace

extern "C" __attribute__((visibility("default"))) const headrace::CudaModule* headrace_cuda_module() {
  return &headrace::kModule;
}
