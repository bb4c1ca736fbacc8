// Reduction and epilogue of small_m_gemm.cuh, unit by unit. A unit is what a warp has of 8 columns of the MMA. Unit u
// of a tile comes from warp u % warps and 8 columns u / warps. CTA u % blocks adds it up, as the u / blocks-th of its
// share.
#pragma once
#include "headrace/ops/cuda/arch/pairs.cuh"
#include "headrace/ops/cuda/gemm/sm90/small_m_gemm_scheduler.cuh"

namespace headrace::cuda::small_m {

// Transposes an 8 x 8 fragment.
__device__ inline uint32_t movmatrix(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Addends of a lane's results: the residual's two pairs, and two values of the bias.
struct Addends {
  uint32_t residual[2] = {};
  float bias[2] = {};
};

template <class S>
using UnitSums = float[S::kWeights][4];

// Epilogue of a lane's two neighbours in `half` of a unit. One weight: adds bias and residual. Two weights: silu(first)
// * second, which have neither.
template <class S>
__device__ float2 results_of(const UnitSums<S>& sums, int half, uint32_t residual, float2 bias) {
  const float low = sums[0][half * 2], high = sums[0][half * 2 + 1];
  if constexpr (S::kWeights == 2) {
    return make_float2(quick_silu(low) * sums[1][half * 2], quick_silu(high) * sums[1][half * 2 + 1]);
  } else {  // two weights have neither: -0 must stay -0
    const float2 also = unpack2<typename S::Element>(residual);
    return make_float2(low + bias.x + also.x, high + bias.y + also.y);
  }
}

// Default operand order: a warp's 16 rows of x, and 8 columns of each weight.
template <class S>
struct RowsUnit {
  using Sums = UnitSums<S>;
  using T = typename S::Element;
  const Params& p;
  int row, column;  // a lane has this column and the next, of this row and row + 8

  __device__ RowsUnit(const Params& params, int tile, int warp, int columns)
      : p(params),
        row(warp * 16 + static_cast<int>(threadIdx.x) % 32 / 4),
        column(tile * S::kWeightColumns + columns * 8 + static_cast<int>(threadIdx.x) % 4 * 2) {}

  // Loads the addends before the sums are there.
  __device__ void ask(Addends& addends) const {
    if (p.result.residual.data != nullptr) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (inside(h)) addends.residual[h] = __ldcg(word(p.result.residual, h));
      }
    }
    if (p.result.bias != nullptr) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (column + c < p.out) addends.bias[c] = load(p.result.bias, p.result.bias_type, column + c);
      }
    }
  }
  __device__ void write(const Sums& sums, const Addends& addends) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto [low, high] =
          results_of<S>(sums, h, addends.residual[h], make_float2(addends.bias[0], addends.bias[1]));
      if (p.result.y.type == DType::kF32) {
        store(h, 0, low), store(h, 1, high);
      } else if (inside(h)) {
        *word(p.result.y, h) = pack2<T>(low, high);
      }
    }
  }

 private:
  __device__ bool inside(int h) const { return column < p.out && row + h * 8 < p.rows; }
  __device__ uint32_t* word(const Rows& rows, int h) const {
    return reinterpret_cast<uint32_t*>(static_cast<T*>(rows.data) + rows.at(row + h * 8) + column);
  }
  __device__ void store(int h, int next, float x) const {
    if (column + next >= p.out || row + h * 8 >= p.rows) return;
    static_cast<float*>(p.result.y.data)[p.result.y.at(row + h * 8) + column + next] = x;
  }
};

// Swap-AB: a warp's 16 rows of a weight, and for SwiGLU of the other, and 8 rows of x.
template <class S>
struct TurnedUnit {
  using Sums = UnitSums<S>;
  using T = typename S::Element;
  const Params& p;
  int first_row, first_token, lane;  // rows of the weight, and of x

  __device__ TurnedUnit(const Params& params, int tile, int warp, int tokens)
      : p(params),
        first_row(tile * S::kWeightColumns + warp * 16),
        first_token(tokens * 8),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void ask(Addends& addends) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (p.result.residual.data != nullptr && inside(h)) addends.residual[h] = __ldcg(word(p.result.residual, h));
      const int row = first_row + h * 8 + lane / 4;
      if (p.result.bias != nullptr && row < p.out) addends.bias[h] = load(p.result.bias, p.result.bias_type, row);
    }
  }
  // A lane has weight rows lane / 4 and lane / 4 + 8, for rows 2 (lane % 4) and the next of x.
  __device__ void write(const Sums& sums, const Addends& addends) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t residual = S::kWeights == 1 ? movmatrix(addends.residual[h]) : 0;
      const auto [low, high] = results_of<S>(sums, h, residual, make_float2(addends.bias[h], addends.bias[h]));
      if (p.result.y.type == DType::kF32) {
        store(h, 0, low), store(h, 1, high);
      } else {
        const uint32_t both = movmatrix(pack2<T>(low, high));
        if (inside(h)) *word(p.result.y, h) = both;
      }
    }
  }

 private:
  // Two neighbouring weight rows for one row of x, as a transposed fragment has them.
  __device__ int row(int h) const { return first_row + h * 8 + lane % 4 * 2; }
  __device__ bool inside(int h) const { return row(h) < p.out && first_token + lane / 4 < p.rows; }
  __device__ uint32_t* word(const Rows& rows, int h) const {
    return reinterpret_cast<uint32_t*>(static_cast<T*>(rows.data) + rows.at(first_token + lane / 4) + row(h));
  }
  __device__ void store(int h, int next, float x) const {
    const int row = first_row + h * 8 + lane / 4, token = first_token + lane % 4 * 2 + next;
    if (row < p.out && token < p.rows) static_cast<float*>(p.result.y.data)[p.result.y.at(token) + row] = x;
  }
};

template <class S>
using Unit = std::conditional_t<S::kTurned, TurnedUnit<S>, RowsUnit<S>>;

}  // namespace headrace::cuda::small_m
