#include "headrace/base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>

#include "headrace/base/cgroup.h"

#ifdef HEADRACE_JTHREAD_PARALLEL
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace headrace {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int cores = std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::ceil(std::min<double>(cores, cpu_quota().value_or(cores))));
}

void parallel_for(int threads, int64_t count, void (*fn)(void*, int64_t), void* context) {
  if (count <= 0) return;
  const int team = static_cast<int>(std::min<int64_t>(threads, count));
  if (team <= 1) {
    for (int64_t i = 0; i < count; ++i) fn(context, i);
    return;
  }
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) fn(context, i);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      failure = std::current_exception();
      next.store(count, std::memory_order_relaxed);
    }
  };
#ifdef HEADRACE_JTHREAD_PARALLEL
  {
    std::vector<std::jthread> others;
    for (int t = 1; t < team; ++t) others.emplace_back(work);
    work();
  }
#else
#pragma omp parallel num_threads(team)
  work();
#endif
  if (failure) std::rethrow_exception(failure);
}

}  // namespace headrace
