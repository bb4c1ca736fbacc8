// Execution context of layers: device, ops, determinism, dtype.
#pragma once
#include <vector>

#include "headrace/core/device_runtime.h"
#include "headrace/core/tensor.h"
#include "headrace/ops/op_set.h"

namespace headrace {

// GEMMs that layers added and that have not run: add_gemm() and run_gemms() in linear.h. One forward pass owns it.
struct PendingGemms {
  std::vector<FusedLinearArgs> calls;
  std::vector<Tensor> inputs;  // keep what the calls read
};

// Passed to every layer. `dtype` of activations: float32, bfloat16 or float16.
struct LayerContext {
  const OpSet* ops = nullptr;  // not owned
  OpContext op;
  DType dtype = DType::kF32;
  DeviceRuntime* runtime = &cpu_runtime();  // device of weights and activations; not owned
  PendingGemms* gemms = nullptr;            // of the forward pass; not owned; null: GEMMs run at once

  bool on_cpu() const { return runtime->device().type == DeviceType::kCPU; }
  // Allocates activations, contents unspecified, of the context's dtype or another. Error kOutOfMemory.
  Tensor make(const Shape& shape) const { return Tensor(dtype, shape, *runtime); }
  Tensor make(DType other, const Shape& shape) const { return Tensor(other, shape, *runtime); }
};

}  // namespace headrace
