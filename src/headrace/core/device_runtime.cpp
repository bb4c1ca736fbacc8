#include "headrace/core/device_runtime.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "headrace/core/error.h"
#include "headrace/core/host_memory.h"
#include "headrace/core/human_bytes.h"

namespace headrace {
namespace {

constexpr size_t kAlignment = 64, kHugePage = size_t{2} << 20, kHugeThreshold = size_t{4} << 20,
                 kGiveBackThreshold = size_t{8} << 20;
constexpr int64_t kAskEvery = int64_t{64} << 20;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Returns the whole huge pages of memory from allocate() to the system, which provides zeros on the next touch. A pool
// for a long context then costs only the time and memory that requests use. False if the system refuses.
bool give_back(char* memory, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const size_t head = round_up(address, kHugePage) - address;
  const size_t whole = (bytes - head) / kHugePage * kHugePage;
  if (madvise(memory + head, whole, MADV_DONTNEED) != 0) return false;
  std::memset(memory, 0, head);
  std::memset(memory + head + whole, 0, bytes - head - whole);
  return true;
}

// CPU work is done when it is queued.
// Work on a CPU is done when its call returns.
class CpuMark final : public DeviceEvent {
 public:
  void set() override { at_ = std::chrono::steady_clock::now(); }
  void wait() override {}
  double seconds_since(const DeviceEvent& earlier) const override {
    return std::chrono::duration<double>(at_ - dynamic_cast<const CpuMark&>(earlier).at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

class CpuRuntime final : public DeviceRuntime {
 public:
  Device device() const override { return {}; }

  void* allocate(size_t bytes) override {
    require_available(bytes);
    const bool huge = bytes >= kHugeThreshold;
    const size_t alignment = huge ? kHugePage : kAlignment;
    void* memory = std::aligned_alloc(alignment, round_up(bytes == 0 ? 1 : bytes, alignment));
    HR_REQUIRE(memory != nullptr, ErrorCode::kOutOfMemory, "cpu: could not allocate ", human_bytes(bytes));
    if (huge) madvise(memory, round_up(bytes, kHugePage), MADV_HUGEPAGE);  // a hint: failure costs only speed
    held_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
    return memory;
  }
  void release(void* memory, size_t bytes) noexcept override {
    std::free(memory);
    const int64_t held =
        held_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed) - static_cast<int64_t>(bytes);
    if (held < asked_.load(std::memory_order_relaxed)) asked_.store(held, std::memory_order_relaxed);
  }
  void fill_zero(void* memory, size_t bytes) override {
    if (bytes >= kGiveBackThreshold && give_back(static_cast<char*>(memory), bytes)) return;
    std::memset(memory, 0, bytes);
  }
  void copy_to_device(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_to_host(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_on_device(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void synchronize() override {}
  std::unique_ptr<DeviceEvent> make_event() override { return std::make_unique<CpuMark>(); }
  std::unique_ptr<DeviceEvent> make_timed_event() override { return std::make_unique<CpuMark>(); }

 private:
  // Linux overcommits memory and kills a process that uses too much. Weights may be many small tensors, so available
  // memory is checked once per kAskEvery additional bytes.
  void require_available(size_t bytes) {
    const int64_t held = held_.load(std::memory_order_relaxed) + static_cast<int64_t>(bytes);
    if (held < asked_.load(std::memory_order_relaxed) + kAskEvery) return;
    const auto available = available_host_memory();
    HR_REQUIRE(!available || static_cast<int64_t>(bytes) + kAskEvery <= *available, ErrorCode::kOutOfMemory,
               "cpu: could not allocate ", human_bytes(bytes), "; ", human_bytes(available.value_or(0)),
               " are left, and ", human_bytes(kAskEvery), " stay free");
    asked_.store(held, std::memory_order_relaxed);
  }

  std::atomic<int64_t> held_ = 0, asked_ = 0;  // bytes held now, and at the last check
};

}  // namespace

double DeviceEvent::seconds_since(const DeviceEvent& /*earlier*/) const {
  throw Error(ErrorCode::kUnsupported, "this device's events have no time");
}

std::unique_ptr<DeviceEvent> DeviceRuntime::make_timed_event() {
  throw Error(ErrorCode::kUnsupported, str(to_string(device()), " has no events with a time"));
}

std::string to_string(Device device) {
  return device.type == DeviceType::kCPU ? std::string("cpu") : str("cuda:", device.index);
}

void DeviceRuntime::copy_rows_on_device(void* to, const void* from, size_t bytes, size_t stride, size_t rows) {
  for (size_t at = 0; at < rows * stride; at += stride) {
    copy_on_device(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, bytes);
  }
}

void* DeviceRuntime::allocate_shared(size_t bytes) {
  void* memory = allocate(bytes);
  fill_zero(memory, bytes);
  return memory;
}

void DeviceRuntime::release_shared(void* memory, size_t bytes) noexcept { release(memory, bytes); }

void DeviceRuntime::begin_capture() {
  throw Error(ErrorCode::kUnsupported, str(to_string(device()), ": work cannot be captured in a graph here"));
}

std::unique_ptr<DeviceGraph> DeviceRuntime::end_capture() {
  throw Error(ErrorCode::kUnsupported, str(to_string(device()), ": work cannot be captured in a graph here"));
}

DeviceRuntime& cpu_runtime() {
  static CpuRuntime runtime;
  return runtime;
}

}  // namespace headrace
