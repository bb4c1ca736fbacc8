#include "op_threads.h"

#include <atomic>

#include "headrace/core/error.h"
#include "headrace/core/parallel.h"

namespace headrace::python {
namespace {

std::atomic<int>& setting() {
  static std::atomic<int> threads = available_cores();
  return threads;
}

}  // namespace

int op_threads() { return setting().load(std::memory_order_relaxed); }

void set_op_threads(int threads) {
  HR_REQUIRE(threads >= 1, ErrorCode::kInvalidArgument, "set_num_threads: n is ", threads, ", expected 1 or more");
  setting() = threads;
}

}  // namespace headrace::python
