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

// Form of x in a CPU's GEMMs with quantised weights.
enum class Activations : uint8_t {
  kInt8,   // rounds it to int8 in groups of 32 columns; a row's bits do not depend on the rest of the batch
  kFloat,  // reads it as it is, and dequantises the weights: exact, and several times slower
};

// Passed by value to every op. `stream` is the device's native handle (cudaStream_t); null on a CPU.
struct OpContext {
  int threads = 1;
  Determinism determinism = Determinism::kFast;
  Activations activations = Activations::kInt8;
  void* stream = nullptr;  // not owned
  // Benches only: names of kernel families, separated by commas, that ops do not choose. Empty: ops choose freely. Not
  // owned.
  std::string_view leave_out = {};
};

}  // namespace headrace
