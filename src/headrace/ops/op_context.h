// How an op runs: on how many threads, and how strictly.
#pragma once
#include <cstdint>

namespace headrace {

enum class Determinism : uint8_t {
  kFast,    // the same call gives the same bits with any number of threads
  kStrict,  // besides, a row's bits do not depend on what else is in the batch or on how its request was split
};

// Passed by value to every op. `stream` is the device's own handle (cudaStream_t); null on a CPU.
struct OpContext {
  int threads = 1;
  Determinism determinism = Determinism::kFast;
  void* stream = nullptr;  // not owned
};

}  // namespace headrace
