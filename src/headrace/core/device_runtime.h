// Where memory lives and who allocates it. The CPU's runtime is built in; a CUDA module brings its own.
#pragma once
#include <cstddef>
#include <future>
#include <memory>

#include "headrace/core/device.h"

namespace headrace {

// Work that was recorded once and runs again with one call, on the addresses that it was recorded with.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void launch() = 0;  // after the work that is queued already; does not wait
};

// A place in the order of a device's work. Not thread-safe.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual void set() = 0;   // behind the work that is queued already
  virtual void wait() = 0;  // until the work before it is done, whatever is queued behind; error kCuda
};

// Allocates and copies on one device. Lives at least as long as every Tensor made with it. All work is queued in one
// order: memory that was released may be handed out again before the device is done with it. The CPU's is thread-safe.
// Of any other, one thread at a time calls it and runs ops on its stream, whoever they are for: what waits in a stream
// and what is being recorded belong to whoever comes next.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual Device device() const = 0;
  // `bytes` of memory aligned to 64 bytes, contents unspecified; throws Error kOutOfMemory.
  // Allocations of 4 MiB and more are asked for as huge pages on a CPU.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory, size_t bytes) noexcept = 0;
  // Of memory from allocate(). From 64 MiB on it takes no time and no memory on a CPU until it is touched.
  virtual void fill_zero(void* memory, size_t bytes) = 0;
  virtual void copy_to_device(void* to, const void* from_host, size_t bytes) = 0;
  virtual void copy_to_host(void* to_host, const void* from, size_t bytes) = 0;
  virtual void copy_on_device(void* to, const void* from, size_t bytes) = 0;  // or to memory of allocate_shared()
  virtual void synchronize() = 0;
  virtual std::unique_ptr<DeviceEvent> make_event() = 0;

  // Starts the matrix library on a thread, so that the first large product does not wait for it; an error comes with
  // that product. The future's destructor waits for the thread. It has to run before this runtime goes and before main
  // returns: libraries that start while the process ends may crash. Invalid where nothing needs a start.
  virtual std::future<void> start_matmul_library() { return {}; }

  // What OpContext::stream must be for ops that run here; null on a CPU.
  virtual void* stream() { return nullptr; }
  // Between the two calls work is recorded instead of run. Error kUnsupported where graphs mean nothing; kCuda when
  // something in between cannot be recorded, and then nothing is left half-recorded.
  virtual void begin_capture();
  virtual std::unique_ptr<DeviceGraph> end_capture();

  // Zeros that the host and the device both read and write, at one address, while work runs: what the host polls.
  // Given back with release_shared when no queued work writes to it any more. Error kOutOfMemory.
  virtual void* allocate_shared(size_t bytes);
  virtual void release_shared(void* memory, size_t bytes) noexcept;
};

}  // namespace headrace
