// What a device that cannot be used says, and what a kernel that faults leaves behind. A fault lasts for the rest of
// the process, so this is a program of its own and its last test is the one that faults.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda/runtime/memory_left.h"
#include "headrace/ops/cuda/runtime/no_device_reason.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/device_registry.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/refusal.h"

namespace headrace {
namespace {

std::optional<ErrorCode> code_of(const std::function<void()>& call) { return testing_support::refusal_of(call).code; }

TEST(CudaFaults, NoDeviceIsOneSentenceThatSaysWhy) {
  EXPECT_EQ(cuda::no_device_reason(0, 13000, "insufficient"), "no NVIDIA driver is installed");
  EXPECT_EQ(cuda::no_device_reason(12040, 13000, "insufficient"),
            "the NVIDIA driver is too old: it runs CUDA 12.4, expected 13.0 or newer");
  EXPECT_EQ(cuda::no_device_reason(13010, 13000, "no CUDA-capable device is detected"),
            "no device can be used: no CUDA-capable device is detected");
}

TEST(CudaFaults, AnArchitectureThatIsNotBuiltIsNamedBesideThoseThatAre) {
  EXPECT_EQ(cuda::not_built_reason(1, "NVIDIA T4", 75, "sm_80, sm_90a"),
            "device 1 (NVIDIA T4) is sm_75; built are: sm_80, sm_90a");
}

TEST(CudaFaults, LackOfMemorySaysWhatIsLeftOfTheDeviceOrOfTheHost) {
  EXPECT_EQ(cuda::said_of({.available = 7, .total = 9}), "; 7 bytes of 9 bytes are free");
  EXPECT_EQ(cuda::said_of({.available = 0, .total = 9}), "; 0 bytes of 9 bytes are free");
  EXPECT_EQ(cuda::said_of({}), "");
  EXPECT_EQ(cuda::could_not_pin(64, 7), "cuda: could not pin 64 bytes of the host's memory; 7 bytes are available");
  EXPECT_EQ(cuda::could_not_pin(64, std::nullopt), "cuda: could not pin 64 bytes of the host's memory");
}

TEST(CudaFaults, WithoutADeviceItIsRefusedByName) {
  if (testing_support::mirrored_cuda_ops() != nullptr) {
    EXPECT_EQ(code_of([] { open_device("cuda:63"); }), ErrorCode::kNoDevice);
  } else {
    EXPECT_EQ(code_of([] { open_device("cuda"); }), ErrorCode::kNoDevice);
    EXPECT_EQ(open_device("auto")->device().type, DeviceType::kCPU);
  }
}

TEST(CudaFaults, MoreMemoryThanThereIsNamesWhatThereIsAndTheDeviceWorksOn) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& device = testing_support::gpu();
  const auto refused = testing_support::refusal_of([&device] { device.allocate(size_t{1} << 50); });  // a pebibyte
  EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
  EXPECT_NE(refused.sentence.find("could not allocate 1.1 PB; "), std::string::npos) << refused.sentence;
  EXPECT_TRUE(refused.sentence.ends_with(" GB are free")) << refused.sentence;
  EXPECT_EQ(code_of([&device] { Tensor::zeros(DType::kF32, {100}, device), device.synchronize(); }), std::nullopt);
}

// An address that is no device memory: the next wait says so, and so does everything after it, also in other runtimes
// of the device, which end without a crash.
TEST(CudaFaults, AFaultInAKernelIsTheErrorOfEveryCallBehindIt) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& device = testing_support::gpu();
  std::unique_ptr<DeviceRuntime> other = cuda_module().make_runtime(0);
  auto memory = std::make_unique<Tensor>(Tensor::zeros(DType::kF32, {100}, *other));
  const TensorView nowhere(reinterpret_cast<void*>(0x1000), DType::kF32, {1, 64}, device.device());
  const auto add = [&] {
    cuda_module().ops("cuda").pointwise({.x = nowhere, .y = nowhere, .out = nowhere}, {.stream = device.stream()});
    device.synchronize();
  };
  EXPECT_EQ(code_of(add), ErrorCode::kCuda);
  EXPECT_EQ(code_of(add), ErrorCode::kCuda);
  EXPECT_EQ(code_of([&device] { device.allocate(size_t{3} << 20); }), ErrorCode::kCuda);  // and not a lack of memory
  EXPECT_EQ(code_of([&device] { device.allocate_shared(64); }), ErrorCode::kCuda);
  EXPECT_EQ(code_of([&device] { device.synchronize(); }), ErrorCode::kCuda);
  const TensorView square(reinterpret_cast<void*>(0x1000), DType::kF32, {64, 64}, device.device());
  const auto product = [&] {  // cuBLASLt's, whose status does not say that it is the device
    cuda_module().ops("cuda").linear({.x = square, .weight = square, .y = square}, {.stream = device.stream()});
  };
  EXPECT_EQ(code_of(product), ErrorCode::kCuda);
  EXPECT_EQ(code_of([&other] { other->synchronize(); }), ErrorCode::kCuda);
  EXPECT_EQ(code_of([&other] { std::async(std::launch::async, [&other] { other->synchronize(); }).get(); }),
            ErrorCode::kCuda);  // on a thread that has met no error
  memory.reset(), other.reset();
  EXPECT_TRUE(code_of([] { cuda_module().make_runtime(0); }));
}

}  // namespace
}  // namespace headrace
