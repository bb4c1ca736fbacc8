// Scratch memory that is sized once and handed out in slices.
#pragma once
#include "headrace/core/tensor.h"

namespace headrace {

// A bump allocator over one allocation. Not thread-safe: one backend or model owns it. reset() at the start of
// a call; slices are valid until the next reset(). Asking for more than was reserved is a bug, not a growth.
class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(int64_t bytes, DeviceRuntime& runtime = cpu_runtime()) : memory_(DType::kU8, {bytes}, runtime) {}

  void reset() { used_ = 0; }
  int64_t capacity() const { return memory_ ? memory_.bytes() : 0; }
  // Aligned to 64 bytes; contents unspecified.
  TensorView take(DType dtype, const Shape& shape);

 private:
  Tensor memory_;
  int64_t used_ = 0;
};

}  // namespace headrace
