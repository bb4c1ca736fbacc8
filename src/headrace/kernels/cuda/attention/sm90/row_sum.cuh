// What a warp has of a row: values not yet divided by their sum.
#pragma once
#include "headrace/kernels/cuda/attention/part_sum.cuh"

namespace headrace::cuda {

// Lane l holds the elements l * 4 + 128 i.
template <int kVectors>
struct RowSum {
  PartSum state;
  float4 value[kVectors] = {};

  __device__ void add(PartSum part, const float4 (&values)[kVectors]) {
    if (part.sum == 0) return;
    const PartSum all = state.joined(part);
    const float a = state.factor(all), b = part.factor(all);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      value[i].x = PartSum::joined_value(value[i].x, a, values[i].x, b);
      value[i].y = PartSum::joined_value(value[i].y, a, values[i].y, b);
      value[i].z = PartSum::joined_value(value[i].z, a, values[i].z, b);
      value[i].w = PartSum::joined_value(value[i].w, a, values[i].w, b);
    }
    state = all;
  }
};

}  // namespace headrace::cuda
