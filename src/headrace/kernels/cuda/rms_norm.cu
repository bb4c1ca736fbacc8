// Norms of rows. Sums are fixed trees over a row's threads, so a row's bits depend on the row alone.
#include "headrace/kernels/cuda/launch.cuh"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/vector.cuh"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256, kPiecesPerThread = 4;

struct Params {
  Rows x, gate, out;
  const void* weight;
  DType weight_type;
  bool weight_in_pieces;  // of x's type and aligned
  uint32_t num_rows, heads;
  int64_t dim;
  float eps, weight_offset;
};

// One block for one row, any type and alignment.
__global__ void __launch_bounds__(kThreads) norm_rows(const __grid_constant__ Params p) {
  __shared__ float partial[kThreads / 32];
  let_next_start();
  wait_for_previous();
  const int64_t token = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
  float sum = 0;
  for (int64_t d = threadIdx.x; d < p.dim; d += kThreads) {
    const float x = p.x.get(token, head, d);
    sum = fmaf(x, x, sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) total += partial[w];
  const float scale = rsqrtf(total / static_cast<float>(p.dim) + p.eps);
  for (int64_t d = threadIdx.x; d < p.dim; d += kThreads) {
    float y = p.x.get(token, head, d) * scale * (load(p.weight, p.weight_type, d) + p.weight_offset);
    if (p.gate.data != nullptr) y *= silu(p.gate.get(token, head, d));
    p.out.set(token, head, d, y);
  }
}

// Eight elements of the weight as they multiply.
template <class T>
__device__ inline void load_weight(const Params& p, int d, float (&weight)[kPiece]) {
  if (p.weight_in_pieces) {
    const Piece<T> piece = Piece<T>::load_constant(static_cast<const T*>(p.weight) + d);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) weight[j] = piece.v[j] + p.weight_offset;
    return;
  }
#pragma unroll
  for (int j = 0; j < kPiece; ++j) weight[j] = load(p.weight, p.weight_type, d + j) + p.weight_offset;
}

template <int kLanes>
__device__ inline float sum_of_lanes(float x) {
#pragma unroll
  for (int distance = (kLanes < 32 ? kLanes : 32) / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  return x;
}

// kLanes threads for one row: half a warp, a warp or the block. Each keeps its pieces in registers, and those of the
// weight, which is read before the kernel that makes x has ended.
template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads) norm_pieces(const __grid_constant__ Params p) {
  __shared__ float partial[kThreads / 32];
  const int lane = threadIdx.x % kLanes;
  Piece<T> x[kPiecesPerThread];
  float weight[kPiecesPerThread][kPiece];
#pragma unroll
  for (int i = 0; i < kPiecesPerThread; ++i) {
    const int d = (i * kLanes + lane) * kPiece;
    if (d < p.dim) load_weight<T>(p, d, weight[i]);
  }
  let_next_start();
  wait_for_previous();
  const uint32_t row = blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes;
  const bool inside = row < p.num_rows;  // the others take part in the sums of their warp
  const uint32_t token = inside ? row / p.heads : 0, head = inside ? row - token * p.heads : 0;
  const T* from = row_of<T>(p.x, token, head);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPiecesPerThread; ++i) {
    const int d = (i * kLanes + lane) * kPiece;
    if (d >= p.dim) break;
    x[i] = Piece<T>::load(from + d);
#pragma unroll
    for (const float v : x[i].v) sum = fmaf(v, v, sum);
  }
  sum = sum_of_lanes<kLanes>(sum);
  if constexpr (kLanes > 32) {
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < kLanes / 32; ++w) sum += partial[w];
  }
  if (!inside) return;
  const float scale = rsqrtf(sum / static_cast<float>(p.dim) + p.eps);
  T* to = row_of<T>(p.out, token, head);
#pragma unroll
  for (int i = 0; i < kPiecesPerThread; ++i) {
    const int d = (i * kLanes + lane) * kPiece;
    if (d >= p.dim) break;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) x[i].v[j] *= scale * weight[i][j];
    if (p.gate.data != nullptr) {
      const Piece<T> gate = Piece<T>::load(row_of<T>(p.gate, token, head) + d);
#pragma unroll
      for (int j = 0; j < kPiece; ++j) x[i].v[j] *= silu_of<T>(gate.v[j]);
    }
    x[i].store(to + d);
  }
}

}  // namespace

void rms_norm(const RMSNormArgs& a, const OpContext& context) {
  check(a);
  if (a.out.numel() == 0) return;
  const Stream& stream = stream_of(context);
  const int64_t heads = a.x.rank() == 3 ? a.x.dim(1) : 1;
  const Params p{.x = Rows(a.x),
                 .gate = Rows(a.gate),
                 .out = Rows(a.out),
                 .weight = a.weight.data(),
                 .weight_type = a.weight.dtype(),
                 .weight_in_pieces = a.weight.dtype() == a.x.dtype() && in_pieces(a.weight),
                 .num_rows = static_cast<uint32_t>(a.x.dim(0) * heads),
                 .heads = static_cast<uint32_t>(heads),
                 .dim = a.x.dim(a.x.rank() - 1),
                 .eps = a.eps,
                 .weight_offset = a.weight_form == WeightForm::kPlusOne ? 1.0f : 0.0f};
  const bool pieces = in_pieces(a.x) && in_pieces(a.out) && (!a.gate || in_pieces(a.gate)) &&
                      p.dim <= int64_t{kThreads} * kPiece * kPiecesPerThread;
  const auto blocks = [&p](uint32_t rows) { return dim3((p.num_rows + rows - 1) / rows); };
  if (!pieces) return launch_early(stream, norm_rows, blocks(1), dim3(kThreads), 0, p, "rms_norm");
  for_type(a.x.dtype(), [&]<class T>(T) {
    if (p.dim <= 16 * kPiece) {
      launch_early(stream, norm_pieces<T, 16>, blocks(kThreads / 16), dim3(kThreads), 0, p, "rms_norm");
    } else if (p.dim <= 32 * kPiece * kPiecesPerThread) {
      launch_early(stream, norm_pieces<T, 32>, blocks(kThreads / 32), dim3(kThreads), 0, p, "rms_norm");
    } else {
      launch_early(stream, norm_pieces<T, kThreads>, blocks(1), dim3(kThreads), 0, p, "rms_norm");
    }
  });
}

}  // namespace headrace::cuda
