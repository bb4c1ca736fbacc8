// Memory and streams of devices. The CPU's runtime is built in; a CUDA module brings its own.
#pragma once
#include <cstddef>
#include <future>
#include <memory>

#include "headrace/core/tensor.h"

namespace headrace {

// A captured graph: work recorded once that replays with one call, on the same addresses.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void launch() = 0;  // queues it behind earlier work; does not wait
};

// An event in the order of a device's work. Not thread-safe.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual void set() = 0;   // records it behind the work queued so far
  virtual void wait() = 0;  // waits for the work before it, not for later work; error kCuda
  // Returns the seconds between two events of make_timed_event() of one runtime, both waited for.
  virtual double seconds_since(const DeviceEvent& earlier) const;
};

// Allocates and copies on one device, and has its stream: all work of a runtime is queued in one order, and released
// memory may be allocated again before the device is done with it. Everything made with a runtime (tensors, events,
// graphs, shared memory) must be destroyed before it.
//
// The CPU's runtime is thread-safe and is never destroyed. Any other runtime, all that was made with it, and the ops on
// its stream are used by one thread at a time: the stream may hold deferred work or an open capture. Runtimes of one
// device share no memory and do not wait for each other: each may have its own thread, which may create and destroy it
// while others run.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual Device device() const = 0;
  // Allocates `bytes` bytes, aligned to 64, contents unspecified. Error kOutOfMemory. On a CPU, allocations from 4 MiB
  // on request huge pages.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory, size_t bytes) noexcept = 0;
  // Zeroes memory from allocate(). On a CPU, from 8 MiB on it takes neither time nor memory until the memory is
  // touched.
  virtual void fill_zero(void* memory, size_t bytes) = 0;
  virtual void copy_to_device(void* to, const void* from_host, size_t bytes) = 0;
  virtual void copy_to_host(void* to_host, const void* from, size_t bytes) = 0;
  virtual void copy_on_device(void* to, const void* from, size_t bytes) = 0;  // `to` may be from allocate_shared()
  // Copies `rows` rows of `bytes` bytes, which begin `stride` bytes apart on both sides.
  virtual void copy_rows_on_device(void* to, const void* from, size_t bytes, size_t stride, size_t rows);
  virtual void synchronize() = 0;
  virtual std::unique_ptr<DeviceEvent> make_event() = 0;
  // Makes an event that notes the time when the device comes to it; for benchmarks. Error kUnsupported on a device
  // without such events.
  virtual std::unique_ptr<DeviceEvent> make_timed_event();

  // Initialises the GEMM library on a thread, so that the first large GEMM does not wait for it; an error appears with
  // that GEMM. The future's destructor waits for the thread. It must run before this runtime is destroyed and before
  // main returns: libraries that start during process exit may crash. Invalid if nothing needs initialisation.
  virtual std::future<void> start_matmul_library() { return {}; }

  // The value of OpContext::stream for ops on this device; null on a CPU.
  virtual void* stream() { return nullptr; }
  // Between the two calls work is captured instead of run. Error kUnsupported on devices without graphs; kCuda if
  // something in between cannot be captured, and then no capture is left open.
  virtual void begin_capture();
  virtual std::unique_ptr<DeviceGraph> end_capture();

  // Allocates zeroed mapped pinned memory: host and device use one address, also while work runs, so the host can poll
  // it. Call release_shared only after all queued writes to it are done. Error kOutOfMemory.
  virtual void* allocate_shared(size_t bytes);
  virtual void release_shared(void* memory, size_t bytes) noexcept;
};

}  // namespace headrace
