// Weighted sum of the results of a token's experts.
#pragma once
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/expert_routing.h"

namespace headrace::cuda {

struct ExpertSum {
  Rows results;            // [tokens * k, hidden], dense
  const float* weights;    // [tokens * k]
  const int32_t* experts;  // [tokens * k]; kNoExpert: the result does not exist
  Rows residual, y;        // [tokens, hidden]; residual may have no data
  int tokens, hidden, k;

#ifdef __CUDACC__
  struct Choice {
    bool there;
    float weight;
  };
  __device__ Choice choice(int slot) const { return {__ldcg(experts + slot) != kNoExpert, __ldcg(weights + slot)}; }
  // Writes channel d of a token.
  template <class T>
  __device__ void write(int token, int d) const {
    float sum = 0;
    for (int j = 0; j < k; ++j) {
      const Choice of = choice(token * k + j);
      if (of.there) sum = fmaf(of.weight, results.get(int64_t{token} * k + j, 0, d), sum);
    }
    y.set(token, 0, d, residual.data == nullptr ? sum : residual.get(token, 0, d) + sum);
  }
  // Writes channels d to d + 7 of a token; all rows are 16-byte vectors (is_vec8). T: dtype of the results; y has it or
  // float32. `choice_of`: as choice(). Results of kNoExpert are dropped after their load, so that many loads are in
  // flight.
  template <class T, class ChoiceOf>
  __device__ void write_piece(int token, int d, const ChoiceOf& choice_of) const {
    constexpr int kAtOnce = 12;  // most tokens have no more choices
    const Vec8<float> before = residual.data == nullptr ? Vec8<float>{} : piece_of<T>(residual, token, d);
    Vec8<float> sum{};
    for (int j0 = 0; j0 < k; j0 += kAtOnce) {
      RawVec8<T> raw[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        raw[i] = RawVec8<T>::load(row_of<T>(results, int64_t{token} * k + min(j0 + i, k - 1)) + d);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (j0 + i >= k) break;
        const Choice of = choice_of(token * k + j0 + i);
        const Vec8<T> result = raw[i].piece();
#pragma unroll
        for (int e = 0; e < kVec8; ++e) sum.v[e] = of.there ? fmaf(of.weight, result.v[e], sum.v[e]) : sum.v[e];
      }
    }
    if (residual.data != nullptr) {
#pragma unroll
      for (int e = 0; e < kVec8; ++e) sum.v[e] = before.v[e] + sum.v[e];
    }
    if (y.type == DType::kF32) return sum.store(row_of<float>(y, token) + d);
    Vec8<T> rounded;
#pragma unroll
    for (int e = 0; e < kVec8; ++e) rounded.v[e] = sum.v[e];
    rounded.store(row_of<T>(y, token) + d);
  }

 private:
  // Loads 8 elements of rows of T or float32.
  template <class T>
  __device__ static Vec8<float> piece_of(const Rows& x, int token, int d) {
    if (x.type == DType::kF32) return Vec8<float>::load(row_of<float>(x, token) + d);
    const auto piece = Vec8<T>::load(row_of<T>(x, token) + d);
    Vec8<float> wide;
#pragma unroll
    for (int e = 0; e < kVec8; ++e) wide.v[e] = piece.v[e];
    return wide;
  }
#endif
};

}  // namespace headrace::cuda
