// Which calls have a warp for each request and kv head, and their launch.
#include "headrace/kernels/cuda/attention_maps.h"
#include "headrace/kernels/cuda/paged_attention_short.cuh"

namespace headrace::cuda {
namespace {

template <class S>
void launch_short(const ShortCall& call, const Stream& stream) {
  static const bool ready = [] {
    check_cuda(cudaFuncSetAttribute(attend_short<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
               "paged_attention: shared memory");
    return true;
  }();
  static_cast<void>(ready);
  const dim3 grid(static_cast<unsigned>((call.p.kv_heads + S::kWarps - 1) / S::kWarps),
                  static_cast<unsigned>(call.p.requests));
  launch_early(stream, attend_short<S>, grid, dim3(S::kThreads), S::kSharedBytes, call, "paged_attention");
}

}  // namespace

bool paged_attention_short(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (shape.determinism == Determinism::kStrict || p.key_type == DType::kE4M3 || !fits_sm90(p, stream)) return false;
  const int dim = std::max(p.head_dim, p.v_head_dim);
  const int64_t pieces = int64_t{p.requests} * p.kv_heads;
  if (!taken_whole(pieces, shape.max_rows, shape.seen_keys, dim, stream.num_sms)) return false;
  using BF16Shape = ShortShape<__nv_bfloat16>;
  const KVMaps maps{.k = map_of(p, p.k, p.head_dim, BF16Shape::kDim, BF16Shape::kKeys),
                    .v = map_of(p, p.v, p.v_head_dim, BF16Shape::kDim, BF16Shape::kKeys)};
  const auto launch = p.q_type == DType::kBF16 ? launch_short<BF16Shape> : launch_short<ShortShape<__half>>;
  launch({p, maps}, stream);
  return true;
}

}  // namespace headrace::cuda
