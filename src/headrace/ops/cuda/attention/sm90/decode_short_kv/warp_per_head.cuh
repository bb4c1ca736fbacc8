// Launch of warp-per-head decode (short_kv.cuh).
#pragma once
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv.cuh"

namespace headrace::cuda {

// Smaller tiles than batch-invariant mode's leave more shared memory to keys in flight.
template <class T>
using FastShape = ShortShape<T, 128, 64, true>;

template <class S, int kTiles>
void launch_tiles(const ShortCall& call, const Stream& stream) {
  const dim3 grid(static_cast<unsigned>((call.p.kv_heads + S::kWarps - 1) / S::kWarps),
                  static_cast<unsigned>(call.p.requests));
  launch_pdl(stream, attend_short<S, kTiles>, grid, dim3(S::kThreads), S::kSharedBytes, call, "paged_attention");
}

// One kernel serves all requests of a launch. Separate code for requests of 16 and of 32 rows took longer on an SM than
// that of 32 alone.
template <class S>
void launch_short(const ShortCall& call, const AttentionShape& shape, const Stream& stream) {
  (shape.max_rows <= 16 ? launch_tiles<S, 1> : launch_tiles<S, 2>)(call, stream);
}

template <class T>
void warp_per_head_of(const ShortCall& call, const AttentionShape& shape, const Stream& stream) {
  const bool strict = shape.determinism == Determinism::kStrict;
  (strict ? launch_short<StrictShape<T, 128>> : launch_short<FastShape<T>>)(call, shape, stream);
}

}  // namespace headrace::cuda
