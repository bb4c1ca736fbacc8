// Warps of FP8 decode that accumulate values.
#pragma once
#include "headrace/ops/cuda/attention/sm90/decode_fp8/fp8_decode_scores.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_softmax.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A lane's accumulators: columns 2 g and 2 g + 1 of every fourth 16, rows 2 t and 2 t + 1 of each eight, not yet
// divided by the sums.
template <class S>
struct Fp8DecodeSums {
  float value[S::kValueTiles][S::kOctets][4] = {};
  PartialState state[S::kOctets];  // of row g
};

// Merges a split's sums into those of the previous splits. Out of line, so that the latter need no registers: few work
// tiles hold more than one split.
template <class S>
__device__ __noinline__ void add_group(Fp8DecodeSums<S>& all, const Fp8DecodeSums<S>& next) {
#pragma unroll
  for (int o = 0; o < S::kOctets; ++o) {
    const PartialState both = all.state[o].merged_with(next.state[o]);
    const float2 a = of_lane_rows(all.state[o].factor(both)), b = of_lane_rows(next.state[o].factor(both));
    all.state[o] = both;
#pragma unroll
    for (int d = 0; d < S::kValueTiles; ++d) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& x = all.value[d][o][j];
        x = PartialState::merged_value(x, j % 2 == 0 ? a.x : a.y, next.value[d][o][j], j % 2 == 0 ? b.x : b.y);
      }
    }
  }
}

// Output of a value warp for a work tile.
template <class S>
struct Fp8DecodeResult {
  const AttentionCall& call;
  const Fp8DecodeSums<S>& all;
  const Work& work;
  const PackedRows& packed;
  int part, lane;

  // Calls `use(row, o, half)` for each row of the work tile that a lane has elements of.
  template <class F>
  __device__ void each_row(const F& use) const {
    const int here = min(S::kRows, work.rows - work.row0);
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = o * 8 + lane % 4 * 2 + half;
        if (row < here) use(row, o, half);
      }
    }
  }
  __device__ int element(int d) const { return (d * S::kParts + part) * 16 + lane / 4 * 2; }
  // Calls `use(row, state)` for each row, in one lane of all.
  template <class F>
  __device__ void each_state(const F& use) const {
    if (part != 0 || lane % 4 != 0) return;
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      const int row = o * 8 + lane / 4;
      if (row < work.rows - work.row0) use(row, all.state[o]);
    }
  }
  __device__ void write_part() const {
    const WorkPlan& plan = call.plan;
    const int64_t first = static_cast<int64_t>(work.slot) * plan.slot_rows;
    each_state([&](int row, const PartialState& x) { plan.states[first + row] = make_float2(x.largest, x.sum); });
    each_row([&](int row, int o, int half) {
#pragma unroll
      for (int d = 0; d < S::kValueTiles; ++d) {
        if (element(d) < call.p.v_head_dim)
          *reinterpret_cast<float2*>(plan.values + (first + row) * call.p.v_head_dim + element(d)) =
              make_float2(all.value[d][o][half], all.value[d][o][half + 2]);
      }
    });
  }
  __device__ int token(int row) const { return work.span.q_off + packed.token(work.row0 + row); }
  __device__ int head(int row) const { return work.kv_head * packed.group + packed.head(work.row0 + row); }
  // Returns true if a value is NaN.
  __device__ bool write_rows() const {
    using T = typename S::T;
    const AttentionParams& p = call.p;
    float2 by[S::kOctets];
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o)
      by[o] = of_lane_rows(all.state[o].sum == 0 ? 0.0f : p.v_scale / all.state[o].sum);
    float zeros = 0;  // NaN if a value is NaN or infinite
    each_row([&](int row, int o, int half) {
      T* const to = static_cast<T*>(p.out) + token(row) * p.out_token_stride + head(row) * p.out_head_stride;
      const float scale = half == 0 ? by[o].x : by[o].y;
#pragma unroll
      for (int d = 0; d < S::kValueTiles; ++d) {
        const float x = all.value[d][o][half] * scale, y = all.value[d][o][half + 2] * scale;
        zeros = fmaf(x, 0, fmaf(y, 0, zeros));
        if (element(d) < p.v_head_dim) *reinterpret_cast<uint32_t*>(to + element(d)) = pack2<T>(x, y);
      }
    });
    if (p.lse != nullptr) {
      each_state([&](int row, const PartialState& x) { p.lse[token(row) * p.lse_stride + head(row)] = x.log_sum(); });
    }
    return isnan(zeros);
  }
};

// Accumulates one part of V's columns over all keys of each tile. A lane has the weights of row g and keys 2 t and 2 t
// + 1 of each eight. Lanes of fmha.cuh have the same, so sums have its order.
template <class S>
struct Fp8DecodeAdder {
  const AttentionCall& call;
  const AttentionParams& p;
  Fp8DecodeControl<S>& control;
  char* shared;
  int part, lane;
  PackedRows packed;
  PipelineState<S::kValueStages> place{};
  float to_log2[S::kOctets];  // of row g
  Fp8DecodeSums<S> now;       // states: largest scores as MMAs produce them, and sums of this lane's weights

  __device__ Fp8DecodeAdder(const AttentionCall& of, char* memory, int of_part, int of_lane)
      : call(of),
        p(of.p),
        control(*reinterpret_cast<Fp8DecodeControl<S>*>(memory + S::kControlAt)),
        shared(memory),
        part(of_part),
        lane(of_lane),
        packed(of.p.heads / of.p.kv_heads) {}

  // Loads a tile's weights and rescales the accumulators to their rows' largest scores.
  using Weights = uint32_t[S::kOctets][S::kKeySteps][2];
  __device__ void take_weights(int tile, Weights& w) {
    float keep[S::kOctets];
    bool any = false;
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      const float2 follows = control.follows[tile % 2][o * 8 + lane / 4];
      float4 x[S::kKeySteps];
#pragma unroll
      for (int n = 0; n < S::kKeySteps; ++n) x[n] = Fp8DecodeWeights<S>{shared}.at(tile, o, n, lane / 4, lane % 4);
      keep[o] = follows.x;
      any |= keep[o] != 1;
      float added[2];
#pragma unroll
      for (int n = 0; n < S::kKeySteps; ++n) {
        added[0] = n == 0 ? x[n].x : __fadd_rn(added[0], x[n].x);
        added[1] = n == 0 ? x[n].y : __fadd_rn(added[1], x[n].y);
        added[0] = __fadd_rn(added[0], x[n].z), added[1] = __fadd_rn(added[1], x[n].w);
        w[o][n][0] = pack2<__half>(x[n].x, x[n].y), w[o][n][1] = pack2<__half>(x[n].z, x[n].w);
      }
      PartialState& state = now.state[o];
      state = {follows.y, fmaf(state.sum, keep[o], __fadd_rn(added[0], added[1]))};
    }
    if (!__any_sync(0xffffffffu, any)) return;
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      const float2 x = of_lane_rows(keep[o]);
#pragma unroll
      for (int d = 0; d < S::kValueTiles; ++d) {
        float(&y)[4] = now.value[d][o];
        y[0] *= x.x, y[1] *= x.y, y[2] *= x.x, y[3] *= x.y;
      }
    }
  }
  // Columns of V are the MMA's M: the transposed load moves pairs of FP8 values. Two of a lane's groups of 16 are half
  // a column of 128 apart; for heads of 64 the second is empty.
  template <int kTiles>
  __device__ void add_values(int stage, const Weights& w) {
    const uint32_t at = shared_address(shared) + S::kValuesAt + stage * S::kSideBytes + (lane & 15) * 128 +
                        static_cast<uint32_t>((part + lane / 16 * 4) ^ (lane & 7)) * 16;
#pragma unroll
    for (int n = 0; n < S::kKeySteps; ++n) {
#pragma unroll
      for (int d = 0; d < kTiles; d += 2) {
        uint32_t v[4];
        load_tiles_transposed(v, at + d / 2 * S::kColumnBytes + n * 16 * 128);
#pragma unroll
        for (int j = 0; j < smaller(2, kTiles - d); ++j) {
          const uint2 x = e4m3_to_pairs<__half>(__byte_perm(v[2 * j], 0, 0x3120)),
                      y = e4m3_to_pairs<__half>(__byte_perm(v[2 * j + 1], 0, 0x3120));
          const uint32_t a[4] = {x.x, x.y, y.x, y.y};
#pragma unroll
          for (int o = 0; o < S::kOctets; ++o) mma_m16n8k16<__half>(now.value[d + j][o], a, w[o][n][0], w[o][n][1]);
        }
      }
    }
  }
  // Frees the stage and the weights. It tests accumulators, so that it waits for the MMAs, which then have read both.
  // No MMA produces this NaN.
  __device__ void free(int stage, int tile) const {
    constexpr uint32_t kNone = 0x7f800123;
    bool done = true;
#pragma unroll
    for (int d = 0; d < S::kValueTiles; d += 2) done &= __float_as_uint(now.value[d][0][0]) != kNone;
    if (done) barrier_arrive(shared_address(&control.values_empty[stage]));
    barrier_arrive(shared_address(&control.weights_taken[tile % 2]));
  }
  __device__ void await_values() { barrier_wait(shared_address(&control.values_full[place.stage]), place.phase); }
  __device__ void attend_tile(const Work& work, int i, bool plain, int tile, int piece) {
    const int stage = place.stage;
    if (!plain) {
      await_values();
      fill_fp8_decode<S>(p, work, i, fp8_decode_position<S>(work, i, part),
                         shared + S::kValuesAt + stage * S::kSideBytes + part * S::kPartBytes, true);
      named_barrier<kAdders, S::kWorkers / 2>();
    }
    await_tile(control.weights_ready, tile);
    if (i == work.begin) {
#pragma unroll
      for (int o = 0; o < S::kOctets; ++o) to_log2[o] = control.to_log2[piece][o * 8 + lane / 4];
    }
    Weights w;
    take_weights(tile, w);
    if (plain) await_values();
    if (S::kDim == 128 && p.v_head_dim <= 64) {
      add_values<1>(stage, w);
    } else {
      add_values<S::kValueTiles>(stage, w);
    }
    free(stage, tile);
    place.next();
  }

  // Returns the sums in the form in which they are merged.
  __device__ Fp8DecodeSums<S> finished() const {
    Fp8DecodeSums<S> sums = now;
#pragma unroll
    for (int o = 0; o < S::kOctets; ++o) {
      PartialState& state = sums.state[o];
      state.sum = quad_sum(state.sum);
      state.largest = end_softmax<true, kFp8Lift>(state.largest, to_log2[o], state.sum);
    }
    return sums;
  }
  // Batch-invariant mode: ends a split of a work tile that holds several. `is_first`: of the work tile.
  __device__ void end_group(Fp8DecodeSums<S>& before, bool is_first) {
    const Fp8DecodeSums<S> group = finished();
    if (is_first) before = {};
    add_group<S>(before, group);
    now = {};
  }
  __device__ void write(const Fp8DecodeSums<S>& all, const Work& work) const {
    const Fp8DecodeResult<S> result{call, all, work, packed, part, lane};
    if (work.slot >= 0) return result.write_part();
    if (!any_of_group(kAdders, result.write_rows())) return;
    for (int row = 0; row < min(S::kRows, work.rows - work.row0); ++row) {
      attend_row(p, work.request, result.token(row), result.head(row),
                 *reinterpret_cast<typename S::Scratch*>(shared + S::kScratchAt), RowWrite::kWhereNaN,
                 {kAdders, part * 32 + lane});
    }
  }

  __device__ void run() {
    Fp8DecodePiece<S> piece{control};
    Fp8DecodeSums<S> before;  // previous splits of a work tile that holds several
    int tile = 0;
    for (;; piece.leave()) {
      const Work& work = piece.work();
      if (work.request < 0) return;
      now = {};
#pragma unroll
      for (int o = 0; o < S::kOctets; ++o) to_log2[o] = p.scale * kLog2e;
      const bool any = fp8_decode_any(work);
      const PlainRun plain = any ? fp8_decode_plain<S>(p, work) : PlainRun{};
      const int begin = work.begin, end = any ? work.end : work.begin;
      Fp8DecodeCuts cuts(call, work);
      bool cut = false;
#pragma unroll 1
      for (int i = begin; i < end; ++i, ++tile) {
        if (cuts.pass(i)) {
          end_group(before, !cut);
          cut = true;
        }
        attend_tile(work, i, plain.holds(i), tile, piece.place.stage);
      }
      if (!any) continue;
      if (cut) {
        end_group(before, false);
        write(Fp8DecodeSums<S>(before), work);
      } else {
        write(finished(), work);
      }
    }
  }
};

#endif

}  // namespace headrace::cuda
