// Which calls long clusters take.
#include "headrace/kernels/cuda/paged_attention_long_cluster.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kLeastPage = 16;  // slots: the keys of a warp lie in one page

bool fits(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  const bool fast = stream.arch == 90 && shape.determinism == Determinism::kFast;
  const bool all_keys = p.window == kNoWindow && !p.encoder;
  const bool dim = p.head_dim == p.v_head_dim && (p.head_dim == 64 || p.head_dim == 128 || p.head_dim == 256);
  const bool rows = shape.tiles16 == 1 && shape.max_rows <= kMostLongRows;
  return fast && all_keys && dim && rows && p.page_size >= kLeastPage && p.key_type != DType::kE4M3 && fits_mma(p);
}

// What the parts leave takes of the stream's scratch. False where there is not enough.
bool place_parts(LongClusterCall& call, int blocks, const Stream& stream) {
  const AttentionParams& p = call.p;
  const int64_t elements = int64_t{p.kv_heads} * call.parts * kMostLongRows * p.head_dim / 4, each = 4 + 2;
  call.values = static_cast<float*>(stream.scratch);
  call.states = call.values + elements * 4;
  call.done = stream.counters + 2;  // behind those of the Hopper kernel's queue
  return elements * each * int64_t{sizeof(float)} <= static_cast<int64_t>(stream.scratch_bytes) &&
         int64_t{p.kv_heads} * blocks + 2 <= Stream::kCounters;
}

}  // namespace

bool paged_attention_long_cluster(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (!fits(p, shape, stream)) return false;
  const bool bf16 = p.q_type == DType::kBF16;
  const int blocks = long_cluster_blocks(p.kv_heads);
  const int room = (bf16 ? room_for_long_clusters<__nv_bfloat16> : room_for_long_clusters<__half>)(p.head_dim, blocks);
  LongClusterCall call{.p = p, .parts = long_cluster_parts(p.kv_heads, room, stream.num_sms)};
  if (call.parts == 0 || !place_parts(call, blocks, stream)) return false;
  (bf16 ? attend_long_cluster_of<__nv_bfloat16> : attend_long_cluster_of<__half>)(call, blocks, stream);
  return true;
}

}  // namespace headrace::cuda
