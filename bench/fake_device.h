// A device without a GPU: benches and tests run with it what the host does for a device. No device name opens it.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda/runtime/caching_allocator.h"
#include "headrace/ops/op_set.h"

namespace headrace::bench {

// Calls itself cuda:0. Its memory is the host's, and its kernels are functions of the host.
// - Copies, ops and graphs are queued. They run, in order, when the host waits: in DeviceEvent::wait, synchronize and
//   copy_to_host. So the host reads no result that it did not wait for. A kernel's error is thrown there.
// - A capture records copies and ops, and a graph queues them. Ops read spans, state slots and snapshots where the
//   device has them when they run, as kernels do. Graphs share memory as they do on a GPU (CachingAllocator).
// - Fresh memory holds ones in all bits: NaN, or ids of -1.
// Error kCuda for what a capture cannot record: waits, and copies from or to the host. Outlives its graphs and events.
// Not thread-safe.
class FakeDevice final : public DeviceRuntime {
 public:
  // `kernels` run on the host, such as those of cpu::select_kernel_set(); not owned.
  explicit FakeDevice(const OpSet& kernels);
  // Ops for contexts with this device's stream. Each queues the kernel of its name. None is fused, and those that only
  // devices have (op_set.h) are missing: a model with experts does not run.
  const OpSet& ops() const { return ops_; }
  // Queues or, in a capture, records `work`.
  void run(std::function<void()> work);
  const OpSet& kernels() const { return kernels_; }

  Device device() const override { return {DeviceType::kCUDA, 0}; }
  void* stream() override { return this; }
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) noexcept override;
  void fill_zero(void* memory, size_t bytes) override;
  void copy_to_device(void* to, const void* from_host, size_t bytes) override;
  void copy_to_host(void* to_host, const void* from, size_t bytes) override;
  void copy_on_device(void* to, const void* from, size_t bytes) override;
  void synchronize() override { run_until(num_queued_); }
  std::unique_ptr<DeviceEvent> make_event() override;
  std::unique_ptr<DeviceEvent> make_timed_event() override;
  void begin_capture() override;
  std::unique_ptr<DeviceGraph> end_capture() override;
  void* allocate_shared(size_t bytes) override;
  void release_shared(void* memory, size_t bytes) noexcept override;

 private:
  using Work = std::vector<std::function<void()>>;
  class Event;
  class Graph;
  void require_no_capture(const char* what) const;
  void run_until(uint64_t end);  // of the work queued since construction

  const OpSet& kernels_;
  const OpSet ops_;
  std::vector<Tensor> memory_;     // on the CPU: all that was allocated
  cuda::CachingAllocator blocks_;  // what of it is free
  std::deque<std::function<void()>> queue_;
  uint64_t num_queued_ = 0, num_done_ = 0;
  Work recorded_;
};

}  // namespace headrace::bench
