// Parallel loops over CPU cores. The threads belong to the process: they start when first needed, sleep without work,
// and end with the process. Callers on different threads do not wait for each other.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace headrace {

// Returns the number of cores that this process may run on.
int available_cores();

// Calls fn(context, i) for every i in [0, count), on at most `threads` threads including the caller, in any order, and
// returns when all are done. Runs on fewer threads if the system provides fewer.
// Rethrows one of the exceptions of calls; unclaimed indices are then skipped. Runs in the caller alone if threads <=
// 1, count <= 1, or within another call.
// After fork() the child has its own threads; fn must not fork a child that continues the region.
void parallel_for(int threads, int64_t count, void (*fn)(void* context, int64_t i), void* context);

template <class F>
void parallel_for(int threads, int64_t count, F&& body) {
  using Body = std::remove_reference_t<F>;
  parallel_for(
      threads, count, [](void* context, int64_t i) { (*static_cast<Body*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace headrace
