#include "headrace/core/parallel.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "headrace/core/cgroup.h"
#include "headrace/core/thread_team.h"

namespace headrace {
namespace {

std::exception_ptr run_on_team(int threads, int64_t count, void (*fn)(void*, int64_t), void* context) {
  const ThreadTeams::Lease team(ThreadTeams::of_process());
  return team->run(threads, count, fn, context);
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int cores = std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::ceil(std::min<double>(cores, cpu_quota().value_or(cores))));
}

void parallel_for(int threads, int64_t count, void (*fn)(void*, int64_t), void* context) {
  const int team = static_cast<int>(std::min<int64_t>(threads, count));
  if (team <= 1 || ThreadTeam::in_region()) {
    for (int64_t i = 0; i < count; ++i) fn(context, i);
  } else if (const std::exception_ptr failure = run_on_team(team, count, fn, context)) {
    std::rethrow_exception(failure);
  }
}

}  // namespace headrace
