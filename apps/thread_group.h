// Threads of this process, by who started them.
#pragma once
#include <sys/types.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace headrace::app {

// The threads that some work started and that still run.
class ThreadGroup {
 public:
  template <class Work>
  static ThreadGroup started_by(const Work& work) {
    const std::vector<pid_t> before = running();
    work();
    ThreadGroup group;
    std::ranges::set_difference(running(), before, std::back_inserter(group.ids_));
    return group;
  }
  double cpu_s() const;  // seconds of CPU time that they have taken so far
  size_t size() const { return ids_.size(); }

 private:
  static std::vector<pid_t> running();  // ascending

  std::vector<pid_t> ids_;
};

}  // namespace headrace::app
