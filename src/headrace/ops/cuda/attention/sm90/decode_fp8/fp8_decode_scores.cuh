// Warps of FP8 decode that compute scores and weights.
#pragma once
#include "headrace/ops/cuda/attention/common/conditional_rescaling.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_fp8/fp8_decode_keys.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_fp8/fp8_decode_scheduler.cuh"
#include "headrace/ops/cuda/attention/sm90/queries_as_halves.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Memory of a tile's weights. Those of 16 keys and eight rows belong to 32 lanes. Each has row g, keys 2 t and 2 t + 1,
// and the two keys eight further on.
template <class S>
struct Fp8DecodeWeights {
  char* shared;
  // Eight lanes that write have one t and all rows; eight that read have two rows and all t. Neither have bank
  // conflicts.
  __device__ float4& at(int tile, int o, int step, int row, int t) const {
    return reinterpret_cast<float4*>(
        shared + S::kWeightsAt + tile % 2 * S::kWeightsBytes)[(o * S::kKeySteps + step) * 32 + t * 8 + (row ^ 2 * t)];
  }
};

// Computes scores and weights of one part of each tile's keys. g is lane / 4, t is lane % 4. A lane has keys g and g +
// 8 of 16 and rows 2 t and 2 t + 1 of eight. Keys are the MMA's M, queries its N. Weights are computed after all of
// these warps have published their largest scores.
template <class S>
struct Fp8DecodeScorer {
  using T = typename S::T;
  using Scores = float[S::kKeyTiles][S::kOctets][4];
  const AttentionCall& call;
  const AttentionParams& p;
  Fp8DecodeControl<S>& control;
  char* shared;
  int part, lane;
  PackedRows packed;
  PipelineState<S::kKeyStages> place{};
  uint32_t q[S::kOctets][S::kSteps][2];
  float2 to_log2[S::kOctets];  // of this lane's rows: converts scores, as MMAs produce them, to base 2
  float2 largest[S::kOctets];  // running maximum of the previous tiles, as exponents use it

  __device__ Fp8DecodeScorer(const AttentionCall& of, char* memory, int of_part, int of_lane)
      : call(of),
        p(call.p),
        control(*reinterpret_cast<Fp8DecodeControl<S>*>(memory + S::kControlAt)),
        shared(memory),
        part(of_part),
        lane(of_lane),
        packed(call.p.heads / call.p.kv_heads) {}

  // Loads a work tile's queries to registers. `piece`: the slot in which it publishes the scores' factors.
  __device__ void load_queries(const Work& work, int piece) {
    if (work.request < 0 || work.slot == Work::kNothing) return;
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      const int row = work.row0 + min(o * 8 + lane / 4, min(S::kRows, work.rows - work.row0) - 1);
      const T* from = static_cast<const T*>(p.q) + (work.span.q_off + packed.token(row)) * p.q_token_stride +
                      (work.kv_head * packed.group + packed.head(row)) * p.q_head_stride + lane % 4 * 4;
      uint2 words[S::kSteps];  // as in memory: elements 4 t to 4 t + 3 of each 16 of row g
#pragma unroll
      for (int d = 0; d < S::kSteps; ++d) {
        words[d] =
            d * 16 + lane % 4 * 4 < p.head_dim ? *reinterpret_cast<const uint2*>(from + d * 16) : make_uint2(0, 0);
      }
      float factor = p.scale * kLog2e;
      if constexpr (!std::is_same_v<T, __half>) {
        LargestPair largest;
#pragma unroll
        for (int d = 0; d < S::kSteps; ++d) largest.look(words[d].x), largest.look(words[d].y);
        largest.look_of_lane(1), largest.look_of_lane(2);
        const HalvesScale scale(largest);
#pragma unroll
        for (int d = 0; d < S::kSteps; ++d) words[d] = {scale.halves(words[d].x), scale.halves(words[d].y)};
        factor *= scale.inverse;
      }
#pragma unroll
      for (int d = 0; d < S::kSteps; ++d) q[o][d][0] = words[d].x, q[o][d][1] = words[d].y;
      to_log2[o] = of_lane_rows(factor);
      if (part == 0 && lane % 4 == 0) control.to_log2[piece][o * 8 + lane / 4] = factor;
    }
  }

  // Computes scores over the first kElements elements. The rest of shorter heads is zeros.
  template <int kElements>
  __device__ void find(int stage, Scores& s) const {
    const uint32_t at = shared_address(shared) + stage * S::kSideBytes + part * S::kPartBytes + (lane & 15) * 128 +
                        static_cast<uint32_t>((lane & 7) ^ lane >> 4) * 16;
#pragma unroll
    for (int d = 0; d < kElements / 16; d += 2) {
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        uint32_t k[4];
        load_tiles(k, (at ^ d % 8 * 16) + d / 8 * S::kColumnBytes + i * 16 * 128);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint2 x = e4m3_to_pairs<__half>(k[2 * j]), y = e4m3_to_pairs<__half>(k[2 * j + 1]);
          const uint32_t a[4] = {x.x, y.x, x.y, y.y};
#pragma unroll
          for (int o = 0; o < S::kOctets; ++o) mma_m16n8k16<__half>(s[i][o], a, q[o][d + j][0], q[o][d + j][1]);
        }
      }
    }
  }
  __device__ void hide(const Work& work, int i, Scores& s) const {
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      const uint2 seen =
          fp8_decode_seen<S>(p, work, i, fp8_decode_position<S>(work, i, part) + lane / 4, work.row0 + o * 8);
#pragma unroll
      for (int k = 0; k < S::kKeyTiles * 4; ++k) {
        if (((k % 2 == 0 ? seen.x : seen.y) >> k / 2 * 2 & 1) == 0) s[k / 4][o][k % 4] = -INFINITY;
      }
    }
  }
  // Publishes the largest of this warp's scores. `tile`: the number of tiles before.
  __device__ void tell_largest(const Scores& s, int tile) const {
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        const float(&x)[4] = s[i][o];
        top[0] = fmaxf(top[0], fmaxf(x[0], x[2])), top[1] = fmaxf(top[1], fmaxf(x[1], x[3]));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], step));
        if (lane / 4 == half)
          reinterpret_cast<float*>(&control.largest[tile % 2][o * 8 + lane % 4 * 2 + half])[part] = top[half];
      }
    }
  }
  // Exchanges weights with a neighbouring lane: from 16 keys' four weights of two rows to four keys of one row.
  __device__ float4 of_one_row(const float (&x)[4]) const {
    const bool odd = (lane & 4) != 0;
    const float low = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 4),
                high = __shfl_xor_sync(0xffffffffu, odd ? x[2] : x[3], 4);
    return odd ? float4{low, x[1], high, x[3]} : float4{x[0], low, x[2], high};
  }
  // Computes and publishes weights. `first`: the tile is the first of a sum.
  __device__ void tell_weights(const Scores& s, int tile, bool first) {
    const int row = lane % 4 * 2;
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      if (first) largest[o] = {-INFINITY, -INFINITY};
      const auto follow = [&](int half, float& of_row, float by, float& base) {
        const float4 tops = control.largest[tile % 2][o * 8 + row + half];
        const float top = fmaxf(fmaxf(tops.x, tops.y), fmaxf(tops.z, tops.w));
        const float keep = conditional_rescaling(fmaxf(of_row, top), of_row, base, by);
        if (part == 0 && lane < 4) control.follows[tile % 2][o * 8 + row + half] = {keep, of_row};
      };
      const float2 by = to_log2[o];
      float2 base;
      follow(0, largest[o].x, by.x, base.x), follow(1, largest[o].y, by.y, base.y);
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          x[j] = exp2_fast(fmaf(s[i][o][j], j % 2 == 0 ? by.x : by.y, kFp8Lift - (j % 2 == 0 ? base.x : base.y)));
        Fp8DecodeWeights<S>{shared}.at(tile, o, part * S::kKeyTiles + i, row + lane / 4 % 2, lane / 8) = of_one_row(x);
      }
    }
  }
  __device__ void attend_tile(const Work& work, int i, bool plain, int tile, bool first) {
    const int stage = place.stage;
    barrier_wait(shared_address(&control.keys_full[stage]), place.phase);
    if (!plain)
      fill_fp8_decode<S>(p, work, i, fp8_decode_position<S>(work, i, part),
                         shared + stage * S::kSideBytes + part * S::kPartBytes, false);
    Scores s = {};
    if (S::kDim == 128 && p.head_dim <= 64) {
      find<64>(stage, s);
    } else {
      find<S::kDim>(stage, s);
    }
    if (!plain) hide(work, i, s);
    tell_largest(s, tile);
    // All keys are in this warp's registers: the largest of their scores was published.
    barrier_arrive(shared_address(&control.keys_empty[stage]));
    place.next();
    named_barrier<kScorers, S::kWorkers / 2>();
    if (tile >= 2) await_tile(control.weights_taken, tile - 2);
    tell_weights(s, tile, first);
    barrier_arrive(shared_address(&control.weights_ready[tile % 2]));
  }

  __device__ void run() {
    Fp8DecodePiece<S> piece{control};
    load_queries(piece.work(), piece.place.stage);
    int tile = 0;  // tiles before
    for (;; piece.leave()) {
      const Work& work = piece.work();
      if (work.request < 0) break;
      const bool any = fp8_decode_any(work);
      const PlainRun plain = any ? fp8_decode_plain<S>(p, work) : PlainRun{};
      const int begin = work.begin, end = any ? work.end : work.begin;
      Fp8DecodeCuts cuts(call, work);
#pragma unroll 1
      for (int i = begin; i < end; ++i, ++tile) {
        attend_tile(work, i, plain.holds(i), tile, cuts.pass(i) || i == begin);
      }
      load_queries(piece.behind(), piece.stage_behind());
    }
  }
};

#endif

}  // namespace headrace::cuda
