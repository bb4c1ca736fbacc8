#include "headrace/kernels/cuda/element.cuh"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;

struct Params {
  Rows x, gate, out;
  const void* weight;
  DType weight_type;
  int64_t heads, dim;
  float eps, weight_offset;
};

// One block for one row; the sum is a fixed tree over threads, so its bits depend on the row alone.
__global__ void __launch_bounds__(kThreads) norm_rows(Params p) {
  __shared__ float partial[kThreads / 32];
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

}  // namespace

void rms_norm(const RMSNormArgs& a, const OpContext& context) {
  check(a);
  if (a.out.numel() == 0) return;
  const int64_t heads = a.x.rank() == 3 ? a.x.dim(1) : 1;
  const Params params{.x = Rows(a.x),
                      .gate = Rows(a.gate),
                      .out = Rows(a.out),
                      .weight = a.weight.data(),
                      .weight_type = a.weight.dtype(),
                      .heads = heads,
                      .dim = a.x.dim(a.x.rank() - 1),
                      .eps = a.eps,
                      .weight_offset = a.weight_form == WeightForm::kPlusOne ? 1.0f : 0.0f};
  norm_rows<<<static_cast<unsigned>(a.x.dim(0) * heads), kThreads, 0, stream_of(context).handle>>>(params);
  check_launch("rms_norm");
}

}  // namespace headrace::cuda
