// A stream of a CUDA device, and memory in its order.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda/runtime/caching_allocator.h"
#include "headrace/ops/cuda/runtime/shared_device.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

// Owns a stream and memory. There is one stream, so released memory is reusable at once: later work runs later. Freed
// blocks are cached by size and returned to the driver only when memory runs out, and at the end. Blocks handed out
// during a capture belong to graphs as long as any exist (CachingAllocator). Host data is staged through a pinned ring
// buffer. Every call makes the device current for the calling thread.
//
// Runtimes of one device may run in threads of their own. They share SharedDevice alone. No call waits for more than
// its own stream, except those that return memory to the driver, which wait for the whole device. Nothing uses the
// legacy default stream, which would wait for all of them.
class Runtime final : public DeviceRuntime {
 public:
  // Throws kNoDevice (no driver or an old one, no such device, or an architecture that is not built) or kOutOfMemory.
  // `shared` is not owned.
  // `callers`: a stream of the caller's, which outlives the runtime, instead of one of its own.
  Runtime(int32_t index, SharedDevice& shared, std::optional<cudaStream_t> callers = std::nullopt);
  ~Runtime() override;

  Device device() const override { return {DeviceType::kCUDA, stream_.device}; }
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) noexcept override;
  void fill_zero(void* memory, size_t bytes) override;
  void copy_to_device(void* to, const void* from_host, size_t bytes) override;
  void copy_to_host(void* to_host, const void* from, size_t bytes) override;
  void copy_on_device(void* to, const void* from, size_t bytes) override;
  void copy_rows_on_device(void* to, const void* from, size_t bytes, size_t stride, size_t rows) override;
  void synchronize() override;
  std::unique_ptr<DeviceEvent> make_event() override;
  std::unique_ptr<DeviceEvent> make_timed_event() override;
  void* allocate_shared(size_t bytes) override;
  void release_shared(void* memory, size_t bytes) noexcept override;
  std::future<void> start_matmul_library() override;
  void* stream() override { return &stream_; }
  void begin_capture() override;
  std::unique_ptr<DeviceGraph> end_capture() override;
  void graph_gone() noexcept;  // call when a graph of end_capture() is destroyed

 private:
  struct Filled {
    void* memory;
    size_t bytes;
    int value;  // of each byte
  };
  explicit Runtime(SharedDevice& shared);  // has nothing
  void start(int32_t index);               // allocates what lies on the device
  void fill_at_once(const std::vector<Filled>& blocks);
  GridBarrier taken_grid_barrier();
  void free_cached() noexcept;
  cudaGraphExec_t ended_capture();
  char* stage(size_t bytes);
  // Makes the device current and returns the stream's handle.
  cudaStream_t queue() const {
    make_current(stream_);
    return stream_.handle;
  }

  SharedDevice& shared_;
  Stream stream_;
  enum class StreamIs : uint8_t { kOwn, kCallers } stream_is_ = StreamIs::kOwn;
  std::unique_ptr<CublasLtPlans> blas_;  // stream_ refers to these
  std::mutex mutex_;                     // guards the members below
  CachingAllocator blocks_;              // by rounded size
  char* ring_ = nullptr;                 // pinned ring buffer
  size_t ring_at_ = 0;
};

}  // namespace headrace::cuda
