#include "headrace/kernels/cuda/paged_attention_sm90.cuh"

namespace headrace::cuda {
namespace {

template <class T>
void attend_codes_of(const AttentionCall& call, int dim, const Stream& stream) {
  if (dim == 128) {
    launch_sm90<Sm90Shape<T, 128, 1, 1, 1, PoolHolds::kCodes>>(call, stream);
  } else {
    launch_sm90<Sm90Shape<T, 256, 1, 1, 1, PoolHolds::kCodes>>(call, stream);
  }
}

}  // namespace

void attend_sm90_codes(const AttentionCall& call, int dim, const Stream& stream) {
  if (call.p.q_type == DType::kBF16) {
    attend_codes_of<__nv_bfloat16>(call, dim, stream);
  } else {
    attend_codes_of<__half>(call, dim, stream);
  }
}

}  // namespace headrace::cuda
