// The warps of attention of few rows over codes that find scores.
#pragma once
#include "headrace/kernels/cuda/attention/sm90/attention_few_codes_pieces.cuh"
#include "headrace/kernels/cuda/attention/sm90/attention_few_codes_ring.cuh"
#include "headrace/kernels/cuda/attention/sm90/queries_as_halves.cuh"
#include "headrace/kernels/cuda/primitives/launch.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where what warps tell each other of a tile's scores lies. Sixteen keys of eight rows are a lane's of those who add
// values up: of row g and keys 2 t, 2 t + 1 and the two eight further on.
template <class S>
struct FewCodesScores {
  char* shared;
  // A row's four lanes, of which two rows lie side by side; every other pair's are swapped, for the banks' sake.
  __device__ static int place(int row, int t) { return (row * 4 + t) ^ (row / 2 % 2 * 4); }
  // Of tile `tile`, from sixteen keys `step` and eight rows `o` on, words; of all its lanes.
  __device__ float* at(int tile, int o, int step) const {
    return reinterpret_cast<float*>(shared + S::kScoresAt + tile % 2 * S::kScoresBytes) +
           (o * S::kKeySteps + step) * 128;
  }
};

// Scores of one part of the keys of each tile. A lane has keys g and g + 8 of sixteen and rows 2 t and 2 t + 1 of
// eight: g is the lane's number by four, t what is left. Keys are the rows of products, and queries their columns.
template <class S>
struct FewCodesScorer {
  using T = typename S::T;
  const AttentionParams& p;
  FewCodesControl<S>& control;
  char* shared;
  int part, lane;
  PackedRows packed;
  FewCodesRing<S, S::kKeyStages> ring;
  uint32_t q[S::kOctets][S::kSteps][2];

  __device__ FewCodesScorer(const AttentionCall& call, char* memory, int of_part, int of_lane)
      : p(call.p),
        control(*reinterpret_cast<FewCodesControl<S>*>(memory + S::kControlAt)),
        shared(memory),
        part(of_part),
        lane(of_lane),
        packed(call.p.heads / call.p.kv_heads),
        ring(call.p, call.maps.k, shared_address(memory) + of_part * S::kPartBytes,
             shared_address(control.keys_full[of_part]), of_part, of_lane) {}

  // `piece`: where others look for what scores are multiplied by.
  __device__ void load_queries(const Work& work, int piece) {
    if (work.request < 0 || work.slot == Work::kNothing) return;
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      const int row = work.row0 + min(o * 8 + lane / 4, min(S::kRows, work.rows - work.row0) - 1);
      const T* from = static_cast<const T*>(p.q) + (work.span.q_off + packed.token(row)) * p.q_token_stride +
                      (work.kv_head * packed.group + packed.head(row)) * p.q_head_stride + lane % 4 * 4;
      uint2 words[S::kSteps];  // as they lie in memory: elements 4 t to 4 t + 3 of each sixteen of row g
#pragma unroll
      for (int d = 0; d < S::kSteps; ++d) {
        words[d] =
            d * 16 + lane % 4 * 4 < p.head_dim ? *reinterpret_cast<const uint2*>(from + d * 16) : make_uint2(0, 0);
      }
      float to_log2 = p.scale * kLog2e;
      if constexpr (!std::is_same_v<T, __half>) {
        LargestPair largest;
#pragma unroll
        for (int d = 0; d < S::kSteps; ++d) largest.look(words[d].x), largest.look(words[d].y);
        largest.look_of_lane(1), largest.look_of_lane(2);
        const HalvesScale scale(largest);
#pragma unroll
        for (int d = 0; d < S::kSteps; ++d) words[d] = {scale.halves(words[d].x), scale.halves(words[d].y)};
        to_log2 *= scale.inverse;
      }
#pragma unroll
      for (int d = 0; d < S::kSteps; ++d) q[o][d][0] = words[d].x, q[o][d][1] = words[d].y;
      if (part == 0 && lane % 4 == 0) control.to_log2[piece][o * 8 + lane / 4] = to_log2;
    }
  }

  using Scores = float[S::kKeyTiles][S::kOctets][4];
  // Of the first kElements elements: of shorter heads the rest are zeros.
  template <int kElements>
  __device__ void find(int stage, Scores& s) const {
    const uint32_t at =
        ring.memory + stage * S::kSideBytes + (lane & 15) * 128 + static_cast<uint32_t>((lane & 7) ^ lane >> 4) * 16;
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
          for (int o = 0; o < S::kOctets; ++o) mma16816<__half>(s[i][o], a, q[o][d + j][0], q[o][d + j][1]);
        }
      }
    }
  }
  __device__ void hide(const Work& work, int i, Scores& s) const {
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      const uint2 seen = few_codes_seen<S>(p, work, i, few_codes_position<S>(work, i, part), work.row0 + o * 8);
#pragma unroll
      for (int k = 0; k < S::kKeyTiles * 4; ++k) {
        const int key = k / 4 * 16 + k / 2 % 2 * 8 + lane / 4;
        if (((k % 2 == 0 ? seen.x : seen.y) >> key & 1) == 0) s[k / 4][o][k % 4] = -INFINITY;
      }
    }
  }
  // `tile`: how many there were before.
  __device__ void tell(const Scores& s, int tile) const {
    const int g = lane / 4, row = lane % 4 * 2;
    const int first = FewCodesScores<S>::place(row, g / 2) * 4 + g % 2,
              second = FewCodesScores<S>::place(row + 1, g / 2) * 4 + g % 2;
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        const float(&x)[4] = s[i][o];
        float* const to = FewCodesScores<S>{shared}.at(tile, o, part * S::kKeyTiles + i);
        to[first] = x[0], to[second] = x[1], to[first + 2] = x[2], to[second + 2] = x[3];
        top[0] = fmaxf(top[0], fmaxf(x[0], x[2])), top[1] = fmaxf(top[1], fmaxf(x[1], x[3]));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], step));
        if (g == half) reinterpret_cast<float*>(&control.largest[tile % 2][o * 8 + row + half])[part] = top[half];
      }
    }
  }
  __device__ void attend_tile(const Work& work, int i, bool plain, int tile) {
    const int stage = ring.take();
    if (!plain)
      fill_few_codes<S>(p, work, i, few_codes_position<S>(work, i, part),
                        shared + stage * S::kSideBytes + part * S::kPartBytes, false);
    Scores s = {};
    if (S::kDim == 128 && p.head_dim <= 64) {
      find<64>(stage, s);
    } else {
      find<S::kDim>(stage, s);
    }
    if (!plain) hide(work, i, s);
    tell(s, tile);
    __syncwarp();
  }

  // `pieces` are brought by the first of these warps.
  __device__ void run(FewCodesPieces<S>& pieces) {
    const bool brings = part == 0;
    FewCodesPiece<S> piece{control};
    ring.turn_to(piece.work());
    ring.ask_for_cached();
    wait_for_previous();
    let_next_start();
    ring.fill(S::kKeyStages);
    load_queries(piece.work(), piece.place.stage);
    int tile = 0;  // how many there were before
    for (;; piece.leave()) {
      const Work& work = piece.work();
      if (work.request < 0) break;
      if (brings) pieces.ask_number();
      const bool any = work.slot != Work::kNothing;
      const PlainRun plain = any ? few_codes_plain<S>(p, work) : PlainRun{};
      const int begin = work.begin, end = any ? work.end : work.begin;
#pragma unroll 1
      for (int i = begin; i < end; ++i, ++tile) {
        if (brings && i == begin + 1) pieces.ask_words();
        if (brings && i == begin + 2) pieces.publish();
        attend_tile(work, i, plain.holds(i), tile);
        if (i > begin + 2 && ring.work == &work && !ring.any()) ring.turn_to(piece.behind());
        ring.fill(S::kKeyStages);
        if (i + 1 < end) meet<S>();
      }
      if (brings && end <= begin + 1) pieces.ask_words();
      if (brings && end <= begin + 2) pieces.publish();
      const Work& behind = piece.behind();
      if (ring.work == &work) ring.turn_to(behind);
      ring.fill(S::kKeyStages);
      load_queries(behind, piece.stage_behind());
      if (begin < end) meet<S>();
    }
    if (brings && lane == 0) pieces.leave();
  }
};

#endif

}  // namespace headrace::cuda
