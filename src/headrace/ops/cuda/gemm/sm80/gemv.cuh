// Register-resident GEMV: GEMM with M = 1 or 2, as in a decode step of as many requests. Such a step is a chain of
// kernels, each of which waits for the x that the previous one writes (PDL). Before the wait a CTA requests all of its
// weights into registers and does everything else that does not need x. After the wait there are few instructions and
// one barrier, with a norm two or three.
//
// Warps split K as those of skinny_gemm.cuh do, and a warp needs only its own part of x. It loads that part itself, all
// rows and passes at a time, and shares it among its lanes through shared memory. For a norm each warp squares its own
// part.
//
// In batch-invariant mode the sums have the order of gemm_common.cuh, and those of a norm that of rms_norm.cu.
#pragma once
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/gemm/sm80/skinny_gemm_params.cuh"

namespace headrace::cuda::skinny {

enum class Norm : uint8_t { kNone, kRms };

// A warp's part of x: 128 elements of each pass, of every row. Half a warp holds one pass, a lane eight neighbours.
// Elements past the end of K are zeros.
template <class T, int kPasses, int kRows, Order kOrder>
struct OwnPart {
  static constexpr int kLanes = kWarpLen / kVec8, kPieces = (kPasses + 1) / 2;  // kPieces: 16-byte vectors of a lane
  // Vectors of a row in shared memory, padded so that lanes that read at once have no bank conflicts.
  static constexpr int kRowPieces = kPieces * 32 + (kRows == 1 ? 0 : kOrder == Order::kPieces ? 4 : 2);
  RawVec8<T> x[kRows][kPieces];

  // Returns the first element of K of this lane's vector `i`.
  __device__ static int first(int i) {
    const int lane = threadIdx.x % 32, pass = 2 * i + lane / kLanes;
    return pass * kPassLen + threadIdx.x / 32 * kWarpLen + lane % kLanes * kVec8;
  }
  // Always true, but the compiler does not know that and so takes one row after the other. It has no registers for
  // several unpacked rows at once.
  __device__ static bool has_row(const Params& p, int row) { return kRows == 1 || row < p.rows; }
  __device__ void load(const Params& p) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const T* from = static_cast<const T*>(p.x.data) + (row == 0 ? 0 : p.x.at(row));
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        x[row][i] = has_row(p, row) && first(i) < p.in ? RawVec8<T>::load(from + first(i)) : RawVec8<T>{};
      }
    }
  }
  __device__ void store(uint4* to) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) to[row * kRowPieces + i * 32 + threadIdx.x % 32] = x[row][i].bits[0];
    }
    __syncwarp();
  }
};

// RMS norm of x: each lane scales its own vectors.
template <class T, int kPasses, int kRows, Order kOrder>
struct OwnNorm {
  using Part = OwnPart<T, kPasses, kRows, kOrder>;
  static constexpr int kSums = kWarps * (kOrder == Order::kPieces ? 1 : Part::kLanes);  // per row
  struct Shared {
    float sums[kRows][kSums], totals[kRows];
  };
  float factors[Part::kPieces][kVec8] = {};

  // The norm weight is a constant: it is read before the kernel that writes x has ended.
  __device__ void load_factors(const Params& p) {
#pragma unroll
    for (int i = 0; i < Part::kPieces; ++i) {
      if (Part::first(i) >= p.in) continue;
      if (p.norm_in_pieces) {
        const Vec8<T> piece = Vec8<T>::load_constant(static_cast<const T*>(p.norm_weight) + Part::first(i));
#pragma unroll
        for (int j = 0; j < kVec8; ++j) factors[i][j] = piece.v[j] + p.weight_offset;
      } else {
#pragma unroll
        for (int j = 0; j < kVec8; ++j) {
          factors[i][j] = load(p.norm_weight, p.norm_type, Part::first(i) + j) + p.weight_offset;
        }
      }
    }
  }
  // All threads of the CTA must call it: it contains barriers.
  __device__ void apply(const Params& p, Part& part, float per_element, Shared& shared) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (Part::has_row(p, row)) add_squares(part.x[row], shared.sums[row]);
    }
    __syncthreads();
    constexpr bool kShared = kOrder == Order::kNeighbours && kRows > 1;  // so many sums that one warp adds each row's
    if constexpr (kShared) {
      static_assert(kRows <= kWarps);
      const int row = threadIdx.x / 32;
      if (row < kRows) shared.totals[row] = total(shared.sums[row]);
      __syncthreads();
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (!Part::has_row(p, row)) continue;
      const float squares = kShared ? shared.totals[row] : total(shared.sums[row]);
      const float scale = kOrder == Order::kPieces ? rsqrtf(fmaf(squares, per_element, p.eps))
                                                   : rsqrtf(squares / static_cast<float>(p.in) + p.eps);
#pragma unroll
      for (int i = 0; i < Part::kPieces; ++i) {
        Vec8<T> x = part.x[row][i].piece();
#pragma unroll
        for (int j = 0; j < kVec8; ++j) x.v[j] *= scale * factors[i][j];
        x.store(reinterpret_cast<T*>(&part.x[row][i]));
      }
    }
  }

 private:
  __device__ static float with_squares(float sum, const Vec8<T>& x) {
#pragma unroll
    for (const float v : x.v) sum = fmaf(v, v, sum);
    return sum;
  }
  // In batch-invariant mode this adds as 128 threads of rms_norm.cu do, each the vectors at one place of every pass.
  // The halves of the warp hold alternate passes, so the sum moves between them.
  __device__ static void add_squares(const RawVec8<T> (&x)[Part::kPieces], float (&sums)[kSums]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0;
    if constexpr (kOrder == Order::kPieces) {
#pragma unroll
      for (const RawVec8<T>& piece : x) sum = with_squares(sum, piece.piece());
      sum = warp_sum(sum);
      if (lane == 0) sums[warp] = sum;
    } else {
#pragma unroll
      for (const RawVec8<T>& raw : x) {
        const Vec8<T> piece = raw.piece();
        sum = with_squares(sum, piece);
        if (kPasses == 1) break;
        sum = with_squares(__shfl_xor_sync(0xffffffffu, sum, 16), piece);
        sum = __shfl_xor_sync(0xffffffffu, sum, 16);
      }
      if (lane < Part::kLanes) sums[warp * Part::kLanes + lane] = sum;
    }
  }
  __device__ static float total(const float (&sums)[kSums]) {
    float all = 0;
    if constexpr (kOrder == Order::kPieces) {
#pragma unroll
      for (const float sum : sums) all += sum;
    } else {
#pragma unroll
      for (int i = 0; i < kSums; i += 32) all += warp_sum(sums[i + threadIdx.x % 32]);
    }
    return all;
  }
};

// A warp's partial sums: its part of x times eight rows of W. Four lanes have the results of one row of x, each of
// columns lane % 4 * 2 and the next, for one or more K splits. Lanes of other rows hold zeros.
template <class T, int kPasses, int kRows, Order kOrder>
struct OwnSums {
  using Part = OwnPart<T, kPasses, kRows, kOrder>;
  static constexpr int kParts = kChainsOfWarp<kOrder>;

  // x: the warp's part in shared memory.
  static __device__ void of(const uint4* x, const uint4 (&w)[kPasses][kChunks], float2 (&sums)[kParts]) {
    const int row = threadIdx.x % 32 / 4;
    if constexpr (kOrder == Order::kPieces) {
      sums[0] = of_pieces(x + row * Part::kRowPieces, row < kRows, w);
    } else {
      of_parts(x + row * Part::kRowPieces, row < kRows, w, sums);
    }
  }

 private:
  // Four accumulators in rotation: an MMA's result arrives some 30 cycles after its issue.
  static __device__ float2 of_pieces(const uint4* x, bool has_row, const uint4 (&w)[kPasses][kChunks]) {
    constexpr int kChains = 4;
    float sums[kChains][4] = {};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 row = has_row ? x[pass * 16 + c * 4 + threadIdx.x % 4] : uint4{};
        mma_m16n8k16<T>(sums[c * 2 % kChains], row.x, 0, row.y, 0, w[pass][c].x, w[pass][c].y);
        mma_m16n8k16<T>(sums[(c * 2 + 1) % kChains], row.z, 0, row.w, 0, w[pass][c].z, w[pass][c].w);
      }
    }
    return {(sums[0][0] + sums[1][0]) + (sums[2][0] + sums[3][0]),
            (sums[0][1] + sums[1][1]) + (sums[2][1] + sums[3][1])};
  }
  static __device__ void of_parts(const uint4* x, bool has_row, const uint4 (&w)[kPasses][kChunks],
                                  float2 (&results)[kParts]) {
    constexpr int kPartChunks = kChunks / kParts;
    const uint2* const row = reinterpret_cast<const uint2*>(x) + first_of_lane(threadIdx.x % 32) / 4;
    float sums[kParts][4] = {};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int part = c % kParts, chunk = part * kPartChunks + c / kParts, at = (pass * kChunks + chunk) * 8;
        const uint2 first = has_row ? row[at] : uint2{}, second = has_row ? row[at + 4] : uint2{};
        const Pair16 weights(w[pass][chunk]);
        multiply_16<T>(sums[part], first, {}, weights.first);
        multiply_16<T>(sums[part], second, {}, weights.second);
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) results[part] = {sums[part][0], sums[part][1]};
  }
};

// Destination of a thread's result, if it has one. It is found before x is ready and kept in shared memory, because the
// registers are full of weights.
struct Target {
  void* y;               // null: none
  const void* residual;  // null: none
  DType y_type, residual_type;
  float bias;

  __device__ void find(const Params& p, int row, int tile, int column_of_tile) {
    y = nullptr, residual = nullptr, bias = 0;
    if (tile >= p.tiles) return;
    const Place place = place_of(p, tile);
    const Weight& weight = p.weights[place.weight];
    const int column = place.row0 + column_of_tile;
    if (column >= weight.out) return;
    const Result& result = weight.result;
    y = element(result.y, row, column), y_type = result.y.type;
    if (result.residual.data != nullptr) residual = element(result.residual, row, column);
    residual_type = result.residual.type;
    if (result.bias != nullptr) bias = load(result.bias, result.bias_type, column);
  }
  static __device__ char* element(const Rows& x, int row, int column) {
    return static_cast<char*>(x.data) + (x.at(row) + column) * (x.type == DType::kF32 ? 4 : 2);
  }
  __device__ float loaded_residual() const { return residual != nullptr ? load_fresh(residual, residual_type, 0) : 0; }
};

// Waits for a load. A kernel sees that its predecessor has ended only after all loads that it issued before have
// arrived. The wait for x would take longer if a CTA requested all its weights at once.
__device__ inline void await(const uint4& loaded) {
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p nanosleep.u32 0; }" ::"r"(loaded.x) : "memory");
}

// Registers of a thread. What the weights leave of an SM's registers is for the next kernel.
constexpr int gemv_registers(bool combined, int passes, int tiles) {
  const int pieces = (combined ? 2 : 1) * passes * tiles * kChunks;
  return pieces <= 8 ? 64 : pieces <= 16 ? 96 : pieces <= 32 ? 168 : 255;
}

template <class T, bool kCombined, int kPasses, int kTiles, int kRows, Norm kNorm, Order kOrder>
__global__ void __maxnreg__(gemv_registers(kCombined, kPasses, kTiles)) held(const __grid_constant__ Params p) {
  constexpr int kWeights = kCombined ? 2 : 1, kParts = kChainsOfWarp<kOrder>, kColumns = kTiles * kTileRows;
  using Part = OwnPart<T, kPasses, kRows, kOrder>;
  using Norms = OwnNorm<T, kPasses, kRows, kOrder>;
  __shared__ uint4 x[kWarps][kRows * Part::kRowPieces];
  __shared__ Target targets[kRows * kColumns];
  __shared__ float parts[kWarps * kParts][kWeights][kRows][kColumns];
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
  pdl_launch_dependents();
  Norms norm;
  if constexpr (kNorm == Norm::kRms) norm.load_factors(p);
  const int at = threadIdx.x, row = kRows == 1 ? 0 : at / kColumns, column = at - row * kColumns;  // of its result
  const bool writes = at < kRows * kColumns;
  if (writes) targets[at].find(p, row, first + column / kTileRows, column % kTileRows);
  const float per_element = 1 / static_cast<float>(p.in);
  pdl_wait();
  const float residual = writes ? targets[at].loaded_residual() : 0;
  Part part;
  part.load(p);
  if constexpr (kNorm == Norm::kRms) {
    __shared__ typename Norms::Shared squares;
    norm.apply(p, part, per_element, squares);
  }
  part.store(x[warp]);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int w = 0; w < kWeights; ++w) {
      float2 sums[kParts];
      OwnSums<T, kPasses, kRows, kOrder>::of(x[warp], weights[t][w], sums);
#pragma unroll
      for (int i = 0; i < kParts && lane / 4 < kRows; ++i) {
        *reinterpret_cast<float2*>(&parts[warp * kParts + i][w][lane / 4][t * kTileRows + lane % 4 * 2]) = sums[i];
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
      for (int w = 0; w < kWeights; ++w) total[w] += parts[s][w][row][column];
    }
    if constexpr (kCombined) total[0] = silu_for(target.y_type, total[0]) * total[1];
    // SwiGLU has neither bias nor residual; -0 must stay -0.
    store(target.y, target.y_type, 0, kCombined ? total[0] : total[0] + target.bias + residual);
  }
}

template <class T, bool kCombined, int kPasses, int kRows, Order kOrder>
void launch_gemv(const Params& p, const Stream& stream) {
  constexpr int kTiles = kPasses == 1 ? 2 : 1;
  static_assert(kRows * kTiles * kTileRows <= kThreads);
  const int blocks = (p.tiles + kTiles - 1) / kTiles;
  const auto kernel = p.norm_weight != nullptr ? held<T, kCombined, kPasses, kTiles, kRows, Norm::kRms, kOrder>
                                               : held<T, kCombined, kPasses, kTiles, kRows, Norm::kNone, kOrder>;
  launch_pdl(stream, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, p, "skinny_gemm");
}

}  // namespace headrace::cuda::skinny
