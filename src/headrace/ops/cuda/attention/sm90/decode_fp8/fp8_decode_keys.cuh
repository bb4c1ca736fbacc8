// Keys of a KV tile in FP8 decode, and which of them rows see.
#pragma once
#include "headrace/ops/cuda/attention/sm90/decode_fp8/fp8_decode_traits.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_mask.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Returns the first position of part `part` of list tile `i`.
template <class S>
__device__ inline int fp8_decode_position(const Work& work, int i, int part) {
  return work.tiles.tile(i) * S::kKeys + part * S::kPartKeys;
}
__device__ inline bool fp8_decode_any(const Work& work) { return work.request >= 0 && work.slot != Work::kNothing; }

// Code that the loop over tiles seldom needs is out of line, so that the loop's own code is short.

// The TMA box of list entry `i` that begins `box` keys behind the tile's first. `entry`: index of its page number in
// the page table, or -1 if the box is not loaded. `slot`: its first slot.
struct Fp8DecodeBox {
  int entry = -1, slot = 0;
};
template <class S>
__device__ __noinline__ Fp8DecodeBox fp8_decode_box(const AttentionParams& p, const Work& work, int i, int box) {
  Fp8DecodeBox found;
  if (!fp8_decode_any(work) || i >= work.end) return found;
  const KeyAxis axis(p, work.span);
  const BlockKeys keys(p, axis, work.top, work.bottom);
  const int begin = work.tiles.tile(i) * S::kKeys + box, end = begin + min(p.page_size, S::kKeys);
  const bool with_cached = work.tiles.holds_cached(i);
  if (!keys.sees_cached(begin, end, with_cached) &&
      (p.k_new.data != nullptr || !keys.sees_fresh(begin, end, with_cached)))
    return found;
  found.entry = static_cast<int>(axis.page_row * p.table_stride) + (begin >> p.page_shift);
  found.slot = begin & (p.page_size - 1);
  return found;
}
// Returns true if no key of a tile is new. Cached keys were stored before the batch's first kernel (DeviceMetadata).
template <class S>
__device__ __noinline__ bool fp8_decode_cached(const AttentionParams& p, const Work& work, int i) {
  const KeyAxis axis(p, work.span);
  const BlockKeys keys(p, axis, work.top, work.bottom);
  const int begin = fp8_decode_position<S>(work, i, 0);
  return !p.encoder &&
         (p.k_new.data != nullptr || !keys.sees_fresh(begin, begin + S::kKeys, work.tiles.holds_cached(i)));
}
// Fills a part of a tile that some row does not see whole. It writes new keys or values that the pool does not hold,
// quantised as the pool would. It writes zeros for values that no row sees, because their memory may hold NaN. `to`:
// the part's memory; `first`: its first key.
template <class S>
__device__ __noinline__ void fill_fp8_decode(const AttentionParams& p, const Work& work, int i, int first, char* to,
                                             bool values) {
  using T = typename S::T;
  constexpr uint32_t kLanes = 0xffffffffu >> (32 - S::kPartKeys);
  if (!values && p.k_new.data == nullptr) return;
  const KeyAxis axis(p, work.span);
  const BlockKeys keys(p, axis, work.top, work.bottom);
  const int lane = threadIdx.x % 32, mine = first + lane % S::kPartKeys;
  const bool with_cached = work.tiles.holds_cached(i), is_new = keys.sees_fresh(mine, mine + 1, with_cached);
  const unsigned hidden =
      __ballot_sync(0xffffffffu, values && !is_new && !keys.sees_cached(mine, mine + 1, with_cached));
  const unsigned fresh = __ballot_sync(0xffffffffu, is_new && p.k_new.data != nullptr) & kLanes;
#pragma unroll
  for (int r = lane / 8; r < S::kPartKeys; r += 4) {  // eight lanes write a row of a column
    if ((hidden >> r & 1) == 0) continue;
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c)
      *reinterpret_cast<uint4*>(to + c * S::kColumnBytes + r * 128 + lane % 8 * 16) = uint4{};
  }
  const PagedSide& side = values ? p.v_new : p.k_new;
  const int dim = values ? p.v_head_dim : p.head_dim;
  for (unsigned left = fresh; left != 0; left &= left - 1) {
    const int r = __ffs(static_cast<int>(left)) - 1;
    for (int d = lane * 4; d < S::kDim; d += 128) {
      uint32_t codes = 0;
      if (d < dim) {
        const int64_t from = int64_t{work.span.q_off + first + r - work.span.phys0} * side.page_stride +
                             work.kv_head * side.head_stride + d;
        const uint2 x = *reinterpret_cast<const uint2*>(static_cast<const T*>(side.data) + from);
        const float2 low = unpack2<T>(x.x), high = unpack2<T>(x.y);
        const float by = values ? p.v_scale : p.k_scale;
        codes = floats_to_e4m3(low.x, low.y, by) | floats_to_e4m3(high.x, high.y, by) << 16;
      }
      *reinterpret_cast<uint32_t*>(to + d / 128 * S::kColumnBytes + r * 128 + ((lane / 4) ^ (r & 7)) * 16 +
                                   lane % 4 * 4) = codes;
    }
  }
  fence_for_wgmma();  // for TMA, which writes there next
  __syncwarp();
}
// Returns which of a lane's keys in such a tile rows 2 t and 2 t + 1, counted from `row0`, see. The lane has one key in
// each eight from `first` on, hence every other bit.
template <class S>
__device__ __noinline__ uint2 fp8_decode_seen(const AttentionParams& p, const Work& work, int i, int first, int row0) {
  const KeyAxis axis(p, work.span);
  const BlockKeys keys(p, axis, work.top, work.bottom);
  const PackedRows packed(p.heads / p.kv_heads);
  const int row = row0 + threadIdx.x % 4 * 2;
  const auto seen = [&](int by) {
    return seen_bits(p, axis, axis.row(p, packed.token(min(by, work.rows - 1))), keys.shift, first,
                     work.tiles.holds_cached(i));
  };
  return {seen(row), seen(row + 1)};
}
template <class S>
__device__ __noinline__ PlainRun fp8_decode_plain(const AttentionParams& p, const Work& work) {
  return plain_run<S>(p, work);
}

#endif

}  // namespace headrace::cuda
