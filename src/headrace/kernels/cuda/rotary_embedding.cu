#include "headrace/kernels/cuda/element.cuh"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

// The angle is a float32 product, as in the models' own code; its sine and cosine are the accurate ones, since angles
// reach the length of the context.
__global__ void rotate(Rows x, const int32_t* positions, const float* inv_freq, int64_t half, float magnitude) {
  const int64_t token = blockIdx.x, head = blockIdx.y;
  for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
    float sine, cosine;
    sincosf(static_cast<float>(positions[token]) * inv_freq[i], &sine, &cosine);
    sine *= magnitude, cosine *= magnitude;
    const float a = x.get(token, head, i), b = x.get(token, head, i + half);
    x.set(token, head, i, a * cosine - b * sine);
    x.set(token, head, i + half, b * cosine + a * sine);
  }
}

}  // namespace

void rotary_embedding(const RotaryEmbeddingArgs& a, const OpContext& context) {
  check(a);
  if (a.x.numel() == 0) return;
  const dim3 grid(static_cast<unsigned>(a.x.dim(0)), static_cast<unsigned>(a.x.dim(1)));
  rotate<<<grid, 64, 0, stream_of(context).handle>>>(Rows(a.x), static_cast<const int32_t*>(a.positions.data()),
                                                     static_cast<const float*>(a.inv_freq.data()), a.inv_freq.dim(0),
                                                     a.magnitude);
  check_launch("rotary_embedding");
}

}  // namespace headrace::cuda
