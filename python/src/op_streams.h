// Streams of other libraries, such as torch's current stream, with what headrace's kernels need beside them.
#pragma once
#include <memory>
#include <mutex>

#include "headrace/core/device_runtime.h"

namespace headrace::python {

// Work is queued by whoever holds the mutex: an op of several kernels uses the runtime's scratch memory until its last.
struct CallerStream {
  std::unique_ptr<DeviceRuntime> runtime;
  std::mutex mutex;
};

// Returns the entry of a cudaStream_t, which the first call makes: 320 MiB of the device, also while the stream
// captures. Entries live as long as the process. Thread-safe. Error kNoDevice without the CUDA library; kOutOfMemory.
CallerStream& caller_stream(int32_t device, void* stream);

// Returns true if the cudaStream_t captures now.
bool is_capturing(void* stream);

}  // namespace headrace::python
