#include "thread_group.h"

#include <time.h>

#include <charconv>
#include <filesystem>

namespace headrace::app {
namespace {

// The clock of another thread's CPU time, as the kernel numbers it: pthread_getcpuclockid needs the thread's handle.
clockid_t cpu_clock_of(pid_t thread) {
  constexpr unsigned kOfThread = 4, kScheduler = 2;
  return static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | kOfThread | kScheduler);
}

}  // namespace

std::vector<pid_t> ThreadGroup::running() {
  std::vector<pid_t> ids;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", none)) {
    const std::string name = entry.path().filename();
    pid_t id = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), id).ec == std::errc()) ids.push_back(id);
  }
  std::ranges::sort(ids);
  return ids;
}

double ThreadGroup::cpu_s() const {
  double seconds = 0;
  for (const pid_t id : ids_) {
    timespec time{};
    if (clock_gettime(cpu_clock_of(id), &time) == 0)
      seconds += static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  return seconds;
}

}  // namespace headrace::app
