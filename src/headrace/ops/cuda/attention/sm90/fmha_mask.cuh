// Masking in a Hopper attention CTA: which keys of a tile rows see, and what becomes of the others.
#pragma once
#include "headrace/ops/cuda/arch/wgmma_mma.cuh"
#include "headrace/ops/cuda/attention/common/soft_cap.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_warpgroup.cuh"
#include "headrace/ops/cuda/attention/sm90/row_factors.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Mask of a KV tile: the keys that this thread's two rows see, and that all rows of the work tile see. It is rebuilt
// for every tile that is not seen whole: kept, it would push the accumulators out of registers.
template <class S>
struct Sight {
  const Work& work;
  KeyAxis axis;
  BlockKeys keys;
  KeyAxis::Row rows[2];

  __device__ Sight(const Warpgroup<S>& me, const Work& of)
      : work(read_anew(of)), axis(me.p, work.span), keys(me.p, axis, work.top, work.bottom) {
    const int last = min(work.row0 + S::kRows, work.rows) - 1;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      rows[half] = axis.row(me.p, me.packed.token(min(work.row0 + me.row_of(half), last)));
  }
  __device__ static const Work& read_anew(const Work& work) {
    const Work* at = &work;
    asm volatile("" : "+l"(at));  // hides from the compiler that these words were read before
    return *at;
  }
};

// Content that fill_tile() writes, since TMA cannot. kNewKeys: new keys that are not read from the pool. kClearHidden:
// also zeros for keys that no row of the CTA sees, because their memory may hold NaN. Both warpgroups may write the
// same. The tile has kColumns columns of 64 elements, from element `from_dim` of `dim` on.
enum class Fill : uint8_t { kNewKeys, kClearHidden };

// Rounds eight elements to FP8 as the pool stores them, and returns them in the MMA's type.
template <class T, class M>
__device__ inline uint4 as_stored(uint4 x, float scale) {
  T number[8];
  memcpy(number, &x, sizeof(x));
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j] = static_cast<float>(number[i * 4 + j]);
    words[i] = floats_to_e4m3(y[0], y[1], scale) | floats_to_e4m3(y[2], y[3], scale) << 16;
  }
  return e4m3_to_floats<M>(words[0], words[1]);
}

// fill_tile() for short work tiles, where it is a good part of the time: a lane tests a key, then a warp writes every
// fourth. In other shapes this code makes the long loops up to 6 % slower.
template <int kColumns, class S>
__device__ void fill_tile_by_rows(const Warpgroup<S>& me, const PagedSide& fresh, int from_dim, int dim,
                                  const Sight<S>& sight, int index, uint32_t to, Fill fill) {
  constexpr int kChunks = kColumns * 8, kTogether = 32 / kChunks;  // rows of a warp's step
  static_assert(kChunks <= 32 && !S::kFp8);
  const BlockKeys& keys = sight.keys;
  const KeySpan& span = sight.work.span;
  const int first = sight.work.tiles.tile(index) * S::kKeys, c = me.lane % kChunks, d = from_dim + c * 8;
  const bool with_cached = sight.work.tiles.holds_cached(index);
  for (int base = 0; base < S::kKeys; base += 32) {
    const int mine = first + base + me.lane;
    const bool is_new = keys.sees_fresh(mine, mine + 1, with_cached);
    const bool hidden = fill == Fill::kClearHidden && !is_new && !keys.sees_cached(mine, mine + 1, with_cached);
    const unsigned copied = __ballot_sync(0xffffffffu, is_new && fresh.data != nullptr);
    unsigned left = (copied | __ballot_sync(0xffffffffu, hidden)) & 0x11111111u << me.warp;
    while (left != 0) {
      int r = -1;
#pragma unroll
      for (int k = 0; k < kTogether; ++k, left &= left - 1) {
        if (me.lane / kChunks == k && left != 0) r = __ffs(static_cast<int>(left)) - 1;
      }
      if (r < 0) continue;
      uint4 x = make_uint4(0, 0, 0, 0);
      if ((copied >> r & 1) != 0) {
        const int64_t from = int64_t{span.q_off + first + base + r - span.phys0} * fresh.page_stride +
                             sight.work.kv_head * fresh.head_stride + d;
        if (d < dim) x = *reinterpret_cast<const uint4*>(static_cast<const typename S::T*>(fresh.data) + from);
      }
      *reinterpret_cast<uint4*>(me.shared.base + (to - shared_address(me.shared.base)) +
                                column_swizzled(S::kKeys, base + r, c)) = x;
    }
  }
}

template <int kColumns, class S>
__device__ void fill_tile(const Warpgroup<S>& me, const PagedSide& fresh, int from_dim, int dim, const Sight<S>& sight,
                          int index, uint32_t to, Fill fill) {
  if constexpr (S::kResident > 1) {
    fill_tile_by_rows<kColumns>(me, fresh, from_dim, dim, sight, index, to, fill);
    fence_for_wgmma();
    return me.sync();
  }
  constexpr int kChunks = kColumns * 8;
  const BlockKeys& keys = sight.keys;
  const KeySpan& span = sight.work.span;
  const int first = sight.work.tiles.tile(index) * S::kKeys;
  const bool with_cached = sight.work.tiles.holds_cached(index);
  for (int i = me.thread; i < S::kKeys * kChunks; i += 128) {
    const int r = i / kChunks, c = i % kChunks, d = from_dim + c * 8, at = first + r;
    const bool is_new = keys.sees_fresh(at, at + 1, with_cached);
    uint4 x = make_uint4(0, 0, 0, 0);
    if (is_new && fresh.data != nullptr) {
      const int64_t from =
          int64_t{span.q_off + at - span.phys0} * fresh.page_stride + sight.work.kv_head * fresh.head_stride + d;
      if (d < dim) x = *reinterpret_cast<const uint4*>(static_cast<const typename S::T*>(fresh.data) + from);
      if constexpr (S::kFp8)
        x = as_stored<typename S::T, typename S::M>(x, fill == Fill::kNewKeys ? me.p.k_scale : me.p.v_scale);
    } else if (is_new || fill == Fill::kNewKeys || keys.sees_cached(at, at + 1, with_cached)) {
      continue;
    }
    *reinterpret_cast<uint4*>(me.shared.base + (to - shared_address(me.shared.base)) +
                              column_swizzled(S::kKeys, r, c)) = x;
  }
  fence_for_wgmma();
  me.sync();
}

template <int kTiles>
__device__ inline void cap_scores(const AttentionParams& p, float (&s)[kTiles][4]) {
  const SoftCap capped(p.scale, p.cap);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[n][j] = capped(s[n][j]);
  }
}
// The same for queries that were multiplied by a power of two per row; `unscaled` is its inverse.
template <int kTiles>
__device__ inline void cap_scores(const AttentionParams& p, float (&s)[kTiles][4], const RowFactors& unscaled) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const SoftCap capped(p.scale * unscaled.of[half], p.cap);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) s[n][half * 2 + j] = capped(s[n][half * 2 + j]);
    }
  }
}

template <class S>
__device__ void mask_by_ranges(const Warpgroup<S>& me, float (&s)[S::kKeys / 8][4], const Ranges<S>& ranges, int tile) {
  const int first = tile * S::kKeys + me.lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int2 seen = ranges.row[me.row_of(half)];
    const int from = seen.x - first, to = seen.y - first;
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (n * 8 + j < from || n * 8 + j >= to) s[n][half * 2 + j] = -INFINITY;
      }
    }
  }
}

template <class S>
__device__ void mask_by_bits(const Warpgroup<S>& me, float (&s)[S::kKeys / 8][4], const Sight<S>& sight, int i) {
  static_assert(S::kKeys <= 128);
  const KeyTiles& tiles = sight.work.tiles;
  const int first = tiles.tile(i) * S::kKeys + me.lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t seen = seen_bits(me.p, sight.axis, sight.rows[half], sight.keys.shift, first, tiles.holds_cached(i));
#pragma unroll
    for (int k = 0; k < S::kKeys / 4; ++k) {
      if ((seen >> k & 1) == 0) s[k / 2][half * 2 + k % 2] = -INFINITY;
    }
  }
}

// Entries of the list of tiles that every row of the CTA sees whole and that the producer loads whole.
struct PlainRun {
  int begin = 0, end = 0;
  __device__ bool holds(int i) const { return i >= begin && i < end; }
};
template <class S>
__device__ PlainRun plain_run(const AttentionParams& p, const Work& work) {
  const KeyTiles& tiles = work.tiles;
  const KeyAxis::Row &top = work.top, &bottom = work.bottom;
  const KeyAxis axis(p, work.span);
  const BlockKeys keys(p, axis, top, bottom);
  if (!keys.adjacent) return {};
  int from = (bottom.first + S::kKeys - 1) / S::kKeys;
  const bool cached_only = (!S::kGathers && p.k_new.data != nullptr) || bottom.first_new > axis.ctx;
  int to = (cached_only ? min(top.end, axis.ctx) : top.end) / S::kKeys;
  if (keys.hole.end > keys.hole.begin) {  // the longer of the runs before and behind it
    const int hole_begin = keys.hole.begin / S::kKeys, hole_end = (keys.hole.end + S::kKeys - 1) / S::kKeys;
    if (hole_begin - from >= to - hole_end) {
      to = min(to, hole_begin);
    } else {
      from = max(from, hole_end);
    }
  }
  if (S::kLastFirst) return {work.begin + work.end - tiles.index_of(to), work.begin + work.end - tiles.index_of(from)};
  return {tiles.index_of(from), tiles.index_of(to)};
}

template <class S>
__device__ bool holds_new(const Sight<S>& sight, int i) {
  const KeyTiles& tiles = sight.work.tiles;
  const int from = tiles.tile(i) * S::kKeys;
  return sight.keys.sees_fresh(from, from + S::kKeys, tiles.holds_cached(i));
}

template <class S>
__device__ bool holds_stored(const Ranges<S>& ranges, int tile) {
  return tile * S::kKeys >= ranges.stored_from && (tile + 1) * S::kKeys <= ranges.stored_to;
}

#endif

}  // namespace headrace::cuda
