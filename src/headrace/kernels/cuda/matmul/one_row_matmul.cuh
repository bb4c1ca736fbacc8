// Products of one row, as a decode step of one request has them: a chain of kernels, each of which waits for the row
// that the one before makes. All weights of a block are in its registers or on their way before that, and so is
// everything else that does not need the row; behind the wait there are few instructions and one barrier, two with a
// norm.
//
// Warps share out the sum as those of few_rows_matmul.cuh do, and a warp needs no part of x but its own: it takes that
// from memory by itself, two passes at a time, and shares it among its lanes through shared memory. For a norm each
// warp squares its own part.
//
// In strict mode the sums have the order of matmul_parts.cuh, and those of a norm that of rms_norm.cu.
#pragma once
#include "headrace/kernels/cuda/matmul/few_rows_params.cuh"
#include "headrace/kernels/cuda/primitives/launch.cuh"
#include "headrace/kernels/cuda/primitives/vector.cuh"

namespace headrace::cuda::few_rows_products {

enum class Norm : uint8_t { kNone, kRms };

// A warp's part of x: 128 elements of each pass. Half a warp holds a pass, a lane eight neighbours.
template <class T, int kPasses, Norm kNorm, Order kOrder>
struct OwnPart {
  static constexpr int kLanes = kWarpLen / kPiece, kPieces = (kPasses + 1) / 2;  // of a lane
  float factors[kNorm == Norm::kRms ? kPieces : 1][kPiece] = {};

  static __device__ int first(int i) {
    const int lane = threadIdx.x % 32, pass = 2 * i + lane / kLanes;
    return pass * kPassLen + threadIdx.x / 32 * kWarpLen + lane % kLanes * kPiece;
  }
  // The norm's weight is a constant: it is read before the kernel that makes x has ended.
  __device__ void load_factors(const Params& p) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (first(i) >= p.in) continue;
      if (p.norm_in_pieces) {
        const Piece<T> piece = Piece<T>::load_constant(static_cast<const T*>(p.norm_weight) + first(i));
#pragma unroll
        for (int j = 0; j < kPiece; ++j) factors[i][j] = piece.v[j] + p.weight_offset;
      } else {
#pragma unroll
        for (int j = 0; j < kPiece; ++j) {
          factors[i][j] = load(p.norm_weight, p.norm_type, first(i) + j) + p.weight_offset;
        }
      }
    }
  }
  // x or its norm, zeros behind its end, to `to`: of a warp, its lanes' pieces one after another. With a norm the whole
  // block meets at a barrier.
  __device__ void stage(const Params& p, float per_element, uint4* to, float* sums) const {
    Piece<T> x[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      x[i] = first(i) < p.in ? Piece<T>::load(static_cast<const T*>(p.x.data) + first(i)) : Piece<T>{};
    }
    if constexpr (kNorm == Norm::kRms) {
      const float scale = kOrder == Order::kPieces
                              ? rsqrtf(fmaf(sum_of_squares(x, sums), per_element, p.eps))
                              : rsqrtf(ordered_squares(x, sums) / static_cast<float>(p.in) + p.eps);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
#pragma unroll
        for (int j = 0; j < kPiece; ++j) x[i].v[j] *= scale * factors[i][j];
      }
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) x[i].store(reinterpret_cast<T*>(to + i * 32 + threadIdx.x % 32));
    __syncwarp();
  }

 private:
  __device__ static float with_squares(float sum, const Piece<T>& x) {
#pragma unroll
    for (const float v : x.v) sum = fmaf(v, v, sum);
    return sum;
  }
  __device__ static float sum_of_squares(const Piece<T> (&x)[kPieces], float* sums) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) sum = with_squares(sum, x[i]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    float all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all += sums[w];
    return all;
  }
  // As 128 threads of rms_norm.cu add it up, each the pieces at one place of every pass. Passes lie in the halves of
  // the warp in turns.
  __device__ static float ordered_squares(const Piece<T> (&x)[kPieces], float* sums) {
    const int lane = threadIdx.x % 32;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      sum = with_squares(sum, x[i]);
      if (kPasses == 1) break;
      sum = with_squares(__shfl_xor_sync(0xffffffffu, sum, 16), x[i]);
      sum = __shfl_xor_sync(0xffffffffu, sum, 16);
    }
    if (lane < kLanes) sums[threadIdx.x / 32 * kLanes + lane] = sum;
    __syncthreads();
    float all = 0;
#pragma unroll
    for (int i = 0; i < kWarps * kLanes; i += 32) all += warp_sum(sums[i + lane]);
    return all;
  }
};

// A warp's products of its part of x with eight rows of W. The lanes of a row of the product's left side but the first
// hold zeros. Results of columns lane % 4 * 2 and the next are in the first four lanes, of one or more parts.
template <class T, int kPasses, Order kOrder>
struct OwnSums {
  static constexpr int kParts = kChainsOfWarp<kOrder>;

  static __device__ void of(const uint4* x, const uint4 (&w)[kPasses][kChunks], float2 (&sums)[kParts]) {
    if constexpr (kOrder == Order::kPieces) {
      sums[0] = of_pieces(x, w);
    } else {
      of_parts(x, w, sums);
    }
  }

 private:
  // Four sums take turns: a product's result comes some 30 cycles after it was asked for.
  static __device__ float2 of_pieces(const uint4* x, const uint4 (&w)[kPasses][kChunks]) {
    constexpr int kChains = 4;
    const int lane = threadIdx.x % 32;
    float sums[kChains][4] = {};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 row = lane < 4 ? x[pass * 16 + c * 4 + lane] : uint4{};
        mma16816<T>(sums[c * 2 % kChains], row.x, 0, row.y, 0, w[pass][c].x, w[pass][c].y);
        mma16816<T>(sums[(c * 2 + 1) % kChains], row.z, 0, row.w, 0, w[pass][c].z, w[pass][c].w);
      }
    }
    return {(sums[0][0] + sums[1][0]) + (sums[2][0] + sums[3][0]),
            (sums[0][1] + sums[1][1]) + (sums[2][1] + sums[3][1])};
  }
  static __device__ void of_parts(const uint4* x, const uint4 (&w)[kPasses][kChunks], float2 (&results)[kParts]) {
    constexpr int kPartChunks = kChunks / kParts;
    const int lane = threadIdx.x % 32;
    const uint2* const row = reinterpret_cast<const uint2*>(x) + first_of_lane(lane) / 4;
    float sums[kParts][4] = {};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int part = c % kParts, chunk = part * kPartChunks + c / kParts, at = (pass * kChunks + chunk) * 8;
        const uint2 first = lane < 4 ? row[at] : uint2{}, second = lane < 4 ? row[at + 4] : uint2{};
        const Pair16 weights(w[pass][chunk]);
        multiply_16<T>(sums[part], first, {}, weights.first);
        multiply_16<T>(sums[part], second, {}, weights.second);
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) results[part] = {sums[part][0], sums[part][1]};
  }
};

// The element of a result that a thread writes, if it does. Where it lies is known before the row is; it waits in
// shared memory, as registers are full of weights.
struct Target {
  void* y;               // null: none
  const void* residual;  // null: none
  DType y_type, residual_type;
  float bias;

  __device__ void find(const Params& p, int tile, int column_of_tile) {
    y = nullptr, residual = nullptr, bias = 0;
    if (tile >= p.tiles) return;
    const Place place = place_of(p, tile);
    const Weight& weight = p.weights[place.weight];
    const int column = place.row0 + column_of_tile;
    if (column >= weight.out) return;
    const Result& result = weight.result;
    y = element(result.y, column), y_type = result.y.type;
    if (result.residual.data != nullptr) residual = element(result.residual, column);
    residual_type = result.residual.type;
    if (result.bias != nullptr) bias = load(result.bias, result.bias_type, column);
  }
  static __device__ char* element(const Rows& x, int column) {
    return static_cast<char*>(x.data) + column * (x.type == DType::kF32 ? 4 : 2);
  }
  __device__ float loaded_residual() const { return residual != nullptr ? load_fresh(residual, residual_type, 0) : 0; }
};

// Waits for a load. A kernel's end is known behind it only when all that was asked of memory until then has come: those
// that wait for the row would do so longer if this one asked for all its weights at once.
__device__ inline void await(const uint4& loaded) {
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p nanosleep.u32 0; }" ::"r"(loaded.x) : "memory");
}

// Registers of a thread: what is left of a multiprocessor's beside the weights' is for the kernel that comes next.
constexpr int one_row_registers(bool combined, int passes, int tiles) {
  const int pieces = (combined ? 2 : 1) * passes * tiles * kChunks;
  return pieces <= 8 ? 64 : pieces <= 16 ? 96 : pieces <= 32 ? 168 : 255;
}

template <class T, bool kCombined, int kPasses, int kTiles, Norm kNorm, Order kOrder>
__global__ void __maxnreg__(one_row_registers(kCombined, kPasses, kTiles)) one_row(const __grid_constant__ Params p) {
  constexpr int kWeights = kCombined ? 2 : 1;
  using Part = OwnPart<T, kPasses, kNorm, kOrder>;
  constexpr int kParts = kChainsOfWarp<kOrder>;
  __shared__ uint4 x[kWarps][Part::kPieces * 32];
  __shared__ float sums_of_squares[kWarps * Part::kLanes];
  __shared__ Target targets[kTiles * kTileRows];
  __shared__ float parts[kWarps * kParts][kWeights][kTiles * kTileRows];
  const int first = blockIdx.x * kTiles, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint4 weights[kTiles][kWeights][kPasses][kChunks];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const Place place = place_of(p, min(first + t, p.tiles - 1));
    if (t > 0) await(weights[t - 1][0][0][0]);
#pragma unroll
    for (int w = 0; w < kWeights; ++w) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        load_pieces(p, p.weights[place.weight + w], place.row0, pass * kPassLen + warp * kWarpLen, weights[t][w][pass]);
      }
    }
  }
  let_next_start();
  Part part;
  if constexpr (kNorm == Norm::kRms) part.load_factors(p);
  const int at = threadIdx.x;  // of the block's results
  const bool writes = at < kTiles * kTileRows;
  if (writes) targets[at].find(p, first + at / kTileRows, at % kTileRows);
  const float per_element = 1 / static_cast<float>(p.in);
  wait_for_previous();
  const float residual = writes ? targets[at].loaded_residual() : 0;
  part.stage(p, per_element, x[warp], sums_of_squares);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int w = 0; w < kWeights; ++w) {
      float2 sums[kParts];
      OwnSums<T, kPasses, kOrder>::of(x[warp], weights[t][w], sums);
#pragma unroll
      for (int i = 0; i < kParts && lane < 4; ++i) {
        *reinterpret_cast<float2*>(&parts[warp * kParts + i][w][t * kTileRows + lane * 2]) = sums[i];
      }
    }
  }
  __syncthreads();
  if (writes && targets[at].y != nullptr) {
    const Target& target = targets[at];
    float total[kWeights] = {};
#pragma unroll
    for (int s = 0; s < kWarps * kParts; ++s) {
#pragma unroll
      for (int w = 0; w < kWeights; ++w) total[w] += parts[s][w][at];
    }
    if constexpr (kCombined) total[0] = silu_for(target.y_type, total[0]) * total[1];
    // Two that are combined have neither; -0 is to stay what it is.
    store(target.y, target.y_type, 0, kCombined ? total[0] : total[0] + target.bias + residual);
  }
}

template <class T, bool kCombined, int kPasses, Order kOrder>
void launch_one_row(const Params& p, const Stream& stream) {
  constexpr int kTiles = kPasses == 1 ? 2 : 1;
  const int blocks = (p.tiles + kTiles - 1) / kTiles;
  const auto kernel = p.norm_weight != nullptr ? one_row<T, kCombined, kPasses, kTiles, Norm::kRms, kOrder>
                                               : one_row<T, kCombined, kPasses, kTiles, Norm::kNone, kOrder>;
  launch_early(stream, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, p, "few_rows_matmul");
}

}  // namespace headrace::cuda::few_rows_products
