// Execution context of an op: threads, determinism and stream.
#pragma once
#include <cstdint>
#include <string_view>

namespace headrace {

enum class Determinism : uint8_t {
  kFast,    // default mode: the same call gives the same bits with any number of threads
  kStrict,  // batch-invariant mode: in addition, a row's bits depend neither on the rest of the batch nor on how its
            // request was split
};

// Passed by value to every op. `stream` is the device's native handle (cudaStream_t); null on a CPU.
struct OpContext {
  int threads = 1;
  Determinism determinism = Determinism::kFast;
  void* stream = nullptr;  // not owned
  // Benches only: names of kernel families, separated by commas, that ops do not choose. Empty: ops choose freely. Not
  // owned.
  std::string_view leave_out = {};
};

}  // namespace headrace
