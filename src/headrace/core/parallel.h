// Work over the cores of this machine. The threads belong to the process: they are made when first needed, sleep while
// there is no work, and end with the process. Callers on different threads do not wait for each other.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace headrace {

// Cores that this process may run on.
int available_cores();

// Calls fn(context, i) for every i in [0, count), on at most `threads` threads, in any order; returns when all are
// done. The caller is one of the threads; where the system gives fewer, fewer run. An exception of any call is rethrown
// (one of them), and indices that nobody took are left out. threads <= 1, count <= 1 or a call within a call runs in
// the caller. After fork() the child has threads of its own; fn itself may not fork a child that goes on with the
// region.
void parallel_for(int threads, int64_t count, void (*fn)(void* context, int64_t i), void* context);

template <class F>
void parallel_for(int threads, int64_t count, F&& body) {
  using Body = std::remove_reference_t<F>;
  parallel_for(
      threads, count, [](void* context, int64_t i) { (*static_cast<Body*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace headrace
