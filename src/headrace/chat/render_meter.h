// Counts what one rendering takes, and ends it when it takes too much.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace headrace::jinja {

// Not thread-safe: one meter serves one rendering.
class RenderMeter {
 public:
  struct Limits {
    int64_t steps, memory_bytes;
    std::chrono::milliseconds time;  // of the thread's CPU
  };
  explicit RenderMeter(const Limits& limits);

  // Errors of all three: kInvalidArgument, naming the limit.
  void step(int64_t count = 1) {
    steps_ += count;
    if (steps_ >= next_check_) check();
  }
  void scan(size_t bytes) { step(1 + static_cast<int64_t>(bytes / 1024)); }  // reading or writing so many bytes
  void hold(size_t bytes);                                                   // before they are allocated
  void release(size_t bytes) noexcept { held_ -= static_cast<int64_t>(bytes); }

 private:
  void check();

  Limits limits_;
  int64_t steps_ = 0, next_check_ = 0, held_ = 0;
  std::chrono::nanoseconds start_;
};

// Memory that a value holds as long as it lives. A null meter: memory of the template itself, which is not counted.
class HeldMemory {
 public:
  HeldMemory() = default;
  HeldMemory(RenderMeter* meter, size_t bytes) : meter_(meter), bytes_(bytes) {
    if (meter_ != nullptr) meter_->hold(bytes);
  }
  HeldMemory(HeldMemory&& other) noexcept
      : meter_(std::exchange(other.meter_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  HeldMemory& operator=(HeldMemory&& other) noexcept {
    std::swap(meter_, other.meter_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HeldMemory() {
    if (meter_ != nullptr) meter_->release(bytes_);
  }
  void grow_to(size_t bytes) {
    if (bytes <= bytes_) return;
    if (meter_ != nullptr) meter_->hold(bytes - bytes_);
    bytes_ = bytes;
  }
  size_t bytes() const { return bytes_; }

 private:
  RenderMeter* meter_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace headrace::jinja
