// Which calls have a warp for each request and kv head, and their launch.
#include "headrace/kernels/cuda/attention/attention_maps.h"
#include "headrace/kernels/cuda/attention/short/paged_attention_short.cuh"

namespace headrace::cuda {
namespace {

// Strict bits want the Hopper kernel's tiles. Smaller ones leave more of shared memory to keys that are under way.
template <class T>
using StrictShape = ShortShape<T, tile_keys(128, 1), false>;
template <class T>
using FastShape = ShortShape<T, 64, true>;
template <int kTiles>
constexpr int kPieceKeys = ShortPieceShape<StrictShape<__half>, kTiles>::kKeys;

template <class S, int kTiles>
void launch_tiles(const ShortCall& call, const Stream& stream) {
  static const bool ready = [] {
    check_cuda(
        cudaFuncSetAttribute(attend_short<S, kTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
        "paged_attention: shared memory");
    return true;
  }();
  static_cast<void>(ready);
  const dim3 grid(static_cast<unsigned>((call.p.kv_heads + S::kWarps - 1) / S::kWarps),
                  static_cast<unsigned>(call.p.requests));
  launch_early(stream, attend_short<S, kTiles>, grid, dim3(S::kThreads), S::kSharedBytes, call, "paged_attention");
}

// One form for all requests of a launch: where some had 16 rows and some 32, the code of both took a multiprocessor
// longer than that of 32 alone.
template <class S>
void launch_short(const ShortCall& call, int max_rows, const Stream& stream) {
  (max_rows <= 16 ? launch_tiles<S, 1> : launch_tiles<S, 2>)(call, stream);
}

// Whatever the number of keys.
bool takes_rows(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (p.key_type == DType::kE4M3 || !fits_sm90(p, stream)) return false;
  const int dim = std::max(p.head_dim, p.v_head_dim);
  return taken_whole(shape.requests * p.kv_heads, shape.max_rows, dim, stream.num_sms);
}

}  // namespace

int shorter_keys(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  const int most = most_short_keys(shape.max_rows, shape.determinism);
  return shape.seen_keys > most && takes_rows(p, shape, stream) ? most : 0;
}

bool paged_attention_short(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (shape.seen_keys > most_short_keys(shape.max_rows, shape.determinism) || !takes_rows(p, shape, stream))
    return false;
  const auto maps = [&](int keys) {
    return KVMaps{.k = column_map_of(p, p.k, p.head_dim, keys), .v = column_map_of(p, p.v, p.v_head_dim, keys)};
  };
  static_assert(kPieceKeys<2> == kRunPiece);
  const bool runs = shape.determinism == Determinism::kFast && p.window == kNoWindow && p.cap == 0 && !p.encoder &&
                    p.head_dim == 128 && p.v_head_dim == 128 && p.page_size >= kRunPiece;
  const ShortCall call{p, {maps(kPieceKeys<1>), maps(kPieceKeys<2>)}, runs};
  const bool bf16 = p.q_type == DType::kBF16;
  if (shape.determinism == Determinism::kStrict) {
    (bf16 ? launch_short<StrictShape<__nv_bfloat16>> : launch_short<StrictShape<__half>>)(call, shape.max_rows, stream);
  } else {
    (bf16 ? launch_short<FastShape<__nv_bfloat16>> : launch_short<FastShape<__half>>)(call, shape.max_rows, stream);
  }
  return true;
}

}  // namespace headrace::cuda
