// Scratch memory, allocated once and handed out in slices.
#pragma once
#include "headrace/core/tensor.h"

namespace headrace {

// A bump allocator over one allocation. Call reset() at the start of a call; slices are valid until the next reset().
// It never grows: taking more than its capacity is a bug. Not thread-safe: owned by one backend or model.
class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(int64_t bytes, DeviceRuntime& runtime = cpu_runtime()) : memory_(DType::kU8, {bytes}, runtime) {}

  void reset() { used_ = 0; }
  int64_t capacity() const { return memory_ ? memory_.bytes() : 0; }
  // Returns a slice aligned to 64 bytes, contents unspecified.
  TensorView take(DType dtype, const Shape& shape);

 private:
  Tensor memory_;
  int64_t used_ = 0;
};

}  // namespace headrace
