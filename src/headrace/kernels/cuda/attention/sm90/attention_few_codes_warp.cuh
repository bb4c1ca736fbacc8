// A warp of attention of few rows over codes.
#pragma once
#include "headrace/kernels/cuda/attention/follow_largest.cuh"
#include "headrace/kernels/cuda/attention/sm90/attention_few_codes_keys.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Two codes of the lower or the upper half of a word.
__device__ inline uint32_t lower_halves(uint32_t codes) { return e4m3_to_pair<__half>(static_cast<uint16_t>(codes)); }
__device__ inline uint32_t upper_halves(uint32_t codes) {
  return e4m3_to_pair<__half>(static_cast<uint16_t>(codes >> 16));
}

// The power of two that brings a number of this size to the upper end of half floats, as bits of a float's exponent;
// 254 less it divides by the same. 2^40 at most: rows of less than that asks for have scores of nothing, and what they
// are multiplied by does not vanish beside a small scale.
__device__ inline uint32_t exponent_to_half(float largest) {
  return min(268 - (__float_as_uint(largest) >> 23), 127u + 40);
}

// A warp's part of a piece: a quarter of the keys of each tile. A lane has, of products with keys, keys g and g + 8 of
// sixteen and rows 2 t and 2 t + 1 of eight, of those with values elements 2 g and 2 g + 1 of sixteen and the same
// rows: g is the lane's number by four, t what is left.
template <class S>
struct FewCodesWarp {
  using T = typename S::T;
  const AttentionCall& call;
  const AttentionParams& p;
  uint32_t full, memory;  // the first place's barrier, and where the place is
  char* bytes;            // the same place
  int lane, warp;
  PackedRows packed;
  int box_rows, box_shift;        // keys of a box of the copy engine; boxes of a side are 1 << box_shift
  int tile_of_lane, box_of_lane;  // whose box a lane asks for
  RingPlace<S::kStages> asked{}, taken{};
  int on_their_way = 0;  // places that are asked for and not taken

  uint32_t q[S::kOctets][S::kSteps][2];
  float to_log2[S::kOctets][2];  // from scores as they are multiplied to powers of two
  float value[S::kSteps][S::kOctets][4], largest[S::kOctets][2], sum[S::kOctets][2];

  // --- Keys and values on their way.

  // Pages of the tiles from some list entry on, a lane a box: they are read ahead of their tiles.
  struct Pages {
    int page = 0, slot = 0;
    unsigned valid = 0;  // by lane
  };
  // Of a piece: the tile that is asked for next.
  struct Source {
    const Work* work;
    int kv_head, first, at, end;  // list entries: the first of `pages`, the tile's, and where they end
    Pages pages, next;
    __device__ bool any() const { return at < end; }
  };
  __device__ int position_of(const Work& work, int i) const {
    return work.tiles.tile(i) * S::kKeys + warp * S::kWarpKeys;
  }
  __device__ Pages pages_of(const Work& work, int first) const {
    const FewCodesBox box =
        few_codes_box<S>(p, work, first, warp * S::kWarpKeys + box_of_lane * box_rows, tile_of_lane);
    return {box.entry >= 0 ? p.page_table[box.entry] : 0, box.slot, __ballot_sync(0xffffffffu, box.entry >= 0)};
  }
  __device__ Source source_of(const Work& work) const {
    const bool any = work.request >= 0 && work.slot != Work::kNothing;
    return {.work = &work,
            .kv_head = work.kv_head,
            .first = work.begin,
            .at = work.begin,
            .end = any ? work.end : work.begin,
            .pages = pages_of(work, work.begin),
            .next = pages_of(work, work.begin + (32 >> box_shift))};
  }
  __device__ void ask(Source& from) {
    if (from.at - from.first == 32 >> box_shift) {
      from.first = from.at, from.pages = from.next;
      from.next = pages_of(*from.work, from.at + (32 >> box_shift));
    }
    const int j = from.at - from.first;
    const unsigned here = from.pages.valid >> (j << box_shift) & ((1u << (1 << box_shift)) - 1);
    const uint32_t barrier = full + asked.stage * 8, to = memory + asked.stage * 2 * S::kSideBytes;
    if (lane == 0) barrier_expect(barrier, __popc(here) * static_cast<uint32_t>(box_rows * 2 * S::kDim));
    __syncwarp();
    if (tile_of_lane == j && (from.pages.valid >> lane & 1) != 0) {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) {
        const uint32_t there = to + c * S::kColumnBytes + box_of_lane * box_rows * 128;
        copy_box(there, call.maps.k, c * 128, from.pages.slot, from.kv_head, from.pages.page, barrier, kReadOnce);
        copy_box(there + S::kSideBytes, call.maps.v, c * 128, from.pages.slot, from.kv_head, from.pages.page, barrier,
                 kReadOnce);
      }
    }
    asked.next();
    ++from.at, ++on_their_way;
  }
  __device__ void fill_places(Source& from) {
    while (on_their_way < S::kStages && from.any()) ask(from);
  }
  __device__ int take() {
    barrier_wait(full + taken.stage * 8, taken.phase);
    const int stage = taken.stage;
    taken.next();
    --on_their_way;
    return stage;
  }

  // --- Queries.

  // As they lie in memory: elements 4 t to 4 t + 3 of each sixteen of row g.
  using QueryWords = uint2[S::kOctets][S::kSteps];
  __device__ void ask_for_queries(const Work& work, QueryWords& words) const {
    if (work.request < 0 || work.slot == Work::kNothing) return;
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      const int row = work.row0 + min(o * 8 + lane / 4, min(S::kRows, work.rows - work.row0) - 1);
      const T* from = static_cast<const T*>(p.q) + (work.span.q_off + packed.token(row)) * p.q_token_stride +
                      (work.kv_head * packed.group + packed.head(row)) * p.q_head_stride + lane % 4 * 4;
#pragma unroll
      for (int d = 0; d < S::kSteps; ++d) {
        words[o][d] =
            d * 16 + lane % 4 * 4 < p.head_dim ? *reinterpret_cast<const uint2*>(from + d * 16) : make_uint2(0, 0);
      }
    }
  }
  __device__ void take_queries(const QueryWords& words) {
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      float factor = 1, back = 1;
      if constexpr (!std::is_same_v<T, __half>) {
        float top = 0;  // of what is finite
        const auto look = [&](float x) { top = fmaxf(top, fabsf(x) < INFINITY ? fabsf(x) : 0.0f); };
#pragma unroll
        for (int d = 0; d < S::kSteps; ++d) {
          const float2 x = unpack2<T>(words[o][d].x), y = unpack2<T>(words[o][d].y);
          look(x.x), look(x.y), look(y.x), look(y.y);
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const uint32_t exponent = exponent_to_half(top);
        factor = __uint_as_float(exponent << 23), back = __uint_as_float((254 - exponent) << 23);
      }
#pragma unroll
      for (int d = 0; d < S::kSteps; ++d) {
        const float2 x = unpack2<T>(words[o][d].x), y = unpack2<T>(words[o][d].y);
        q[o][d][0] = pack2<__half>(x.x * factor, x.y * factor);
        q[o][d][1] = pack2<__half>(y.x * factor, y.y * factor);
      }
      const float of_row = p.scale * kLog2e * back;  // row g's
      to_log2[o][0] = __shfl_sync(0xffffffffu, of_row, lane % 4 * 8);
      to_log2[o][1] = __shfl_sync(0xffffffffu, of_row, lane % 4 * 8 + 4);
    }
  }
  __device__ void load_queries(const Work& work) {
    QueryWords words = {};
    ask_for_queries(work, words);
    take_queries(words);
  }

  // --- A tile.

  // Sixteens of a head's elements of sixteen keys, the first of which is at `first`: two of them. For keys as they lie
  // there, for values transposed: a pair of codes is an element of that.
  __device__ uint32_t pieces_at(int stage, int side) const {
    return memory + (stage * 2 + side) * S::kSideBytes + (lane & 15) * 128 + ((lane & 7) ^ lane >> 4) * 16;
  }
  __device__ static uint32_t piece_at(uint32_t first, int keys, int d) {
    return (first ^ d % 8 * 16) + d / 8 * S::kColumnBytes + keys * 16 * 128;
  }
  using Scores = float[S::kKeyTiles][S::kOctets][4];
  __device__ void find_scores(int stage, Scores& s) const {
    const uint32_t at = pieces_at(stage, 0);
#pragma unroll
    for (int d = 0; d < S::kSteps; d += 2) {
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        uint32_t k[4];
        load_tiles(k, piece_at(at, i, d));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t a[4] = {lower_halves(k[2 * j]), lower_halves(k[2 * j + 1]), upper_halves(k[2 * j]),
                                 upper_halves(k[2 * j + 1])};
#pragma unroll
          for (int o = 0; o < S::kOctets; ++o) mma16816<__half>(s[i][o], a, q[o][d + j][0], q[o][d + j][1]);
        }
      }
    }
  }
  using Weights = uint32_t[S::kKeyTiles][S::kOctets][2];
  __device__ void add_values(int stage, const Weights& w) {
    const uint32_t at = pieces_at(stage, 1);
#pragma unroll
    for (int d = 0; d < S::kSteps; d += 2) {
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        uint32_t v[4];
        load_tiles_transposed(v, piece_at(at, i, d));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t first = __byte_perm(v[2 * j], 0, 0x3120), second = __byte_perm(v[2 * j + 1], 0, 0x3120);
          const uint32_t a[4] = {lower_halves(first), upper_halves(first), lower_halves(second), upper_halves(second)};
#pragma unroll
          for (int o = 0; o < S::kOctets; ++o) mma16816<__half>(value[d + j][o], a, w[i][o][0], w[i][o][1]);
        }
      }
    }
  }
  __device__ void hide(const Work& work, int i, Scores& s) const {
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      const uint2 seen = few_codes_seen<S>(p, work, i, position_of(work, i), work.row0 + o * 8);
#pragma unroll
      for (int k = 0; k < S::kKeyTiles * 4; ++k) {
        const int key = k / 4 * 16 + k / 2 % 2 * 8 + lane / 4;
        if (((k % 2 == 0 ? seen.x : seen.y) >> key & 1) == 0) s[k / 4][o][k % 4] = -INFINITY;
      }
    }
  }
  // Scores to weights, and what was added up so far follows their largest.
  __device__ void soften(Scores& s) {
    float keep[S::kOctets][2];
    bool any = false;
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = fmaxf(s[0][o][half], s[0][o][half + 2]), base, added = 0;
#pragma unroll
        for (int i = 1; i < S::kKeyTiles; ++i) top = fmaxf(top, fmaxf(s[i][o][half], s[i][o][half + 2]));
#pragma unroll
        for (int step = 4; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
        const float by = to_log2[o][half];
        keep[o][half] = follow_largest(fmaxf(top, largest[o][half]), largest[o][half], base, by);
        any |= keep[o][half] != 1;
#pragma unroll
        for (int i = 0; i < S::kKeyTiles * 2; ++i) {
          float& weight = s[i / 2][o][half + i % 2 * 2];
          weight = exp2_fast(fmaf(weight, by, S::kLift - base));
          added += weight;
        }
        sum[o][half] = fmaf(sum[o][half], keep[o][half], added);
      }
    }
    if (!__any_sync(0xffffffffu, any)) return;
#pragma unroll
    for (int d = 0; d < S::kSteps; ++d) {
#pragma unroll
      for (int o = 0; o < S::kOctets; ++o) {
        float(&x)[4] = value[d][o];
        x[0] *= keep[o][0], x[1] *= keep[o][1], x[2] *= keep[o][0], x[3] *= keep[o][1];
      }
    }
  }
  // Eight keys' weights of eight rows, with keys g of a lane in place of rows 2 t and 2 t + 1.
  __device__ static uint32_t transposed(uint32_t pair) {
    uint32_t turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
    return turned;
  }
  __device__ void pack_weights(const Scores& s, Weights& w) const {
#pragma unroll
    for (int i = 0; i < S::kKeyTiles * S::kOctets; ++i) {
      const float(&x)[4] = s[i / S::kOctets][i % S::kOctets];
      w[i / S::kOctets][i % S::kOctets][0] = transposed(pack2<__half>(x[0], x[1]));
      w[i / S::kOctets][i % S::kOctets][1] = transposed(pack2<__half>(x[2], x[3]));
    }
  }
  // `from`: what is asked for next, of this piece or of the one behind it.
  __device__ void attend_tile(const Work& work, Source& from, int i, bool plain) {
    const int stage = take();
    if (!plain) {
      char* const keys = bytes + stage * 2 * S::kSideBytes;
      fill_few_codes<S>(p, work, i, position_of(work, i), keys, false);
      fill_few_codes<S>(p, work, i, position_of(work, i), keys + S::kSideBytes, true);
    }
    Scores s = {};
    find_scores(stage, s);
    if (!plain) hide(work, i, s);
    soften(s);
    Weights w;
    pack_weights(s, w);
    add_values(stage, w);
    __syncwarp();
    if (from.any()) ask(from);
  }
  __device__ void begin() {
#pragma unroll
    for (int i = 0; i < S::kSteps * S::kOctets * 4; ++i) value[i / 4 / S::kOctets][i / 4 % S::kOctets][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < S::kRows / 4; ++i) largest[i / 2][i % 2] = -INFINITY, sum[i / 2][i % 2] = 0;
  }
  // Leaves the piece's sums of eight rows where all warps find them.
  __device__ void leave(FewCodesControl<S>& control, char* sums, int o) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float all = sum[o][half];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
      const int row = lane % 4 * 2 + half;
      if (lane / 4 == 0)
        control.states[warp][row] = make_float2(__fmul_rn(largest[o][half], to_log2[o][half]) - S::kLift, all);
#pragma unroll
      for (int d = 0; d < S::kSteps; ++d) {
        *reinterpret_cast<float2*>(sums + few_codes_sum_at<S>(warp, row, d * 64 + lane / 4 * 8)) =
            make_float2(value[d][o][half], value[d][o][half + 2]);
      }
    }
  }
};

#endif

}  // namespace headrace::cuda
