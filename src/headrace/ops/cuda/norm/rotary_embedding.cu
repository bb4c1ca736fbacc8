// Rotary embedding: rotates the pairs (i, i + half) of each head.
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/norm/rotation.cuh"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;

struct Params {
  Rows x;
  const int32_t* positions;
  const float* inv_freq;
  int tokens, heads, half;
  float magnitude;
  RotarySections sections;  // used if positions have axes
  int64_t axis_stride;

  __device__ void rotate_pair(int position, int i, float& a, float& b) const {
    const Rotation rotation(position, inv_freq[i], magnitude);
    const float first = a;
    a = rotation.first(first, b);
    b = rotation.second(first, b);
  }
};

// Positions of a token, per pair.
template <bool kHasAxes>
struct Position {
  int of_token;
  __device__ Position(const Params& p, int64_t token) : of_token(p.positions[token]) {}
  __device__ int of(const Params&, int) const { return of_token; }
};
template <>
struct Position<true> {
  int t, h, w;
  __device__ Position(const Params& p, int64_t token)
      : t(p.positions[token]), h(p.positions[p.axis_stride + token]), w(p.positions[2 * p.axis_stride + token]) {}
  __device__ int of(const Params& p, int pair) const {
    const int axis = p.sections.axis_of(pair);
    return axis == 0 ? t : axis == 1 ? h : w;
  }
};

// A thread rotates Access::kWidth pairs.
template <class Access, bool kHasAxes>
__global__ void __launch_bounds__(kThreads) rotate(const __grid_constant__ Params p) {
  pdl_launch_dependents();
  pdl_wait();
  const int vecs = p.half / Access::kWidth;
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = at / vecs;
  if (row >= int64_t{p.tokens} * p.heads) return;
  const int64_t token = row / p.heads, head = row % p.heads;
  const int first = static_cast<int>(at % vecs) * Access::kWidth;
  const Position<kHasAxes> position(p, token);
  auto a = Access::load(p.x, token, head, first), b = Access::load(p.x, token, head, first + p.half);
#pragma unroll
  for (int i = 0; i < Access::kWidth; ++i) p.rotate_pair(position.of(p, first + i), first + i, a.v[i], b.v[i]);
  Access::store(a, p.x, token, head, first);
  Access::store(b, p.x, token, head, first + p.half);
}

}  // namespace

void rotary_embedding(const RotaryEmbeddingArgs& a, const OpContext& context) {
  check(a);
  if (a.x.numel() == 0) return;
  const Stream& stream = stream_of(context);
  const Params p{.x = Rows(a.x),
                 .positions = static_cast<const int32_t*>(a.positions.data()),
                 .inv_freq = static_cast<const float*>(a.inv_freq.data()),
                 .tokens = static_cast<int>(a.x.dim(0)),
                 .heads = static_cast<int>(a.x.dim(1)),
                 .half = static_cast<int>(a.inv_freq.dim(0)),
                 .magnitude = a.magnitude,
                 .sections = a.sections.value_or(RotarySections{}),
                 .axis_stride = a.has_axes() ? a.positions.stride(0) : 0};
  for_access(p.half % kVec8 == 0 && is_vec8(a.x), a.x.dtype(), [&]<class Access>(Access) {
    const int64_t threads = int64_t{p.tokens} * p.heads * (p.half / Access::kWidth);
    launch_pdl(stream, a.has_axes() ? rotate<Access, true> : rotate<Access, false>,
               dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)), dim3(kThreads), 0, p,
               "rotary_embedding");
  });
}

}  // namespace headrace::cuda
