// One thread per bias.
#include "headrace/ops/bias_tokens.h"

#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;

struct Params {
  float* logits;
  int64_t stride, count;
  const int32_t *rows, *ids;
  const float* biases;
};

__global__ void __launch_bounds__(kThreads) add_biases(const __grid_constant__ Params p) {
  pdl_launch_dependents();
  pdl_wait();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < p.count) p.logits[p.rows[i] * p.stride + p.ids[i]] += p.biases[i];
}

}  // namespace

void bias_tokens(const BiasTokensArgs& a, const OpContext& context) {
  check(a);
  if (a.ids.numel() == 0) return;
  const Params p{.logits = static_cast<float*>(a.logits.data()),
                 .stride = a.logits.stride(0),
                 .count = a.ids.numel(),
                 .rows = static_cast<const int32_t*>(a.rows.data()),
                 .ids = static_cast<const int32_t*>(a.ids.data()),
                 .biases = static_cast<const float*>(a.biases.data())};
  const auto blocks = static_cast<unsigned>((p.count + kThreads - 1) / kThreads);
  launch_pdl(stream_of(context), add_biases, dim3(blocks), dim3(kThreads), 0, p, "bias_tokens",
             {.share = SharedShare::kAll});  // as token_confidence, which follows
}

}  // namespace headrace::cuda
