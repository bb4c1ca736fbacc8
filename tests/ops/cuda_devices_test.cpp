// Several sets, threads and devices in one process. What needs two devices is skipped where there is one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <limits>
#include <thread>

#include "headrace/core/device_runtime.h"
#include "headrace/core/tensor.h"
#include "headrace/ops/cuda_module.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

bool has_devices(size_t count) { return mirrored_cuda_ops() != nullptr && cuda_module().devices().size() >= count; }

// Runs `work` on a thread of its own and throws here what it throws there.
void on_another_thread(const std::function<void()>& work) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

Tensor copied(DeviceRuntime& device, const Tensor& host) {
  Tensor there(host.dtype(), host.shape(), device);
  device.copy_to_device(there.data(), host.data(), static_cast<size_t>(host.bytes()));
  return there;
}

// A product in memory that the device hands out now. 16 rows of 2048 take 66 KB of shared memory, which a kernel has to
// be allowed on each device; 200 rows take the kernel for many.
Tensor product(DeviceRuntime& device, const Tensor& x, const Tensor& weight, std::string_view set = "cuda",
               Determinism determinism = Determinism::kStrict) {
  const Tensor x_there = copied(device, x), weight_there = copied(device, weight);
  const Tensor y(DType::kBF16, {x.dim(0), weight.dim(0)}, device);
  Tensor host(DType::kBF16, y.shape());
  cuda_module().ops(set).linear({.x = x_there, .weight = weight_there, .y = y},
                                {.determinism = determinism, .stream = device.stream()});
  device.copy_to_host(host.data(), y.data(), static_cast<size_t>(y.bytes()));
  return host;
}

// first_device_left: whoever made a runtime last had the device that all threads' allocations and launches went to.
TEST(CudaDevices, EachWorksWhicheverWasOpenedLastAndOnAnyThread) {
  if (!has_devices(2)) GTEST_SKIP() << "fewer than two CUDA devices";
  DeviceRuntime &first = gpu(), &second = testing_support::gpu(1);
  Random random(31);
  const Tensor weight = random_tensor(random, DType::kBF16, {96, 2048}, 0.03);
  for (const int64_t rows : {1, 16, 200}) {
    for (const char* set : {"cuda", "cuda_baseline"}) {
      const Tensor x = random_tensor(random, DType::kBF16, {rows, 2048});
      const Tensor want = product(first, x, weight, set);
      EXPECT_TRUE(bit_equal(product(second, x, weight, set), want)) << set << ", " << rows << " rows";
      on_another_thread([&] {
        EXPECT_TRUE(bit_equal(product(second, x, weight, set), want)) << set << ", " << rows << " rows";
        EXPECT_TRUE(bit_equal(product(first, x, weight, set), want)) << set << ", " << rows << " rows";
      });
    }
  }
}

TEST(CudaDevices, MarksAndSharedMemoryBelongToTheRuntimesDevice) {
  if (!has_devices(2)) GTEST_SKIP() << "fewer than two CUDA devices";
  for (const int32_t index : {1, 0, 1}) {
    DeviceRuntime& device = gpu(index);
    on_another_thread([&] {
      const auto mark = device.make_event();
      void* const shared = device.allocate_shared(64);
      const Tensor zeros = Tensor::zeros(DType::kF32, {16}, device);
      device.copy_on_device(shared, zeros.data(), 64);
      mark->set();
      mark->wait();
      device.release_shared(shared, 64);
    });
  }
}

// A runtime with all that it can have: scratch, free blocks, a graph with memory of its own, and cuBLASLt.
void open_use_and_close(const Tensor& x, const Tensor& weight) {
  const std::unique_ptr<DeviceRuntime> device = cuda_module().make_runtime(0);
  product(*device, x, weight, "cuda", Determinism::kFast);
  constexpr size_t kBytes = size_t{64} << 20;
  device->begin_capture();
  void* const memory = device->allocate(kBytes);
  device->fill_zero(memory, kBytes);
  const std::unique_ptr<DeviceGraph> graph = device->end_capture();
  device->release(memory, kBytes);
  graph->launch();
  device->synchronize();
}

TEST(CudaDevices, RuntimesComeAndGoWithoutALeak) {
  if (!has_devices(1)) GTEST_SKIP() << "no CUDA device";
  constexpr int kTimes = 20;
  constexpr int64_t kMost = int64_t{4} << 20;  // the smallest block of each, 20 times, is larger: 10 MiB
  Random random(35);
  const Tensor x = random_tensor(random, DType::kBF16, {200, 2048});
  const Tensor weight = random_tensor(random, DType::kBF16, {1040, 2048}, 0.03);
  open_use_and_close(x, weight);  // loads the kernels, which stay
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int attempt = 0; attempt < 3 && least > kMost; ++attempt) {  // other processes may allocate meanwhile
    const int64_t before = cuda_module().free_bytes(0);
    for (int i = 0; i < kTimes; ++i) open_use_and_close(x, weight);
    least = std::min(least, std::abs(before - cuda_module().free_bytes(0)));
  }
  EXPECT_LE(least, kMost);
}

// One runtime records while another, on a thread of its own, starts, allocates, waits and ends.
TEST(CudaDevices, ACaptureAndOtherRuntimesDoNotDisturbEachOther) {
  if (!has_devices(1)) GTEST_SKIP() << "no CUDA device";
  Random random(36);
  const Tensor x = random_tensor(random, DType::kBF16, {16, 2048});
  const Tensor weight = random_tensor(random, DType::kBF16, {96, 2048}, 0.03);
  const std::unique_ptr<DeviceRuntime> device = cuda_module().make_runtime(0);
  const Tensor want = product(*device, x, weight);
  const Tensor x_there = copied(*device, x), weight_there = copied(*device, weight);
  const Tensor y = Tensor::zeros(DType::kBF16, {16, 96}, *device);
  device->begin_capture();
  on_another_thread([&] { open_use_and_close(x, weight); });
  cuda_module().ops("cuda").linear({.x = x_there, .weight = weight_there, .y = y},
                                   {.determinism = Determinism::kStrict, .stream = device->stream()});
  on_another_thread([&] { EXPECT_TRUE(bit_equal(product(gpu(), x, weight), want)); });
  const std::unique_ptr<DeviceGraph> graph = device->end_capture();
  graph->launch();
  Tensor got(DType::kBF16, y.shape());
  device->copy_to_host(got.data(), y.data(), static_cast<size_t>(y.bytes()));
  EXPECT_TRUE(bit_equal(got, want));
}

// The baseline takes none of Hopper's kernels for products; in strict mode nobody can tell.
TEST(CudaDevices, TheBaselinesStrictProductsHaveTheBitsOfTheNewestKernels) {
  if (!has_devices(1)) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& device = gpu();
  Random random(32);
  const Tensor weight = random_tensor(random, DType::kBF16, {1040, 2048}, 0.03);
  for (const int64_t rows : {1, 8, 16, 33, 64, 200}) {
    const Tensor x = random_tensor(random, DType::kBF16, {rows, 2048});
    EXPECT_TRUE(bit_equal(product(device, x, weight, "cuda_baseline"), product(device, x, weight))) << rows << " rows";
  }
}

// The library starts on a thread of its own; a product that comes at the same time waits for it.
TEST(CudaDevices, AProductWaitsForTheMatrixLibrary) {
  if (!has_devices(1)) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& device = gpu();
  Random random(34);
  const Tensor x = random_tensor(random, DType::kBF16, {200, 2048});
  const Tensor weight = random_tensor(random, DType::kBF16, {1040, 2048}, 0.03);
  std::future<void> first = device.start_matmul_library(), second = device.start_matmul_library();
  const Tensor beside = product(device, x, weight, "cuda", Determinism::kFast);
  first.get(), second.get();
  EXPECT_TRUE(bit_equal(beside, product(device, x, weight, "cuda", Determinism::kFast)));
}

}  // namespace
}  // namespace headrace::testing_support
