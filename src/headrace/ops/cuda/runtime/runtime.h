// Memory and order of work on one CUDA device.
#pragma once
#include <memory>
#include <mutex>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda/runtime/caching_allocator.h"
#include "headrace/ops/cuda/runtime/kernel_attributes.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

// One stream, so released memory is reused at once: what is queued later runs later. Freed blocks are kept by size and
// given back to the driver only when it runs out. Blocks that were handed out during a capture belong to graphs as long
// as there are any (CachingAllocator). Host memory is staged through a pinned ring. Whatever is asked of it makes its
// device the calling thread's current one.
class Runtime final : public DeviceRuntime {
 public:
  // Error kNoDevice: no driver or an old one, no such device, or an architecture that is not built; kOutOfMemory.
  explicit Runtime(int32_t index);
  ~Runtime() override;

  Device device() const override { return {DeviceType::kCUDA, index_}; }
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) noexcept override;
  void fill_zero(void* memory, size_t bytes) override;
  void copy_to_device(void* to, const void* from_host, size_t bytes) override;
  void copy_to_host(void* to_host, const void* from, size_t bytes) override;
  void copy_on_device(void* to, const void* from, size_t bytes) override;
  void synchronize() override;
  std::unique_ptr<DeviceEvent> make_event() override;
  void* allocate_shared(size_t bytes) override;
  void release_shared(void* memory, size_t bytes) noexcept override;
  std::future<void> start_matmul_library() override;
  void* stream() override { return &stream_; }  // ops may leave products waiting in it: queue() has none
  void begin_capture() override;
  std::unique_ptr<DeviceGraph> end_capture() override;
  void graph_gone() noexcept;  // one that end_capture() has made

 private:
  void start();  // what lies on the device
  void free_cached() noexcept;
  cudaGraphExec_t ended_capture();
  char* stage(size_t bytes);
  // The stream's handle behind all work that was asked for. Makes the device current, as what may wait needs it.
  cudaStream_t queue() const {
    make_current(stream_);
    launch_waiting(stream_);
    return stream_.handle;
  }

  int32_t index_;
  Stream stream_;
  std::unique_ptr<CublasLtPlans> blas_;  // what the stream refers to
  std::unique_ptr<GemmSequence> chain_;
  KernelAttributes notes_;
  std::mutex mutex_;          // of what follows
  CachingAllocator blocks_;   // by rounded size
  void* exchange_ = nullptr;  // of the stream's chains
  char* ring_ = nullptr;      // pinned
  size_t ring_at_ = 0;
};

}  // namespace headrace::cuda
