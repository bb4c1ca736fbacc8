// Tensor maps and instance of warp-per-head and CTA-per-head decode.
#include "headrace/ops/cuda/attention/paged_attention.h"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv.cuh"
#include "headrace/ops/cuda/attention/sm90/kv_tensor_maps.h"

namespace headrace::cuda {
namespace {

template <int kTiles>
constexpr int kSliceKeys = ShortSliceShape<StrictShape<__half, 128>, kTiles>::kKeys;
static_assert(kSliceKeys<2> == kContiguousSlice);

template <class T>
void launch_of(const ShortCall& call, const AttentionShape& shape, ShortKVSchedule schedule, const Stream& stream) {
  (schedule == ShortKVSchedule::kWarpPerHead ? warp_per_head_of<T> : cta_per_head_of<T>)(call, shape, stream);
}

}  // namespace

void short_kv_decode(const AttentionParams& p, const AttentionShape& shape, const AttentionConfig& config,
                     const Stream& stream) {
  const auto maps = [&](int keys) {
    return KVMaps{.k = column_map_of(p, p.k, p.head_dim, keys), .v = column_map_of(p, p.v, p.v_head_dim, keys)};
  };
  const ShortCall call{.p = p,
                       .maps = {maps(kSliceKeys<1>), maps(kSliceKeys<2>)},
                       .contiguous = config.contiguous && p.head_dim % 128 == 0};
  const auto launch = p.q_type == DType::kBF16 ? launch_of<__nv_bfloat16> : launch_of<__half>;
  launch(call, shape, config.schedule, stream);
}

}  // namespace headrace::cuda
