#include "busy_cores.h"

#include <fmt/format.h>
#include <strings.h>
#include <sys/resource.h>

#include <algorithm>

#include "headrace/base/cgroup.h"
#include "headrace/base/parallel.h"

namespace headrace::app {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
}

// A container's quota may be a part of a core less than the threads.
double cores_of(int threads) {
  const double cores = std::min(threads, available_cores());
  return std::min(cores, cpu_quota().value_or(cores));
}

}  // namespace

bool threads_spin(std::string_view wait_policy, std::string_view spin_count) {
  return strcasecmp(std::string(wait_policy).c_str(), "passive") != 0 && spin_count.empty();
}

std::optional<std::string> busy_cores(const CoreTime& time) {
  constexpr double kLeast = 2, kShare = 0.75;
  if (time.cores <= 1 || time.wall_s < kLeast || time.share() >= kShare) return std::nullopt;
  return fmt::format(
      "the threads had {:.0f} % of the time of {:g} cores: other work keeps these busy; OMP_WAIT_POLICY=passive or "
      "-t 1 may be many times faster",
      100 * time.share(), time.cores);
}

CoreWatch::CoreWatch(int threads) : start_(Clock::now()), cpu_s_(cpu_seconds()), cores_(cores_of(threads)) {}

CoreTime CoreWatch::time(double elsewhere_s) const {
  const double wall_s = std::chrono::duration<double>(Clock::now() - start_).count();
  return {.cpu_s = cpu_seconds() - cpu_s_, .wall_s = wall_s - elsewhere_s, .cores = cores_};
}

}  // namespace headrace::app
