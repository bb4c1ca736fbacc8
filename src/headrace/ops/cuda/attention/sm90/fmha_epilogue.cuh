// Epilogue of a Hopper attention CTA: merges consumer warpgroups, stashes fixed KV splits, writes rows.
#pragma once
#include <type_traits>

#include "headrace/ops/cuda/attention/common/merge_states.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_softmax.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_warpgroup.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Merges the second consumer warpgroup's state into the first's. Returns true in the first.
template <class S>
__device__ bool merge_warpgroups(const Warpgroup<S>& me, float (&o)[S::kValueDim / 8][4], float (&largest)[2],
                                 float (&sum)[2]) {
  Control<S>& control = me.shared.control();
  float* values = reinterpret_cast<float*>(me.shared.q(1)) + me.thread;
  constexpr int kHalf = S::kValueDim / 16;
  float a[2], b[2];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    if (me.number == 1) {
      if (part == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          control.exchange[half][me.thread] = largest[half], control.exchange[2 + half][me.thread] = sum[half];
        }
      }
#pragma unroll
      for (int d = 0; d < kHalf; ++d) {
#pragma unroll
        for (int j = 0; j < 4; ++j) values[(d * 4 + j) * 128] = o[part * kHalf + d][j];
      }
    }
    if (me.number == 1) {
      barrier_arrive(shared_address(&control.exchange_full));
      barrier_wait(shared_address(&control.exchange_empty), part);
    } else {
      barrier_wait(shared_address(&control.exchange_full), part);
      if (part == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const PartialState mine{largest[half], sum[half]},
              next{control.exchange[half][me.thread], control.exchange[2 + half][me.thread]};
          const PartialState all = mine.merged_with(next);
          a[half] = mine.factor(all), b[half] = next.factor(all);
          largest[half] = all.largest, sum[half] = all.sum;
        }
      }
#pragma unroll
      for (int d = 0; d < kHalf; ++d) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& x = o[part * kHalf + d][j];
          x = PartialState::merged_value(x, a[j / 2], values[(d * 4 + j) * 128], b[j / 2]);
        }
      }
      barrier_arrive(shared_address(&control.exchange_empty));
    }
  }
  return me.number == 0;
}

// Memory of a thread's state of the previous fixed splits. Unit 0 holds its largest scores and sums, each other unit
// four values. The first kStashUnits units are in shared memory (`near`), the rest in global memory (`far`).
template <class S>
struct Stash {
  static constexpr int kStep = 128 * S::kWarpgroups, kUnits = S::kValueDim / 8 + 1;
  // So few far units are loaded before the others are merged.
  static constexpr int kFar = kUnits - S::kStashUnits, kAhead = kFar <= 6 ? kFar : 0;
  // If more units are far, this many are loaded before the first of them is merged.
  static constexpr int kTogether = kAhead == 0 && kFar > 0 ? 11 : 1;
  // The code at a split's end runs once in many tiles, so it is not in the instruction cache. With many splits a unit
  // is one instruction's access. Otherwise its words are strided, which keeps the compiler's other code fastest.
  using Word = std::conditional_t<S::kManyGroups, float4, float>;
  static constexpr int kBlockWords = kStashFloats * 256 / static_cast<int>(sizeof(Word) / sizeof(float));
  Word *near, *far;

  // With kManyGroups a warpgroup's part of shared memory is contiguous, because rows may be recomputed in it.
  __device__ explicit Stash(const Warpgroup<S>& me)
      : near(reinterpret_cast<Word*>(me.shared.stash()) +
             (S::kManyGroups ? me.number * S::kStashUnits : me.number) * 128 + me.thread),
        far(reinterpret_cast<Word*>(me.plan.stash) + static_cast<int64_t>(blockIdx.x) * kBlockWords + me.number * 128 +
            me.thread) {}
  __device__ float4 load(int unit) const {
    if constexpr (S::kManyGroups) {
      return unit < S::kStashUnits ? near[unit * 128] : far[unit * kStep];
    } else {
      const float* from = (unit < S::kStashUnits ? near : far) + unit * 4 * kStep;
      return make_float4(from[0], from[kStep], from[2 * kStep], from[3 * kStep]);
    }
  }
  __device__ void store(int unit, float4 x) const {
    if constexpr (S::kManyGroups) {
      (unit < S::kStashUnits ? near[unit * 128] : far[unit * kStep]) = x;
    } else {
      float* to = (unit < S::kStashUnits ? near : far) + unit * 4 * kStep;
      to[0] = x.x, to[kStep] = x.y, to[2 * kStep] = x.z, to[3 * kStep] = x.w;
    }
  }
};

// Merges the values of the previous splits, times `a`, with those of this one, times `b`, for a thread's two rows.
__device__ inline void add_values(float (&now)[4], const float4& before, const float (&a)[2], const float (&b)[2]) {
  now[0] = PartialState::merged_value(before.x, a[0], now[0], b[0]);
  now[1] = PartialState::merged_value(before.y, a[0], now[1], b[0]);
  now[2] = PartialState::merged_value(before.z, a[1], now[2], b[1]);
  now[3] = PartialState::merged_value(before.w, a[1], now[3], b[1]);
}

// Merges the stashed state of the previous splits into this split's.
template <class S>
__device__ void add_stashed(const Warpgroup<S>& me, float (&o)[S::kValueDim / 8][4], float (&largest)[2],
                            float (&sum)[2]) {
  using Place = Stash<S>;
  const Place from(me);
  constexpr int kFirstAhead = Place::kUnits - Place::kAhead, kTogether = Place::kTogether;
  float4 ahead[Place::kAhead + 1];
  float a[2], b[2];
#pragma unroll
  for (int unit = kFirstAhead; unit < Place::kUnits; ++unit) ahead[unit - kFirstAhead] = from.load(unit);
  const float4 states = from.load(0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const PartialState before{half == 0 ? states.x : states.y, half == 0 ? states.z : states.w},
        mine{largest[half], sum[half]};
    const PartialState all = before.merged_with(mine);
    a[half] = before.factor(all), b[half] = mine.factor(all);
    largest[half] = all.largest, sum[half] = all.sum;
  }
#pragma unroll
  for (int first = 1; first < Place::kUnits; first += kTogether) {
    float4 before[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int unit = first + i;
      if (unit < Place::kUnits) before[i] = unit >= kFirstAhead ? ahead[unit - kFirstAhead] : from.load(unit);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i < Place::kUnits) add_values(o[first + i - 1], before[i], a, b);
    }
  }
}

// Stashes a split's state, merged with the previous splits, and resets it.
template <class S>
__device__ __forceinline__ void stash(const Warpgroup<S>& me, float (&o)[S::kValueDim / 8][4], float (&largest)[2],
                                      float (&sum)[2], bool stashed) {
  sum[0] = quad_sum(sum[0]), sum[1] = quad_sum(sum[1]);
#pragma unroll
  for (int half = 0; half < 2; ++half)
    largest[half] = end_softmax<S::kFp8, S::kLift>(largest[half], factor_of(me.to_log2, half), sum[half]);
  if (stashed) add_stashed(me, o, largest, sum);
  const Stash<S> to(me);
  to.store(0, make_float4(largest[0], largest[1], sum[0], sum[1]));
  largest[0] = largest[1] = -INFINITY, sum[0] = sum[1] = 0;
#pragma unroll
  for (int d = 0; d < S::kValueDim / 8; ++d) {
    to.store(d + 1, make_float4(o[d][0], o[d][1], o[d][2], o[d][3]));
    o[d][0] = o[d][1] = o[d][2] = o[d][3] = 0;
  }
}

// Transposes four words of each of four lanes: lane l gets word l of all four.
__device__ inline void transpose(uint32_t (&w)[4], int lane) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = pair * (3 - step), high = low + step;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[low] : w[high], step);
      w[low] = upper ? got : w[low];
      w[high] = upper ? w[high] : got;
    }
  }
}

// Recomputes rows with NaN, one by one. An infinite or NaN value corrupts rows that do not see it, since 0 times it is
// NaN. Real models have no such values.
template <class S>
__device__ void redo_if(const Warpgroup<S>& me, bool nan, const Work& work) {
  if (!me.any_of_group(nan)) return;
  int& taken = me.shared.control().scratch_taken;  // the warpgroups share one scratch area, except with kManyGroups
  if (me.thread == 0) {
    while (atomicCAS(&taken, 0, 1) != 0) __nanosleep(100);
  }
  me.sync();
  for (int row = work.row0 + me.row_group() * 64; row < min(work.row0 + me.row_group() * 64 + 64, work.rows); ++row) {
    attend_row(me.p, work.request, work.span.q_off + me.packed.token(row),
               work.kv_head * me.packed.group + me.packed.head(row), me.shared.scratch(me.number), RowWrite::kWhereNaN,
               RowThreads{1 + me.number, me.thread, first_column<S>(work), S::kValueDim});
  }
  me.sync();
  if (me.thread == 0) atomicExch(&taken, 0);
}

// Writes final rows. Four lanes have two in eight of a row's values; a transpose makes stores of 16 bytes, 64
// contiguous.
template <class S>
__device__ void write_rows(const Warpgroup<S>& me, const Work& work, const float (&o)[S::kValueDim / 8][4],
                           const float (&largest)[2], const float (&sum)[2]) {
  using T = typename S::T;
  bool nan = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float zeros = 0;  // NaN if a value is NaN or infinite; an addition is less code than a test
    const int row = work.row0 + me.row_of(half);
    const bool inside = row < work.rows;
    const int64_t token = work.span.q_off + me.packed.token(row);
    const int head = work.kv_head * me.packed.group + me.packed.head(row);
    if (me.p.lse != nullptr && me.lane % 4 == 0 && inside && first_column<S>(work) == 0) {
      me.p.lse[token * me.p.lse_stride + head] = PartialState{largest[half], sum[half]}.log_sum();
    }
    T* to = static_cast<T*>(me.p.out) + token * me.p.out_token_stride + head * me.p.out_head_stride;
    const float scale = sum[half] == 0 ? 0.0f : (S::kFp8 ? me.p.v_scale : 1.0f) / sum[half];
#pragma unroll
    for (int g = 0; g < S::kValueDim / 32; ++g) {
      uint32_t w[4];
      const int first = first_column<S>(work) + g * 32;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = o[4 * g + i][half * 2] * scale, y = o[4 * g + i][half * 2 + 1] * scale;
        w[i] = pack2<T>(x, y);
        zeros = fmaf(x, 0, fmaf(y, 0, zeros));
      }
      transpose(w, me.lane);
      const int column = first + me.lane % 4 * 8;
      if (inside && column < me.p.v_head_dim)
        *reinterpret_cast<uint4*>(to + column) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    nan |= inside && isnan(zeros);
  }
  redo_if(me, nan, work);
}

// Writes the state of a KV split for the merge kernel.
template <class S>
__device__ void write_part(const Warpgroup<S>& me, const Work& work, const float (&o)[S::kValueDim / 8][4],
                           const float (&largest)[2], const float (&sum)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = me.row_of(half);
    if (work.row0 + row >= work.rows) continue;
    const int64_t at = static_cast<int64_t>(work.slot) * me.plan.slot_rows + row;
    if (me.lane % 4 == 0 && first_column<S>(work) == 0) me.plan.states[at] = make_float2(largest[half], sum[half]);
    float* to = me.plan.values + at * me.p.v_head_dim;
#pragma unroll
    for (int d = 0; d < S::kValueDim / 8; ++d) {
      const int column = first_column<S>(work) + d * 8 + me.lane % 4 * 2;
      if (column < me.p.v_head_dim) {
        *reinterpret_cast<float2*>(to + column) = make_float2(o[d][half * 2], o[d][half * 2 + 1]);
      }
    }
  }
}

#endif

}  // namespace headrace::cuda
