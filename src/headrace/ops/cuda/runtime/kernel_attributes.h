// What one device has been told and asked about kernels. Names no CUDA, so that its rules are tested without a device.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace headrace::cuda {

// Kernels by the address of their host function. A device's answers and settings are its own: another device of the
// process has a KernelAttributes of its own. Thread-safe.
class KernelAttributes {
 public:
  // Calls tell() unless it has been called for this kernel with as many bytes or more. Where it throws, nothing is
  // kept.
  template <class Tell>
  void allow_shared(const void* kernel, size_t bytes, const Tell& tell) {
    const std::lock_guard lock(mutex_);
    const auto found = shared_bytes_.find(kernel);
    if (found != shared_bytes_.end() && bytes <= found->second) return;
    tell();
    shared_bytes_[kernel] = bytes;
  }
  // What ask() answered the first time, for a kernel that is always launched alike.
  template <class Ask>
  int resident_blocks(const void* kernel, const Ask& ask) {
    const std::lock_guard lock(mutex_);
    const auto found = resident_blocks_.find(kernel);
    return found != resident_blocks_.end() ? found->second : resident_blocks_[kernel] = ask();
  }

  // The last products that were asked for. Behind chains and those that are held in registers kernels without dynamic
  // shared memory agree about a multiprocessor's memory (SharedShare); elsewhere the driver decides, which is faster
  // there. What stands before the first products of a step, and steps that alternate on a device, follow others'
  // products: that is a matter of microseconds alone. Measured: docs/performance/models.md, "How a multiprocessor's
  // memory is divided".
  enum class Products : uint8_t { kOthers, kSequenceOrGemv };
  void note_products(Products last) { products_ = last; }
  Products products() const { return products_; }

 private:
  std::atomic<Products> products_ = Products::kOthers;
  std::mutex mutex_;
  std::unordered_map<const void*, size_t> shared_bytes_;
  std::unordered_map<const void*, int> resident_blocks_;
};

}  // namespace headrace::cuda
