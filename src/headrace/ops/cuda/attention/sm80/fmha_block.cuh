// CTA of the mma.sync attention kernel: its rows, and the copies of Q, K and V to shared memory.
#pragma once
#include "headrace/ops/cuda/arch/mma_sm80.cuh"
#include "headrace/ops/cuda/attention/simt/attention_row.cuh"
#include "headrace/ops/cuda/attention/sm80/fmha.h"

namespace headrace::cuda {

// kRowTiles tiles of 16 rows for each of kWarpsM warps; kWarpsN warps split the keys of a tile.
template <class T_, PoolElements kPool_, int kDim_, int kWarpsM_, int kWarpsN_, int kRowTiles_, int kKeys_,
          int kStages_>
struct MmaShape {
  using T = T_;
  static constexpr bool kFp8 = kPool_ == PoolElements::kFp8;
  static constexpr int kDim = kDim_, kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kRowTiles = kRowTiles_, kKeys = kKeys_,
                       kStages = kStages_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN, kRows = 16 * kWarpsM * kRowTiles, kChunks = kDim / 8;
  static constexpr int kWarpKeys = kKeys / kWarpsN;
  static constexpr bool kStrict = kWarpsN == 1;  // batch-invariant mode uses it
  static constexpr int kQBytes = kRows * kDim * 2, kTileBytes = kKeys * kDim * 2;
  static constexpr int kFp8Chunks = kDim / 16, kFp8Bytes = kKeys * kDim;  // of K or of V
  static constexpr int kStageBytes = 2 * (kFp8 ? kFp8Bytes : kTileBytes);
  static constexpr int kPipeBytes = kQBytes + kStages * kStageBytes + (kFp8 ? 2 * kTileBytes : 0);
  static constexpr int kMergeBytes = kWarpsN > 1 ? kWarpsN* kRows*(kDim + 2) * 4 : 0;
  static constexpr int kSharedBytes = (kPipeBytes > kMergeBytes ? kPipeBytes : kMergeBytes) > int(sizeof(RowScratch))
                                          ? (kPipeBytes > kMergeBytes ? kPipeBytes : kMergeBytes)
                                          : int(sizeof(RowScratch));
  static_assert(kThreads >= 128 && kWarpKeys % 16 == 0);
};

template <class S>
struct MmaBlock {
  using T = typename S::T;
  const AttentionParams& p;
  const KeyAxis& axis;
  char* shared;
  int kv_head, row0, rows, group, lane, warp_m, warp_n;
  KeyAxis::Row top, bottom;  // first and last row of the CTA

  // FP8: one dequantised tile, behind the stages.
  __device__ char* k_tile(int stage) const {
    return shared + S::kQBytes + (S::kFp8 ? S::kStages : stage) * S::kStageBytes;
  }
  __device__ char* v_tile(int stage) const { return k_tile(stage) + S::kTileBytes; }
  __device__ char* k_fp8(int stage) const { return shared + S::kQBytes + stage * S::kStageBytes; }
  __device__ char* v_fp8(int stage) const { return k_fp8(stage) + S::kFp8Bytes; }
  __device__ int my_row(int tile, int half) const { return (warp_m * S::kRowTiles + tile) * 16 + half * 8 + lane / 4; }
  __device__ int token_of(int row) const { return (row0 + row) / group; }
  __device__ int head_of(int row) const { return kv_head * group + (row0 + row) % group; }

  __device__ void load_queries() const {
    const uint32_t to = shared_address(shared);
    for (int i = threadIdx.x; i < S::kRows * S::kChunks; i += S::kThreads) {
      const int r = i / S::kChunks, c = i % S::kChunks;
      const bool valid = row0 + r < rows && c * 8 < p.head_dim;
      const int64_t at =
          valid ? (axis.span.q_off + token_of(r)) * p.q_token_stride + head_of(r) * p.q_head_stride + c * 8 : 0;
      copy16(to + swizzled<S::kChunks>(r, c), static_cast<const T*>(p.q) + at, valid);
    }
  }

  // Returns true if some row of the CTA sees `key`. Other keys are loaded as zeros, because their memory may hold NaN.
  __device__ bool readable(int key) const {
    if (key >= bottom.end) return false;
    if (key >= axis.ctx) return key >= top.first_new;
    return key >= top.first && (p.encoder || axis.span.sees_cached(key));
  }
  __device__ void load_keys(int tile, int stage) const {
    const uint32_t k_to = shared_address(k_tile(stage)), v_to = shared_address(v_tile(stage));
#pragma unroll 4
    for (int i = threadIdx.x; i < S::kKeys * S::kChunks; i += S::kThreads) {
      const int r = i / S::kChunks, c = i % S::kChunks, key = tile * S::kKeys + r;
      KeyAxis::Place at{0, 0, false};
      const bool valid = readable(key);
      if (valid) at = axis.place(p, kv_head, key);
      const uint32_t to = swizzled<S::kChunks>(r, c);
      copy_chunk(k_to + to, v_to + to, at, c, valid);
    }
  }
  // Copies chunk `c` of a key and its value; writes zeros unless `valid`.
  __device__ void copy_chunk(uint32_t k_to, uint32_t v_to, const KeyAxis::Place& at, int c, bool valid) const {
    const auto* k = static_cast<const T*>(at.fresh ? p.k_new.data : p.k.data);
    const auto* v = static_cast<const T*>(at.fresh ? p.v_new.data : p.v.data);
    const bool k_valid = valid && c * 8 < p.head_dim, v_valid = valid && c * 8 < p.v_head_dim;
    copy16(k_to, k + (k_valid ? at.k + c * 8 : 0), k_valid);
    copy16(v_to, v + (v_valid ? at.v + c * 8 : 0), v_valid);
  }

  // Copies 16 FP8 values from the pool, or quantises 16 new elements as a store would.
  __device__ static void load_codes(char* to, const PagedSide& side, int64_t at, bool fresh, bool valid, float scale) {
    if (!fresh || !valid) return copy16(shared_address(to), static_cast<const char*>(side.data) + at, valid);
    const T* from = static_cast<const T*>(side.data) + at;
#pragma unroll 1
    for (int i = 0; i < 4; ++i, from += 4) {
      float x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = static_cast<float>(from[j]);
      reinterpret_cast<uint32_t*>(to)[i] = floats_to_e4m3(x[0], x[1], scale) | floats_to_e4m3(x[2], x[3], scale) << 16;
    }
  }
  __device__ void load_codes(int tile, int stage) const {
#pragma unroll 2
    for (int i = threadIdx.x; i < S::kKeys * S::kFp8Chunks; i += S::kThreads) {
      const int r = i / S::kFp8Chunks, d = i % S::kFp8Chunks * 16, key = tile * S::kKeys + r;
      KeyAxis::Place at{0, 0, false};
      const bool valid = readable(key), k_valid = valid && d < p.head_dim, v_valid = valid && d < p.v_head_dim;
      if (valid) at = axis.place(p, kv_head, key);
      load_codes(k_fp8(stage) + i * 16, at.fresh ? p.k_new : p.k, k_valid ? at.k + d : 0, at.fresh, k_valid, p.k_scale);
      load_codes(v_fp8(stage) + i * 16, at.fresh ? p.v_new : p.v, v_valid ? at.v + d : 0, at.fresh, v_valid, p.v_scale);
    }
  }
  // A thread dequantises what it copied itself, so it waits only for its own copies.
  __device__ void unpack_codes(int stage) const {
#pragma unroll 2
    for (int i = threadIdx.x; i < S::kKeys * S::kFp8Chunks; i += S::kThreads) {
      const int r = i / S::kFp8Chunks, c = i % S::kFp8Chunks;
      const auto unpack = [&](const char* from, char* to) {
        const uint4 codes = *reinterpret_cast<const uint4*>(from + i * 16);
        const uint4 low = e4m3_to_floats<T>(codes.x, codes.y), high = e4m3_to_floats<T>(codes.z, codes.w);
        *reinterpret_cast<uint4*>(to + swizzled<S::kChunks>(r, 2 * c)) = low;
        *reinterpret_cast<uint4*>(to + swizzled<S::kChunks>(r, 2 * c + 1)) = high;
      };
      unpack(k_fp8(stage), k_tile(stage));
      unpack(v_fp8(stage), v_tile(stage));
    }
  }

  __device__ void load(int tile, int stage) const {
    if constexpr (S::kFp8) {
      load_codes(tile, stage);
    } else {
      load_keys(tile, stage);
    }
  }
};

}  // namespace headrace::cuda
