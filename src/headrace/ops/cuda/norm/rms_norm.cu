// RMS norm of rows. A row's sum is a fixed tree over its threads, so its bits depend on the row only. Rows up to
// kLongestOrderedNorm use the order of the GEMM sequence that norms its x (gemm_sequence_input.cuh). There 128 threads
// take consecutive Vec8 in turns; shorter rows give the sums that idle threads would leave.
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/limits.h"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256, kMostLanes = 128;
constexpr int most_pieces(DType type) { return type == DType::kF32 ? 8 : 16; }  // Vec8 per thread, in registers
static_assert(kLongestOrderedNorm == kMostLanes * kVec8 * most_pieces(DType::kBF16));

struct Params {
  Rows x, gate, out;
  const void* weight;
  DType weight_type;
  bool weight_in_pieces;  // weights have x's dtype and are aligned: Vec8 loads
  uint32_t num_rows, heads;
  int64_t dim;
  float eps, weight_offset;
};

// One CTA per row, for any dtype and alignment.
__global__ void __launch_bounds__(kThreads) norm_rows(const __grid_constant__ Params p) {
  __shared__ float partial[kThreads / 32];
  pdl_launch_dependents();
  pdl_wait();
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

// Loads eight weights of any dtype.
template <class T>
__device__ inline Vec8<T> weight_of_any_type(const Params& p, int d) {
  Vec8<T> weight;
#pragma unroll
  for (int j = 0; j < kVec8; ++j) weight.v[j] = load(p.weight, p.weight_type, d + j);
  return weight;
}

template <int kLanes>
__device__ inline float sum_of_lanes(float x) {
#pragma unroll
  for (int distance = (kLanes < 32 ? kLanes : 32) / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  return x;
}

// Returns the sum of squares of a row, in all of its kLanes threads. `last` is the offset of the row's last Vec8.
template <int kLanes, class T, int kPieces>
__device__ inline float sum_of_squares(const RawVec8<T> (&x)[kPieces], int last, float* partial) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if ((i * kLanes + static_cast<int>(threadIdx.x) % kLanes) * kVec8 > last) continue;
    const Vec8<T> piece = x[i].piece();
#pragma unroll
    for (const float v : piece.v) sum = fmaf(v, v, sum);
  }
  sum = sum_of_lanes<kLanes>(sum);
  if constexpr (kLanes > 32) {
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    partial += threadIdx.x / kLanes * (kLanes / 32);
    sum = 0;
#pragma unroll
    for (int w = 0; w < kLanes / 32; ++w) sum += partial[w];
  }
  return sum;
}

// kPlain: weight of x's dtype and no gate; kAny: all other cases. They are separate kernels because kAny's code would
// lie between kPlain's instructions, and in a model's step a kernel's instructions are always fetched cold.
enum class NormForm : uint8_t { kPlain, kAny };

// kLanes threads per row: half a warp, a warp or four warps. Each thread keeps its Vec8 of the row and of the weight in
// registers. The weight is loaded before pdl_wait(). No load depends on another.
template <class T, int kLanes, int kPieces, NormForm kForm>
__global__ void __launch_bounds__(kThreads) norm_pieces(const __grid_constant__ Params p) {
  __shared__ float partial[kThreads / 32];
  const int lane = threadIdx.x % kLanes, last = static_cast<int>(p.dim) - kVec8;
  const bool early = kForm == NormForm::kPlain || p.weight_in_pieces;
  RawVec8<T> weight[kPieces], x[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int d = min((i * kLanes + lane) * kVec8, last);
    if (early) weight[i] = RawVec8<T>::load_constant(static_cast<const T*>(p.weight) + d);
  }
  pdl_launch_dependents();
  pdl_wait();
  const uint32_t row = blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes;
  const bool inside = row < p.num_rows;  // the others take part in their warp's sums
  const uint32_t token = inside ? row / p.heads : 0, head = inside ? row - token * p.heads : 0;
  const T* from = row_of<T>(p.x, token, head);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) x[i] = RawVec8<T>::load(from + min((i * kLanes + lane) * kVec8, last));
  const float sum = sum_of_squares<kLanes>(x, last, partial);
  if (!inside) return;
  const float scale = rsqrtf(sum / static_cast<float>(p.dim) + p.eps);
  T* to = row_of<T>(p.out, token, head);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int d = (i * kLanes + lane) * kVec8;
    if (d > last) break;
    Vec8<T> y = x[i].piece();
    const Vec8<T> by = early ? weight[i].piece() : weight_of_any_type<T>(p, d);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) y.v[j] *= scale * (by.v[j] + p.weight_offset);
    if (kForm == NormForm::kAny && p.gate.data != nullptr) {
      const Vec8<T> gate = Vec8<T>::load(row_of<T>(p.gate, token, head) + d);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) y.v[j] *= silu_of<T>(gate.v[j]);
    }
    y.store_global(to + d);
  }
}

template <class T, int kLanes, int kPieces>
void launch_pieces(const Stream& stream, const Params& p) {
  const bool plain = p.weight_in_pieces && p.gate.data == nullptr;
  constexpr uint32_t kRows = kThreads / kLanes;
  launch_pdl(
      stream,
      plain ? norm_pieces<T, kLanes, kPieces, NormForm::kPlain> : norm_pieces<T, kLanes, kPieces, NormForm::kAny>,
      dim3((p.num_rows + kRows - 1) / kRows), dim3(kThreads), 0, p, "rms_norm");
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
                 .weight_in_pieces = a.weight.dtype() == a.x.dtype() && is_vec8(a.weight),
                 .num_rows = static_cast<uint32_t>(a.x.dim(0) * heads),
                 .heads = static_cast<uint32_t>(heads),
                 .dim = a.x.dim(a.x.rank() - 1),
                 .eps = a.eps,
                 .weight_offset = a.weight_form == WeightForm::kPlusOne ? 1.0f : 0.0f};
  const bool pieces = is_vec8(a.x) && is_vec8(a.out) && (!a.gate || is_vec8(a.gate)) &&
                      p.dim <= int64_t{kMostLanes} * kVec8 * most_pieces(a.x.dtype());
  if (!pieces) return launch_pdl(stream, norm_rows, dim3(p.num_rows), dim3(kThreads), 0, p, "rms_norm");
  for_type(a.x.dtype(), [&]<class T>(T) {
    if (p.dim <= 16 * kVec8) {
      launch_pieces<T, 16, 1>(stream, p);
    } else if (p.dim <= 32 * kVec8) {
      launch_pieces<T, 32, 1>(stream, p);
    } else if (p.dim <= kMostLanes * kVec8) {
      launch_pieces<T, kMostLanes, 1>(stream, p);
    } else if (p.dim <= kMostLanes * kVec8 * 4) {
      launch_pieces<T, kMostLanes, 4>(stream, p);
    } else {
      launch_pieces<T, kMostLanes, sizeof(T) == 4 ? most_pieces(DType::kF32) : most_pieces(DType::kBF16)>(stream, p);
    }
  });
}

}  // namespace headrace::cuda
