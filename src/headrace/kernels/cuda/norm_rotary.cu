// Norms of query and key heads and their rotation, in one pass: a head is 16 or 32 lanes of eight elements. The sums
// are those of rms_norm's kernel for rows of this length, so the bits are too.
#include "headrace/kernels/cuda/launch.cuh"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/rotation.cuh"
#include "headrace/kernels/cuda/vector.cuh"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;

struct Params {
  Rows q, k;
  const void *q_weight, *k_weight;  // null: no norm
  DType weight_type;
  bool weight_in_pieces;  // of q's type and aligned
  const int32_t* positions;
  const float* inv_freq;
  int tokens, q_heads, k_heads, dim, half;
  float eps, weight_offset, magnitude;
  bool shared_angles;  // heads of 128 that turn whole: the two of a warp are of one token
};

template <class T, int kLanes>
struct Head {
  const Params& p;
  int lane;

  __device__ int first() const { return lane * kPiece; }
  __device__ bool any() const { return first() < p.dim; }

  // Of any type; read when the rows are there.
  __device__ Piece<T> weight_of(const void* weights) const {
    Piece<T> weight{};
    if (any()) {
#pragma unroll
      for (int j = 0; j < kPiece; ++j) weight.v[j] = load(weights, p.weight_type, first() + j);
    }
    return weight;
  }
  __device__ void norm(Piece<T>& x, const Piece<T>& weight) const {
    float sum = 0;
#pragma unroll
    for (const float v : x.v) sum = fmaf(v, v, sum);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    const float scale = rsqrtf(sum / static_cast<float>(p.dim) + p.eps);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) x.v[j] = rounded(x.v[j] * (scale * (weight.v[j] + p.weight_offset)));
  }
  // The lane's angles of a position, as far as it turns; constant is what of them is.
  __device__ bool is_first() const { return lane < p.half / kPiece; }
  __device__ bool turns() const { return lane < 2 * (p.half / kPiece); }
  __device__ void load_frequencies(float (&frequency)[kPiece]) const {
    const int place = threadIdx.x % 32;
    if (p.shared_angles) {  // those that this lane finds for four
      frequency[0] = p.inv_freq[place % 8 * kPiece + place / 8 * 2];
      frequency[1] = p.inv_freq[place % 8 * kPiece + place / 8 * 2 + 1];
    } else if (turns()) {
#pragma unroll
      for (int j = 0; j < kPiece; ++j) frequency[j] = p.inv_freq[first() - (is_first() ? 0 : p.half) + j];
    }
  }
  __device__ void find_rotations(int position, const float (&frequency)[kPiece], Rotation (&rotations)[kPiece]) const {
    if (p.shared_angles) {
      share_rotations(position, frequency, rotations);
    } else if (turns()) {
#pragma unroll
      for (int j = 0; j < kPiece; ++j) rotations[j] = Rotation(position, frequency[j], p.magnitude);
    }
  }
  __device__ void rotate(Piece<T>& x, const Rotation (&rotations)[kPiece]) const {
    const int pieces = p.half / kPiece, place = threadIdx.x % 32;
    const int partner = !turns() ? place : is_first() ? place + pieces : place - pieces;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      const float other = __shfl_sync(0xffffffffu, x.v[j], partner);
      if (turns()) x.v[j] = is_first() ? rotations[j].first(x.v[j], other) : rotations[j].second(other, x.v[j]);
    }
  }
  // Four lanes of the warp turn by the same eight angles: each finds two. Sines and cosines are most of the work.
  __device__ void share_rotations(int position, const float (&frequency)[kPiece], Rotation (&rotations)[kPiece]) const {
    const int place = threadIdx.x % 32;
    const Rotation mine[2] = {Rotation(position, frequency[0], p.magnitude),
                              Rotation(position, frequency[1], p.magnitude)};
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      const int holder = j / 2 * 8 + place % 8;
      rotations[j].sine = __shfl_sync(0xffffffffu, mine[j % 2].sine, holder);
      rotations[j].cosine = __shfl_sync(0xffffffffu, mine[j % 2].cosine, holder);
    }
  }
  __device__ static float rounded(float x) { return static_cast<float>(static_cast<T>(x)); }
};

template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads) norm_rotate(const __grid_constant__ Params p) {
  const Head<T, kLanes> head{p, static_cast<int>(threadIdx.x) % kLanes};
  const uint32_t row = blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes,
                 heads = static_cast<uint32_t>(p.q_heads + p.k_heads);
  const int token = static_cast<int>(row / heads), number = static_cast<int>(row - row / heads * heads);
  const bool of_k = number >= p.q_heads,
             inside = token < p.tokens && head.any();  // others take part in the warp's sums
  const void* weights = of_k ? p.k_weight : p.q_weight;
  // As it lies in memory: nothing waits for it before it multiplies.
  RawPiece<T> raw_weight;
  if (p.weight_in_pieces)
    raw_weight = RawPiece<T>::load_constant(static_cast<const T*>(weights) + min(head.first(), p.dim - kPiece));
  float frequency[kPiece] = {};
  head.load_frequencies(frequency);
  let_next_start();
  wait_for_previous();
  const int position = inside ? p.positions[token] : 0;
  T* at = nullptr;
  Piece<T> x{};
  if (inside) {
    at = (of_k ? row_of<T>(p.k, token, number - p.q_heads) : row_of<T>(p.q, token, number)) + head.first();
    x = Piece<T>::load(at);
  }
  Rotation rotations[kPiece];
  head.find_rotations(position, frequency, rotations);  // while x comes
  if (p.weight_in_pieces) {
    head.norm(x, raw_weight.piece());
  } else if (weights != nullptr) {
    head.norm(x, head.weight_of(weights));
  }
  head.rotate(x, rotations);
  if (inside) x.store(at);
}

}  // namespace

void norm_rotary(const NormRotaryArgs& a, const OpContext& context) {
  check(a);
  if (a.q.dim(0) == 0) return;
  const Params p{.q = Rows(a.q),
                 .k = Rows(a.k),
                 .q_weight = a.q_weight.data(),
                 .k_weight = a.k_weight.data(),
                 .weight_type = a.q_weight ? a.q_weight.dtype() : DType::kF32,
                 .weight_in_pieces =
                     a.q_weight && a.q_weight.dtype() == a.q.dtype() && in_pieces(a.q_weight) && in_pieces(a.k_weight),
                 .positions = static_cast<const int32_t*>(a.positions.data()),
                 .inv_freq = static_cast<const float*>(a.inv_freq.data()),
                 .tokens = static_cast<int>(a.q.dim(0)),
                 .q_heads = static_cast<int>(a.q.dim(1)),
                 .k_heads = static_cast<int>(a.k.dim(1)),
                 .dim = static_cast<int>(a.q.dim(2)),
                 .half = static_cast<int>(a.inv_freq.dim(0)),
                 .eps = a.eps,
                 .weight_offset = a.weight_form == WeightForm::kPlusOne ? 1.0f : 0.0f,
                 .magnitude = a.magnitude,
                 .shared_angles = a.q.dim(2) == 16 * kPiece && a.inv_freq.dim(0) == 8 * kPiece &&
                                  (a.q.dim(1) + a.k.dim(1)) % 2 == 0};
  const bool one_dtype = !a.q_weight || a.q_weight.dtype() == a.k_weight.dtype();
  if (p.dim > 32 * kPiece || p.half % kPiece != 0 || !in_pieces(a.q) || !in_pieces(a.k) || !one_dtype) {
    struct {
      void (*rms_norm)(const RMSNormArgs&, const OpContext&);
      void (*rotary_embedding)(const RotaryEmbeddingArgs&, const OpContext&);
    } const ops{rms_norm, rotary_embedding};
    return norm_rotary_apart(ops, a, context);
  }
  const int64_t rows = int64_t{p.tokens} * (p.q_heads + p.k_heads);
  const auto blocks = [rows](int64_t each) { return dim3(static_cast<unsigned>((rows + each - 1) / each)); };
  for_type(a.q.dtype(), [&]<class T>(T) {
    if (p.dim <= 16 * kPiece) {
      launch_early(stream_of(context), norm_rotate<T, 16>, blocks(kThreads / 16), dim3(kThreads), 0, p, "norm_rotary");
    } else {
      launch_early(stream_of(context), norm_rotate<T, 32>, blocks(kThreads / 32), dim3(kThreads), 0, p, "norm_rotary");
    }
  });
}

}  // namespace headrace::cuda
