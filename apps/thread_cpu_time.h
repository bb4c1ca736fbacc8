// CPU time of the calling thread, which other programs on the machine change little.
#pragma once
#include <time.h>

#include <algorithm>
#include <vector>

namespace headrace::app {

// Microseconds of CPU time that `work` takes on this thread.
template <class Work>
double cpu_microseconds_of(const Work& work) {
  timespec before{}, after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  work();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  return static_cast<double>(after.tv_sec - before.tv_sec) * 1e6 +
         static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-3;
}

inline double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

}  // namespace headrace::app
