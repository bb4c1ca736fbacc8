// A device whose memory is the CPU's, for tests that count, limit or rename it.
#pragma once
#include "headrace/core/device_runtime.h"

namespace headrace::testing_support {

class HostMemory : public DeviceRuntime {
 public:
  Device device() const override { return cpu_runtime().device(); }
  void* allocate(size_t bytes) override { return cpu_runtime().allocate(bytes); }
  void release(void* memory, size_t bytes) noexcept override { cpu_runtime().release(memory, bytes); }
  void fill_zero(void* memory, size_t bytes) override { cpu_runtime().fill_zero(memory, bytes); }
  void copy_to_device(void* to, const void* from, size_t bytes) override {
    cpu_runtime().copy_to_device(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, size_t bytes) override { cpu_runtime().copy_to_host(to, from, bytes); }
  void copy_on_device(void* to, const void* from, size_t bytes) override {
    cpu_runtime().copy_on_device(to, from, bytes);
  }
  void synchronize() override {}
  std::unique_ptr<DeviceEvent> make_event() override { return cpu_runtime().make_event(); }
};

// Counts what is ever allocated.
class CountedMemory final : public HostMemory {
 public:
  void* allocate(size_t bytes) override {
    allocated += static_cast<int64_t>(bytes);
    return HostMemory::allocate(bytes);
  }
  int64_t allocated = 0;
};

}  // namespace headrace::testing_support
