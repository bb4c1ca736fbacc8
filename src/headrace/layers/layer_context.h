// How layers run: which ops, how strictly, in which dtype.
#pragma once
#include "headrace/base/tensor.h"
#include "headrace/kernels/op_set.h"

namespace headrace {

// Passed to every layer. `dtype` is that of activations: float32, bfloat16 or float16.
struct LayerContext {
  const OpSet* ops = nullptr;  // not owned
  OpContext op;
  DType dtype = DType::kF32;
};

}  // namespace headrace
