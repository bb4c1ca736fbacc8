#include "headrace/chat/render_meter.h"

#include <algorithm>
#include <ctime>

#include "headrace/core/error.h"

namespace headrace::jinja {
namespace {

constexpr int64_t kStepsBetweenChecks = 2000;  // some 50 microseconds

// The time of this thread alone: other work on the machine does not end a rendering.
std::chrono::nanoseconds thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

RenderMeter::RenderMeter(const Limits& limits) : limits_(limits), start_(thread_time()) {}

void RenderMeter::check() {
  HR_REQUIRE(steps_ <= limits_.steps, ErrorCode::kInvalidArgument, "it takes more than ", limits_.steps, " steps");
  HR_REQUIRE(thread_time() - start_ <= limits_.time, ErrorCode::kInvalidArgument, "it takes more than ",
             limits_.time.count(), " ms");
  next_check_ = std::min(steps_ + kStepsBetweenChecks, limits_.steps + 1);
}

void RenderMeter::hold(size_t bytes) {
  const int64_t left = limits_.memory_bytes - held_;
  HR_REQUIRE(left >= 0 && bytes <= static_cast<size_t>(left), ErrorCode::kInvalidArgument, "it takes more than ",
             limits_.memory_bytes, " bytes of memory");
  held_ += static_cast<int64_t>(bytes);
}

}  // namespace headrace::jinja
