// Work over the cores of this machine. The OpenMP runtime that the matrix library uses serves here too, so two
// thread pools never fight; under ThreadSanitizer the same calls run on std::jthread.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace headrace {

// Cores that this process may run on.
int available_cores();

// Calls fn(context, i) for every i in [0, count), on at most `threads` threads, in any order; returns when all
// are done. An exception of any call is rethrown (one of them). threads <= 1 or count <= 1 runs in the caller.
void parallel_for(int threads, int64_t count, void (*fn)(void* context, int64_t i), void* context);

template <class F>
void parallel_for(int threads, int64_t count, F&& body) {
  using Body = std::remove_reference_t<F>;
  parallel_for(
      threads, count, [](void* context, int64_t i) { (*static_cast<Body*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace headrace
