// Kernel attributes that one device was given or queried for. Includes no CUDA header, so that tests need no device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace headrace::cuda {

// Identifies kernels by the address of their host function. Attributes are per device: each device of the process has
// its own KernelAttributes, which all its runtimes share, because a runtime that allowed a kernel fewer bytes would
// undo what another had allowed. Thread-safe.
class KernelAttributes {
 public:
  // Calls tell() unless an earlier call allowed this kernel as many bytes or more. If tell() throws, nothing is
  // recorded.
  template <class Tell>
  void allow_shared(const void* kernel, size_t bytes, const Tell& tell) {
    const std::lock_guard lock(mutex_);
    const auto found = shared_bytes_.find(kernel);
    if (found != shared_bytes_.end() && bytes <= found->second) return;
    tell();
    shared_bytes_[kernel] = bytes;
  }
  // Returns the first answer of ask() for this kernel. Every launch of the kernel must have the same configuration.
  template <class Ask>
  int resident_blocks(const void* kernel, const Ask& ask) {
    const std::lock_guard lock(mutex_);
    const auto found = resident_blocks_.find(kernel);
    return found != resident_blocks_.end() ? found->second : resident_blocks_[kernel] = ask();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, size_t> shared_bytes_;
  std::unordered_map<const void*, int> resident_blocks_;
};

}  // namespace headrace::cuda
