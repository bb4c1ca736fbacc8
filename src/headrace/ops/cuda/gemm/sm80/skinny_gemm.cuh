// Skinny GEMM: M <= 16, as in decoding. Bound by the bytes of the weights, which are read once.
//
// A CTA takes tiles of 8 rows of W, or 8 of each of two weights for SwiGLU. Each of its 8 warps sums an eighth of K, in
// batch-invariant mode two of the K splits of gemm_common.cuh. A warp loads the 16-byte vectors of a tile one tile
// ahead. It loads the first tile before it waits for the kernel that writes x (PDL), so weights arrive while that
// kernel drains.
#pragma once
#include <algorithm>

#include "headrace/ops/cuda/arch/pairs.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/gemm/sm80/gemv.cuh"
#include "headrace/ops/cuda/gemm/sm80/skinny_gemm_params.cuh"

namespace headrace::cuda::skinny {

// The part of SkinnyGemmShape that the template arguments fix.
template <Order kOrder, bool kCombined = false, bool kMany = false>
constexpr SkinnyGemmShape kShape = {
    .rows = kMany ? 16 : 8, .in = 0, .normed = false, .combined = kCombined, .strict = kOrder == Order::kNeighbours};
template <Order kOrder>
constexpr int kPad = static_cast<int>(kShape<kOrder>.pad());

// The norm's factors in shared memory, after the rows of x. The norm weight is a constant, so it is read before the
// kernel that writes x has ended.
template <Order kOrder>
__device__ inline float* norm_factors(const Params& p, uint4* shared) {
  return reinterpret_cast<float*>(shared + p.rows * ((p.in + kPad<kOrder>) / 8));
}
template <Order kOrder>
__device__ inline void stage_norm(const Params& p, uint4* shared) {
  if (p.norm_weight == nullptr) return;
  float* factors = norm_factors<kOrder>(p, shared);
  for (int i = threadIdx.x; i < p.in; i += kThreads) factors[i] = load(p.norm_weight, p.norm_type, i) + p.weight_offset;
}

// Normalises one row with one warp, independently of other rows. `to` holds the row and is overwritten.
template <class T>
__device__ inline void normalise(const Params& p, const float* factors, float sum, uint4* to) {
  const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(p.in) + p.eps);
  for (int i = threadIdx.x % 32; i < p.in / 8; i += 32) {  // the vectors that this lane wrote
    uint4 piece = to[i];
    uint32_t* const words[] = {&piece.x, &piece.y, &piece.z, &piece.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 v = unpack2<T>(*words[j]), f = *reinterpret_cast<const float2*>(factors + i * 8 + j * 2);
      *words[j] = pack2<T>(v.x * scale * f.x, v.y * scale * f.y);
    }
    to[i] = piece;
  }
}

// Copies x, or its norm, to shared memory, rows of K elements and padding. Bypasses this SM's L1, since the kernel that
// wrote x may still have been running when this CTA began. With a norm each row has a warp.
template <class T, Order kOrder>
__device__ void stage_rows(const Params& p, uint4* shared) {
  const int pieces = p.in / 8, stride = (p.in + kPad<kOrder>) / 8;
  if (p.norm_weight == nullptr) {
    for (int i = threadIdx.x; i < p.rows * pieces; i += kThreads) {
      const int row = i / pieces, at = i % pieces;
      shared[row * stride + at] =
          __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(p.x.data) + p.x.at(row)) + at);
    }
  } else {
    __syncthreads();  // the norm's weight has been staged
    for (int row = threadIdx.x / 32; row < p.rows; row += kWarps) {
      const auto* from = reinterpret_cast<const uint4*>(static_cast<const T*>(p.x.data) + p.x.at(row));
      float sum = 0;
#pragma unroll 4
      for (int i = threadIdx.x % 32; i < pieces; i += 32) {
        const uint4 piece = __ldcg(from + i);
        shared[row * stride + i] = piece;
        for (const uint32_t word : {piece.x, piece.y, piece.z, piece.w}) {
          const float2 v = unpack2<T>(word);
          sum = fmaf(v.x, v.x, fmaf(v.y, v.y, sum));
        }
      }
      normalise<T>(p, norm_factors<kOrder>(p, shared), sum, shared + row * stride);
    }
  }
  __syncthreads();
}

template <bool kCombined, Order kOrder>
using Sums = float[kChainsOfWarp<kOrder>][kCombined ? 2 : 1][4];

template <class T, bool kCombined, bool kMany, Order kOrder>
struct Tile {
  using Sums = skinny::Sums<kCombined, kOrder>;
  static constexpr int kWeights = kCombined ? 2 : 1;
  uint4 pieces[kWeights][kChunks];

  __device__ void load(const Params& p, int tile, int pass) {
    const Place place = place_of(p, tile);
    const int first_k = pass * kPassLen + threadIdx.x / 32 * kWarpLen;
#pragma unroll
    for (int w = 0; w < kWeights; ++w) load_pieces(p, p.weights[place.weight + w], place.row0, first_k, pieces[w]);
  }
  __device__ void multiply(const Params& p, const uint4* x, int pass, Sums& sums) const {
    if constexpr (kOrder == Order::kPieces) multiply_pieces(p, x, pass, sums);
    if constexpr (kOrder == Order::kNeighbours) multiply_neighbours(p, x, pass, sums);
  }

 private:
  __device__ void multiply_pieces(const Params& p, const uint4* x, int pass, Sums& sums) const {
    const int lane = threadIdx.x % 32, row = lane / 4, stride = (p.in + kPad<kOrder>) / 8;
    const int first_k = pass * kPassLen + threadIdx.x / 32 * kWarpLen + lane % 4 * 8;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int k = first_k + c * kChunkLen;
      const bool inside = k < p.in;
      const uint4 low = inside && row < p.rows ? x[row * stride + k / 8] : uint4{};
      const uint4 high = kMany && inside && row + 8 < p.rows ? x[(row + 8) * stride + k / 8] : uint4{};
#pragma unroll
      for (int w = 0; w < kWeights; ++w) multiply_chunk<T>(sums[0][w], low, high, pieces[w][c]);
    }
  }
  __device__ void multiply_neighbours(const Params& p, const uint4* x, int pass, Sums& sums) const {
    const int lane = threadIdx.x % 32, row = lane / 4, stride = (p.in + kPad<kOrder>) / 4;
    const int first_k = pass * kPassLen + threadIdx.x / 32 * kWarpLen + first_of_lane(lane);
    const auto load = [&](int r, int k) {
      return k < p.in && r < p.rows ? reinterpret_cast<const uint2*>(x)[r * stride + k / 4] : uint2{};
    };
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int k = first_k + c * kChunkLen;
      const uint2 low[2] = {load(row, k), load(row, k + 16)};
      const uint2 high[2] = {kMany ? load(row + 8, k) : uint2{}, kMany ? load(row + 8, k + 16) : uint2{}};
#pragma unroll
      for (int w = 0; w < kWeights; ++w) {
        const Pair16 weights(pieces[w][c]);
        float(&sum)[4] = sums[c * kChunkLen / kPartLen][w];
        multiply_16<T>(sum, low[0], high[0], weights.first);
        multiply_16<T>(sum, low[1], high[1], weights.second);
      }
    }
  }
};

// Adds the warps' partial sums of one tile and writes the results. The next tile has another buffer.
template <bool kCombined, bool kMany, Order kOrder>
struct Parts {
  using Sums = skinny::Sums<kCombined, kOrder>;
  static constexpr int kWeights = kCombined ? 2 : 1, kRows = kMany ? 16 : 8, kOfWarp = kChainsOfWarp<kOrder>;
  float v[kWarps * kOfWarp][kWeights][kRows][kTileRows];

  __device__ void write(const Params& p, int tile, const Sums& sums) {
    const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < kOfWarp * kWeights; ++i) {
      const float(&sum)[4] = sums[i / kWeights][i % kWeights];
      float(&to)[kRows][kTileRows] = v[warp * kOfWarp + i / kWeights][i % kWeights];
      *reinterpret_cast<float2*>(&to[row][column]) = make_float2(sum[0], sum[1]);
      if (kMany) *reinterpret_cast<float2*>(&to[row + 8][column]) = make_float2(sum[2], sum[3]);
    }
    __syncthreads();
    const int r = threadIdx.x / kTileRows, c = threadIdx.x % kTileRows;
    const Place place = place_of(p, tile);
    const Weight& weight = p.weights[place.weight];
    if (r >= p.rows || place.row0 + c >= weight.out) return;
    float total[kWeights] = {};
#pragma unroll
    for (int s = 0; s < kWarps * kOfWarp; ++s) {
#pragma unroll
      for (int w = 0; w < kWeights; ++w) total[w] += v[s][w][r][c];
    }
    if constexpr (kCombined) {  // batch-invariant: the silu of the kernels for large M
      total[0] = (kOrder == Order::kPieces ? silu(total[0]) : silu_for(weight.result.y.type, total[0])) * total[1];
    }
    weight.result.write(r, place.row0 + c, total[0]);
  }
};

template <bool kCombined, bool kMany, Order kOrder>
constexpr bool kPartsAsPlanned =
    sizeof(Parts<kCombined, kMany, kOrder>) == kShape<kOrder, kCombined, kMany>.parts_bytes();

// kTiles tiles per CTA. Requests all of their weights before it waits for x.
template <class T, bool kCombined, bool kMany, Order kOrder, int kPasses, int kTiles>
__global__ void __launch_bounds__(kThreads, blocks_at_once(kCombined, kPasses, kTiles))
    few_rows_at_once(const __grid_constant__ Params p) {
  extern __shared__ uint4 x[];
  __shared__ Parts<kCombined, kMany, kOrder> parts[kTiles];
  Tile<T, kCombined, kMany, kOrder> tiles[kTiles][kPasses];
  const int first = blockIdx.x * kTiles;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) tiles[t][pass].load(p, min(first + t, p.tiles - 1), pass);
  }
  pdl_launch_dependents();
  stage_norm<kOrder>(p, x);
  pdl_wait();
  stage_rows<T, kOrder>(p, x);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (first + t >= p.tiles) return;
    Sums<kCombined, kOrder> sums = {};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) tiles[t][pass].multiply(p, x, pass, sums);
    parts[t].write(p, first + t, sums);
  }
}

// Persistent CTAs: each takes every gridDim.x-th tile and loads one tile ahead.
template <class T, bool kCombined, bool kMany, Order kOrder>
__global__ void __launch_bounds__(kThreads, kCombined ? 2 : 3) few_rows(const __grid_constant__ Params p) {
  extern __shared__ uint4 x[];
  __shared__ Parts<kCombined, kMany, kOrder> parts[SkinnyGemmShape::kBuffers];
  Tile<T, kCombined, kMany, kOrder> next;
  next.load(p, blockIdx.x, 0);
  pdl_launch_dependents();
  stage_norm<kOrder>(p, x);
  pdl_wait();
  stage_rows<T, kOrder>(p, x);
  int buffer = 0;
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, buffer ^= 1) {
    Sums<kCombined, kOrder> sums = {};
    for (int pass = 0; pass < p.passes; ++pass) {
      const Tile<T, kCombined, kMany, kOrder> now = next;
      const bool last = pass + 1 == p.passes;
      const int next_tile = last ? tile + gridDim.x : tile;
      if (next_tile < p.tiles) next.load(p, next_tile, last ? 0 : pass + 1);
      now.multiply(p, x, pass, sums);
    }
    parts[buffer].write(p, tile, sums);
  }
}

inline void launch_with(void (*kernel)(Params), int blocks, size_t shared_bytes, const Params& p,
                        const Stream& stream) {
  launch_pdl(stream, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), shared_bytes, p, "skinny_gemm");
}

template <class T, bool kCombined, bool kMany, Order kOrder>
void launch(const Params& p, const Stream& stream) {
  static_assert(kPartsAsPlanned<kCombined, kMany, kOrder> && sizeof(T) == 2);
  const SkinnyGemmShape shape{.rows = p.rows,
                              .in = p.in,
                              .normed = p.norm_weight != nullptr,
                              .combined = kCombined,
                              .strict = kOrder == Order::kNeighbours};
  const auto shared_bytes = static_cast<size_t>(shape.rows_bytes());
  const auto fit = [&](int tiles) { return shape.blocks(static_cast<int64_t>(stream.shared_bytes_of_sm), tiles); };
  const auto at_once = [&]<int kPasses>(std::integral_constant<int, kPasses>) {
    constexpr int kTiles = tiles_at_once(kCombined, kPasses);
    const int blocks = (p.tiles + kTiles - 1) / kTiles;
    static_assert(kTiles <= SkinnyGemmShape::kBuffers);
    const int resident = std::min(fit(kTiles), blocks_at_once(kCombined, kPasses, kTiles));
    if (p.passes > kPasses || blocks > stream.num_sms * resident) return false;
    launch_with(few_rows_at_once<T, kCombined, kMany, kOrder, kPasses, kTiles>, blocks, shared_bytes, p, stream);
    return true;
  };
  if (at_once(std::integral_constant<int, kPassesAtOnce[0]>()) ||
      at_once(std::integral_constant<int, kPassesAtOnce[1]>()) ||
      at_once(std::integral_constant<int, kPassesAtOnce[2]>())) {
    return;
  }
  constexpr int kBlocksPerSM = 4;  // requested; fewer fit when x is large, and the other CTAs then wait
  const int blocks = std::min(p.tiles, stream.num_sms * std::min(kCombined ? 3 : kBlocksPerSM, fit(2)));
  launch_with(few_rows<T, kCombined, kMany, kOrder>, blocks, shared_bytes, p, stream);
}

template <class T, bool kCombined, Order kOrder>
void launch_gemv(const Params& p, const Stream& stream) {
  const int passes = gemv_passes(p.in, p.tiles, kCombined, stream.num_sms);
  const auto with = [&]<int kPasses>(std::integral_constant<int, kPasses>) {
    static_assert(kMostGemvRows == 2);
    if (passes != kPasses) return;
    p.rows == 1 ? launch_gemv<T, kCombined, kPasses, 1, kOrder>(p, stream)
                : launch_gemv<T, kCombined, kPasses, 2, kOrder>(p, stream);
  };
  with(std::integral_constant<int, kPassesAtOnce[0]>());
  with(std::integral_constant<int, kPassesAtOnce[1]>());
  with(std::integral_constant<int, kPassesAtOnce[2]>());
}

template <class T, Order kOrder>
void launch_for(const FusedLinearArgs& a, const Params& p, const Stream& stream) {
  const bool many = p.rows > 8, combined = a.combine == FusedLinearArgs::Combine::kSiluMul;
  if (combined) {
    many ? launch<T, true, true, kOrder>(p, stream) : launch<T, true, false, kOrder>(p, stream);
  } else {
    many ? launch<T, false, true, kOrder>(p, stream) : launch<T, false, false, kOrder>(p, stream);
  }
}

// Instantiated in one file per order: together they take a minute to compile.
template <Order kOrder>
void launch_for(const FusedLinearArgs& a, const Params& p, const Stream& stream) {
  a.x.dtype() == DType::kBF16 ? launch_for<__nv_bfloat16, kOrder>(a, p, stream)
                              : launch_for<__half, kOrder>(a, p, stream);
}

template <Order kOrder>
void launch_gemv_for(const FusedLinearArgs& a, const Params& p, const Stream& stream) {
  const bool combined = a.combine == FusedLinearArgs::Combine::kSiluMul;
  const auto launch_as = [&]<class T>(T) {
    combined ? launch_gemv<T, true, kOrder>(p, stream) : launch_gemv<T, false, kOrder>(p, stream);
  };
  a.x.dtype() == DType::kBF16 ? launch_as(__nv_bfloat16{}) : launch_as(__half{});
}

extern template void launch_for<Order::kPieces>(const FusedLinearArgs& a, const Params& p, const Stream& stream);
extern template void launch_for<Order::kNeighbours>(const FusedLinearArgs& a, const Params& p, const Stream& stream);
extern template void launch_gemv_for<Order::kPieces>(const FusedLinearArgs& a, const Params& p, const Stream& stream);
extern template void launch_gemv_for<Order::kNeighbours>(const FusedLinearArgs& a, const Params& p,
                                                         const Stream& stream);

}  // namespace headrace::cuda::skinny
