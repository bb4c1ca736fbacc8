// Soft embeddings in three kernels: find the marked rows; compute each row's largest logit and sum; multiply
// probabilities and embeddings as one GEMM with K = vocabulary. The GEMM uses tensor cores if table and result are
// bfloat16, else float32 FMAs. Probabilities are recomputed from logits at each read and never stored. Each row's sum
// has a fixed order.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/arch/mma_sm80.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kTile = 64, kDepth = 16, kPer = 4;

struct RowStats {
  float largest, inverse;  // 1 / sum of exp(x - largest)
};

struct Params {
  const uint8_t* mask;
  const float* logits;  // [rows, vocab]
  Rows table, out;
  int64_t vocab;
  int tokens, rows, hidden;
  float scale;
  int32_t* token_of;  // [rows]
  RowStats* stats;    // [rows]
};

// Compacts the marked tokens in order, in one CTA: a ballot per warp, a prefix over the warps, a running count.
__global__ void __launch_bounds__(kThreads) find_rows(const __grid_constant__ Params p) {
  __shared__ int of_warp[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int found = 0;
  for (int begin = 0; begin < p.tokens; begin += kThreads) {
    const int token = begin + static_cast<int>(threadIdx.x);
    const bool marked = token < p.tokens && p.mask[token] != 0;
    const unsigned votes = __ballot_sync(0xffffffffu, marked);
    if (lane == 0) of_warp[warp] = __popc(votes);
    __syncthreads();
    int at = found + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      at += w < warp ? of_warp[w] : 0;
      found += of_warp[w];
    }
    if (marked && at < p.rows) p.token_of[at] = token;
    __syncthreads();
  }
}

template <class Combine>
__device__ float over_block(float x, const Combine& combine) {
  __shared__ float of_warp[kWarps];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, distance));
  __syncthreads();  // the previous values have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  x = of_warp[0];
  for (int w = 1; w < kWarps; ++w) x = combine(x, of_warp[w]);
  return x;
}

__global__ void __launch_bounds__(kThreads) read_rows(const __grid_constant__ Params p) {
  const float* row = p.logits + blockIdx.x * p.vocab;
  float largest = -INFINITY, sum = 0;
  for (int64_t v = threadIdx.x; v < p.vocab; v += kThreads) largest = fmaxf(largest, row[v]);
  largest = over_block(largest, [](float a, float b) { return fmaxf(a, b); });
  for (int64_t v = threadIdx.x; v < p.vocab; v += kThreads) sum += expf(row[v] - largest);
  sum = over_block(sum, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) p.stats[blockIdx.x] = {largest, 1 / sum};
}

// Tensor-core tile of 64 rows x 64 dimensions, 16 rows per warp. Weights are exp(x - largest), rounded to bfloat16 like
// the table; the epilogue divides by the row's sum. Chunks of the vocabulary are loaded through a cp.async pipeline.
struct Tile {
  static constexpr int kThreads = 128, kRows = 64, kColumns = 64, kDepth = 32, kStages = 6;
  static constexpr int kRowFloats = kDepth + 4, kRowHalves = kColumns + 8;  // padded to avoid bank conflicts
  static constexpr int kFloatBytes = kRows * kRowFloats * 4, kStageBytes = kFloatBytes + kDepth * kRowHalves * 2;
  static constexpr int kBytes = kStages * kStageBytes;
  static_assert(kBytes <= kLeastSharedBytes);
  static constexpr int kFlush = 16;  // chunks per tensor-core accumulation, which truncates; then added in float32

  const Params& p;
  char* shared;
  int row0, column0;

  __device__ void load(int64_t chunk) const {
    const int64_t v0 = chunk * kDepth;
    if (v0 < p.vocab) {
      char* stage = shared + chunk % kStages * kStageBytes;
      constexpr int kLogits = kDepth / 4, kValues = kColumns / 8;  // 16-byte vectors per row
      for (int i = threadIdx.x; i < kRows * kLogits; i += kThreads) {
        const int r = i / kLogits, piece = i % kLogits;
        const bool inside = row0 + r < p.rows;
        copy16(shared_address(stage + (r * kRowFloats + piece * 4) * 4),
               p.logits + (inside ? row0 + r : 0) * p.vocab + v0 + piece * 4, inside);
      }
      for (int i = threadIdx.x; i < kDepth * kValues; i += kThreads) {
        const int k = i / kValues, d = column0 + i % kValues * 8;
        const bool inside = d < p.hidden;
        copy16(shared_address(stage + kFloatBytes + (k * kRowHalves + i % kValues * 8) * 2),
               static_cast<const __nv_bfloat16*>(p.table.data) + (v0 + k) * p.table.token_stride + (inside ? d : 0),
               inside);
      }
    }
    commit_copies();
  }
  // Returns two weights of consecutive ids.
  __device__ static uint32_t weights(const float* x, float largest) {
    const float2 logits = *reinterpret_cast<const float2*>(x);
    return pack2<__nv_bfloat16>(__expf(logits.x - largest), __expf(logits.y - largest));
  }
  __device__ void multiply(int64_t chunk, const float (&largest)[2], float (&sums)[kColumns / 8][4]) const {
    const char* stage = shared + chunk % kStages * kStageBytes;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    const auto* low = reinterpret_cast<const float*>(stage) + row * kRowFloats + lane % 4 * 2;
    const float* high = low + 8 * kRowFloats;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      const uint32_t a[4] = {weights(low + k, largest[0]), weights(high + k, largest[1]),
                             weights(low + k + 8, largest[0]), weights(high + k + 8, largest[1])};
#pragma unroll
      for (int n = 0; n < kColumns / 8; n += 2) {
        uint32_t b[4];
        const int at = (k + lane % 16) * kRowHalves + n * 8 + lane / 16 * 8;
        load_tiles_transposed(b, shared_address(stage + kFloatBytes + at * 2));
        mma_m16n8k16<__nv_bfloat16>(sums[n], a, b[0], b[1]);
        mma_m16n8k16<__nv_bfloat16>(sums[n + 1], a, b[2], b[3]);
      }
    }
  }
  __device__ void write(const float (&sums)[kColumns / 8][4]) const {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < kColumns / 8 * 4; ++i) {
      const int row = row0 + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + (i % 4 / 2) * 8;
      const int d = column0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (row < p.rows && d < p.hidden)
        p.out.set(p.token_of[row], 0, d, sums[i / 4][i % 4] * p.stats[row].inverse * p.scale);
    }
  }
};

__global__ void __launch_bounds__(Tile::kThreads) multiply_by_tiles(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  const Tile tile{p, shared, static_cast<int>(blockIdx.y) * Tile::kRows, static_cast<int>(blockIdx.x) * Tile::kColumns};
  float largest[2], total[Tile::kColumns / 8][4] = {}, sums[Tile::kColumns / 8][4] = {};
  for (int i = 0; i < 2; ++i) {
    const int row =
        tile.row0 + static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + i * 8;
    largest[i] = row < p.rows ? p.stats[row].largest : 0.0f;
  }
  const int64_t chunks = p.vocab / Tile::kDepth;
  for (int64_t c = 0; c < Tile::kStages - 1; ++c) tile.load(c);
  for (int64_t c = 0; c < chunks; ++c) {
    wait_copies<Tile::kStages - 2>();
    __syncthreads();  // chunk c has arrived, and all warps have read chunk c - 1
    tile.load(c + Tile::kStages - 1);
    tile.multiply(c, largest, sums);
    if ((c + 1) % Tile::kFlush != 0 && c + 1 != chunks) continue;
#pragma unroll
    for (int i = 0; i < Tile::kColumns / 2; ++i) total[i / 4][i % 4] += sums[i / 4][i % 4], sums[i / 4][i % 4] = 0;
  }
  tile.write(total);
}

// Returns true if the tensor-core GEMM applies: weights may be rounded to bfloat16 like the result, tiles divide the
// vocabulary, and rows are aligned to 16 bytes.
bool in_tiles(const Params& p, const Stream& stream) {
  const auto aligned = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  return stream.arch >= 80 && p.table.type == DType::kBF16 && p.out.type == DType::kBF16 &&
         p.vocab % Tile::kDepth == 0 && p.hidden % 8 == 0 && p.table.token_stride % 8 == 0 && aligned(p.table.data) &&
         aligned(p.logits);
}

void launch_tiles(const Params& p, const Stream& stream) {
  allow_shared(stream, multiply_by_tiles, Tile::kBytes, "soft_embedding");
  const dim3 grid(static_cast<unsigned>((p.hidden + Tile::kColumns - 1) / Tile::kColumns),
                  static_cast<unsigned>((p.rows + Tile::kRows - 1) / Tile::kRows));
  multiply_by_tiles<<<grid, Tile::kThreads, Tile::kBytes, stream.handle>>>(p);
  check_launch("soft_embedding");
}

// Float32 tile of 64 rows x 64 dimensions, 4 x 4 per thread.
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ Params p) {
  __shared__ float weight[kDepth][kTile + 1], value[kDepth][kTile];
  const int row0 = blockIdx.y * kTile, column0 = blockIdx.x * kTile;
  const int row = threadIdx.x / kDepth * kPer, column = threadIdx.x % kDepth * kPer;
  float sums[kPer][kPer] = {};
  for (int64_t v0 = 0; v0 < p.vocab; v0 += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
      const int r = row0 + i / kDepth;
      const int64_t v = v0 + i % kDepth;
      const bool inside = r < p.rows && v < p.vocab;
      weight[i % kDepth][i / kDepth] =
          inside ? expf(p.logits[r * p.vocab + v] - p.stats[r].largest) * p.stats[r].inverse : 0.0f;
    }
    for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
      const int d = column0 + i % kTile;
      const int64_t v = v0 + i / kTile;
      value[i / kTile][i % kTile] = d < p.hidden && v < p.vocab ? p.table.get(v, 0, d) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
#pragma unroll
        for (int j = 0; j < kPer; ++j) sums[i][j] = fmaf(weight[k][row + i], value[k][column + j], sums[i][j]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kPer && row0 + row + i < p.rows; ++i) {
    for (int j = 0; j < kPer && column0 + column + j < p.hidden; ++j) {
      p.out.set(p.token_of[row0 + row + i], 0, column0 + column + j, sums[i][j] * p.scale);
    }
  }
}

}  // namespace

void soft_embedding(const SoftEmbeddingArgs& a, const OpContext& context) {
  check(a);
  if (a.out.numel() == 0) return;
  const Stream& stream = stream_of(context);
  const int64_t rows = a.signal.logits.dim(0);
  check_cuda(cudaMemsetAsync(a.out.data(), 0, static_cast<size_t>(a.out.bytes()), stream.handle), "soft_embedding");
  if (rows == 0) return;
  constexpr int64_t kMostRows = int64_t{65535} * kTile;  // limit of a grid's y dimension
  HR_REQUIRE(rows <= kMostRows && static_cast<size_t>(rows) * (sizeof(RowStats) + 4) <= stream.scratch_bytes,
             ErrorCode::kInvalidArgument, "soft_embedding: ", rows,
             " rows, more than the device's scratch memory holds");
  auto* stats = static_cast<RowStats*>(stream.scratch);
  const Params p{.mask = static_cast<const uint8_t*>(a.signal.mask.data()),
                 .logits = static_cast<const float*>(a.signal.logits.data()),
                 .table = Rows(a.table),
                 .out = Rows(a.out),
                 .vocab = a.table.dim(0),
                 .tokens = static_cast<int>(a.out.dim(0)),
                 .rows = static_cast<int>(rows),
                 .hidden = static_cast<int>(a.table.dim(1)),
                 .scale = a.scale,
                 .token_of = reinterpret_cast<int32_t*>(stats + rows),
                 .stats = stats};
  find_rows<<<1, kThreads, 0, stream.handle>>>(p);
  check_launch("soft_embedding");
  read_rows<<<static_cast<unsigned>(rows), kThreads, 0, stream.handle>>>(p);
  check_launch("soft_embedding");
  if (in_tiles(p, stream)) return launch_tiles(p, stream);
  const dim3 grid(static_cast<unsigned>((p.hidden + kTile - 1) / kTile),
                  static_cast<unsigned>((rows + kTile - 1) / kTile));
  multiply<<<grid, kThreads, 0, stream.handle>>>(p);
  check_launch("soft_embedding");
}

}  // namespace headrace::cuda
