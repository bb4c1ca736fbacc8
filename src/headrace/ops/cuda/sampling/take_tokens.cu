// One thread per id.
#include "headrace/ops/take_tokens.h"

#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;

struct Params {
  int64_t count;
  int32_t* ids;
  const int32_t *tokens, *from;
};

__global__ void __launch_bounds__(kThreads) take(const __grid_constant__ Params p) {
  pdl_launch_dependents();
  pdl_wait();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const int32_t from = p.from[i];
  if (from >= 0) p.ids[i] = p.tokens[from];
}

}  // namespace

void take_tokens(const TakeTokensArgs& a, const OpContext& context) {
  check(a);
  if (a.ids.numel() == 0) return;
  const Params p{.count = a.ids.numel(),
                 .ids = static_cast<int32_t*>(a.ids.data()),
                 .tokens = static_cast<const int32_t*>(a.tokens.data()),
                 .from = static_cast<const int32_t*>(a.from.data())};
  const auto blocks = static_cast<unsigned>((p.count + kThreads - 1) / kThreads);
  launch_pdl(stream_of(context), take, dim3(blocks), dim3(kThreads), 0, p, "take_tokens");
}

}  // namespace headrace::cuda
