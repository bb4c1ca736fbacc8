// The weighted sum of the results of a token's experts.
#pragma once
#include "headrace/kernels/cuda/primitives/element.cuh"
#include "headrace/kernels/expert_routing.h"

namespace headrace::cuda {

struct ExpertSum {
  Rows results;            // [tokens * k, hidden], dense
  const float* weights;    // [tokens * k]
  const int32_t* experts;  // [tokens * k]: results of kNoExpert are not there
  Rows residual, y;        // [tokens, hidden]; residual may have no data
  int tokens, hidden, k;

#ifdef __CUDACC__
  // Of channel d. T: of the results. What nobody made is left out behind its load, so that many loads are under way.
  template <class T>
  __device__ void write(int token, int d) const {
    float sum = 0;
#pragma unroll 8
    for (int j = 0; j < k; ++j) {
      const int64_t slot = int64_t{token} * k + j;
      const bool there = __ldcg(experts + slot) != kNoExpert;
      const float weight = __ldcg(weights + slot);
      const float result = static_cast<float>(__ldcg(static_cast<const T*>(results.data) + results.at(slot) + d));
      sum = there ? fmaf(weight, result, sum) : sum;
    }
    y.set(token, 0, d, residual.data == nullptr ? sum : residual.get(token, 0, d) + sum);
  }
#endif
};

}  // namespace headrace::cuda
