// Output gate sigmoid(gate) * y. All kernels share it, so that their bits agree.
#pragma once
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/arch/pairs.cuh"

namespace headrace::cuda {

// T is the dtype of the result.
template <class T>
__device__ inline float gated(float gate, float y) {
  return sizeof(T) == 2 ? __fdividef(y, 1.0f + __expf(-gate)) : sigmoid(gate) * y;
}
template <class T>
__device__ inline uint32_t gated_pair(uint32_t gate, uint32_t pair) {
  const float2 g = unpack2<T>(gate), y = unpack2<T>(pair);
  return pack2<T>(gated<T>(g.x, y.x), gated<T>(g.y, y.y));
}

}  // namespace headrace::cuda
