// Conditions and launch of warp-per-head and CTA-per-head decode.
#include <algorithm>

#include "headrace/ops/cuda/attention/paged_attention.h"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv.cuh"
#include "headrace/ops/cuda/attention/sm90/kv_tensor_maps.h"

namespace headrace::cuda {
namespace {

template <int kTiles>
constexpr int kPieceKeys = ShortPieceShape<StrictShape<__half, 128>, kTiles>::kKeys;

template <class T>
void launch_of(const ShortCall& call, const AttentionShape& shape, bool alone, const Stream& stream) {
  (alone ? warp_per_head_of<T> : cta_per_head_of<T>)(call, shape, stream);
}

// Returns true if the contiguous-KV fast path may support requests: whole slices, and K and V heads of one size.
bool may_run(const AttentionParams& p) {
  return p.window == kNoWindow && p.cap == 0 && !p.encoder && p.head_dim == p.v_head_dim && p.page_size >= kRunPiece;
}

// Returns the plan of a call, for any number of keys.
ShortPlan plan_of(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (p.key_type == DType::kE4M3 || !fits_sm90(p, stream)) return {};
  ShortPlan plan = plan_short({.pieces = shape.requests * p.kv_heads,
                               .max_rows = shape.max_rows,
                               .dim = std::max(p.head_dim, p.v_head_dim),
                               .strict = shape.determinism == Determinism::kStrict,
                               .runs = may_run(p)},
                              stream.num_sms);
  plan.shared_keys = std::min(plan.shared_keys, 32 * p.page_size);  // each lane has one page number
  return plan;
}

}  // namespace

int shorter_keys(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  const int keys = plan_of(p, shape, stream).recorded_keys();
  return shape.seen_keys > keys ? keys : 0;
}

bool short_kv_attention(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  const ShortPlan plan = plan_of(p, shape, stream);
  const int keys = std::max(shape.seen_keys, 1);
  const bool alone = keys <= plan.alone_keys;
  if (!alone && keys > plan.shared_keys) return false;
  const auto maps = [&](int keys) {
    return KVMaps{.k = column_map_of(p, p.k, p.head_dim, keys), .v = column_map_of(p, p.v, p.v_head_dim, keys)};
  };
  static_assert(kPieceKeys<2> == kRunPiece);
  const bool runs = may_run(p) && p.head_dim % 128 == 0;
  const ShortCall call{p, {maps(kPieceKeys<1>), maps(kPieceKeys<2>)}, runs};
  (p.q_type == DType::kBF16 ? launch_of<__nv_bfloat16> : launch_of<__half>)(call, shape, alone, stream);
  return true;
}

}  // namespace headrace::cuda
