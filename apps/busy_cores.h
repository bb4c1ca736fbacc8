// Whether other work keeps the cores busy, beside which threads that spin while they wait make a run many times slower.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::app {

// What a process had of so many cores.
struct CoreTime {
  double cpu_s = 0, wall_s = 0, cores = 1;
  double share() const { return wall_s > 0 ? cpu_s / (wall_s * cores) : 1; }
};

// Whether waiting threads spin under these values of OMP_WAIT_POLICY and GOMP_SPINCOUNT; they sleep, or somebody chose,
// where not.
bool threads_spin(std::string_view wait_policy, std::string_view spin_count);

// One sentence where threads that spin had less than three quarters of more than one core over two seconds or more:
// with the cores to themselves they have all of it.
std::optional<std::string> busy_cores(const CoreTime& time);

// The process's time since it was made, on the cores that `threads` threads may have.
class CoreWatch {
 public:
  explicit CoreWatch(int threads);
  // `elsewhere_s` of it were no work, such as waiting for a reader of the text.
  CoreTime time(double elsewhere_s) const;

 private:
  std::chrono::steady_clock::time_point start_;
  double cpu_s_, cores_;
};

}  // namespace headrace::app
