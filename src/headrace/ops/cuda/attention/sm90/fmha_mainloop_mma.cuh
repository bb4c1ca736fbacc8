// Consumer warpgroups of a Hopper attention CTA: 64 rows each, KV tile after KV tile.
#pragma once
#include <climits>

#include "headrace/ops/cuda/attention/sm90/fmha_epilogue.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_load_q.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_mask.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_softmax.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A consumer warpgroup and its 64 rows.
template <class S>
struct Consumer {
  using M = typename S::M;
  static constexpr int kSteps = S::kKeys / 16;
  using Scores = float[S::kKeys / 8][4];
  using Values = float[S::kValueDim / 8][4];

  Warpgroup<S> me;
  PipelineState<S::kStages> place{};
  uint32_t rounds = 0;  // a bit per stage: the phase that its next tile for this warpgroup completes
  uint32_t q_phase = 0;

  // Return the low word of the WGMMA descriptor of the tile in stage `stage`, uniform in the warp.
  __device__ uint32_t k_operand(int stage) const {
    return uniform(operand_low(me.shared.k(0), 0) + static_cast<uint32_t>(stage) * (S::kStageBytes / 16));
  }
  __device__ uint32_t v_operand(int stage) const {
    return uniform(operand_low(me.shared.v(0), S::kColumnBytes) + static_cast<uint32_t>(stage) * (S::kValueStep / 16));
  }

  __device__ static void await(uint64_t (&full)[S::kStages], const PipelineState<S::kStages>& at) {
    barrier_wait(shared_address(&full[at.stage]), at.phase);
    if constexpr (S::kGathers) fence_for_wgmma();
  }

  __device__ void start_scores(Scores& s, uint32_t q, uint32_t k) const {
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      const uint32_t column = d / 4, within = d % 4 * 32;
      wgmma_shared<M>(s, operand(q + (column * 64 * 128 + within) / 16),
                      operand(k + (column * S::kColumnBytes + within) / 16), d == 0 ? Add::kNo : Add::kYes);
    }
    wgmma_commit();
  }
  __device__ void start_values(Values& o, const uint32_t (&w)[kSteps][4], uint32_t v) const {
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      if constexpr (S::kValueProducts == 1) {
        wgmma_registers<M>(o, w[n], operand(v + n * (2048 / 16)));
      } else {
        using Half = float[S::kValueDim / 16][4];
        wgmma_registers<M>(reinterpret_cast<Half&>(o[0]), w[n], operand(v + n * (2048 / 16)));
        wgmma_registers<M>(reinterpret_cast<Half&>(o[S::kValueDim / 16]), w[n],
                           operand(v + (S::kValueColumns / 2 * S::kColumnBytes + n * 2048) / 16));
      }
    }
    wgmma_commit();
  }

  __device__ void run() {
    Control<S>& control = me.shared.control();
    PipelineState<2> at;
    for (;; at.next()) {
      barrier_wait(shared_address(&control.work_full[at.stage]), at.phase);
      const Work& work = control.work[at.stage];
      if (work.request < 0) return;
      if (work.slot != Work::kNothing) {
        if (work.row0 + me.row_group() * 64 < work.rows) {
          attend(work, control.ranges[at.stage]);
        } else {
          pass(work);
        }
      }
      barrier_arrive(shared_address(&control.work_empty[at.stage]));
    }
  }

  // Advances by `count` stages, to this warpgroup's next tile.
  __device__ void move(int count) {
    // a signed modulo takes longer
    place.stage = static_cast<int>(static_cast<uint32_t>(place.stage + count) % S::kStages);
    place.phase = rounds >> place.stage & 1;
    rounds ^= 1u << place.stage;
  }

  // Keeps the pipelines in step for a work tile that has no rows here.
  __device__ void pass(const Work& work) {
    Control<S>& control = me.shared.control();
    for (int i = work.begin; i < work.end; ++i) {
      move(i == work.begin ? 0 : 1);
      await(control.k_full[me.kv_warpgroup()], S::key_place(place));
      me.release(control.k_empty[S::key_place(place).stage]);
      await(control.v_full[me.kv_warpgroup()], place);
      me.release(control.v_empty[place.stage]);
    }
    if (work.begin < work.end) place.stage = (place.stage + 1) % S::kStages;
  }

  // Converts a work tile's queries, which are in shared memory, for WGMMA. Returns the inverses of their power-of-two
  // scales.
  __device__ typename Warpgroup<S>::Factors take_queries() {
    if constexpr (!S::kFp8) {
      return 1;
    } else if constexpr (std::is_same_v<typename S::T, __half>) {
      return {{1, 1}};
    } else {
      const float2 unscaled = make_halves<S>(me.shared.q(me.number), me.warp, me.lane);
      fence_for_wgmma();
      me.sync();
      const float all = me.p.cap > 0 ? kLog2e : me.p.scale * kLog2e;
      me.to_log2 = {{me.p.cap > 0 ? all : all * unscaled.x, me.p.cap > 0 ? all : all * unscaled.y}};
      return {{unscaled.x, unscaled.y}};
    }
  }

  __device__ void attend(const Work& work, const Ranges<S>& ranges) {
    Control<S>& control = me.shared.control();
    const PlainRun plain = plain_run<S>(me.p, work);
    barrier_wait(shared_address(&control.q_full[me.number]), q_phase);
    q_phase ^= 1;
    [[maybe_unused]] const auto unscaled = take_queries();
    bool holds_queries = true;
    const auto release_queries = [&] {
      if (holds_queries) me.release(control.q_empty[me.number]);
      holds_queries = false;
    };
    const int begin = work.begin + me.kv_warpgroup(), end = work.end;
    const bool turns = work.row0 + S::kRows - 64 < work.rows;  // all warpgroups have rows

    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    Values o;
#pragma unroll
    for (int d = 0; d < S::kValueDim / 8; ++d) o[d][0] = o[d][1] = o[d][2] = o[d][3] = 0;
    uint32_t w[kSteps][4];
    Scores s;
    const uint32_t q = uniform(operand_low(shared_address(me.shared.q(me.number)), 0));
    const auto finish_scores = [&](int i) {
      if (me.p.cap > 0) {
        if constexpr (S::kFp8) {
          cap_scores(me.p, s, unscaled);
        } else {
          cap_scores(me.p, s);
        }
      }
      if (plain.holds(i)) return;
      if (ranges.say_all) {
        mask_by_ranges(me, s, ranges, work.tiles.tile(list_entry<S>(work, i)));
      } else {
        mask_by_bits(me, s, Sight<S>(me, work), list_entry<S>(work, i));
      }
    };
    const auto await_keys = [&](int i) {
      await(control.k_full[me.kv_warpgroup()], S::key_place(place));
      if (S::kGathers || plain.holds(i) || me.p.k_new.data == nullptr) return;
      const Sight<S> sight(me, work);
      if (holds_new(sight, list_entry<S>(work, i)))
        fill_tile<S::kColumns>(me, me.p.k_new, 0, me.p.head_dim, sight, list_entry<S>(work, i),
                               me.shared.k(S::key_place(place).stage), Fill::kNewKeys);
    };
    const auto await_values = [&](int i, const PipelineState<S::kStages>& v) {
      await(control.v_full[me.kv_warpgroup()], v);
      if (S::kGathers || plain.holds(i) || holds_stored(ranges, work.tiles.tile(list_entry<S>(work, i)))) return;
      fill_tile<S::kValueColumns>(me, me.p.v_new, first_column<S>(work), me.p.v_head_dim, Sight<S>(me, work),
                                  list_entry<S>(work, i), me.shared.v(v.stage), Fill::kClearHidden);
    };
    const int first_stage = place.stage;
    if (begin < end) {
      move(me.kv_warpgroup());
      if (me.number == S::kRowGroups - 1) me.give_turn(turns);  // the first turn is the first warpgroup's
      await_keys(begin);
      me.take_turn(turns);
      start_scores(s, q, k_operand(S::key_place(place).stage));
      me.give_turn(turns);
      wgmma_wait<0>();
      hold(s);
      me.release(control.k_empty[S::key_place(place).stage]);
      finish_scores(begin);
      const Softening x = begin_softening<S::kLift>(s, largest, me.to_log2);
      soften(s, 0, x, me.to_log2, sum), soften(s, 1, x, me.to_log2, sum);
      pack<M>(w, s);
    }
    bool stashed = false;
    int cut = S::kLastFirst || me.plan.group_tiles == 0 ? INT_MAX : work.tiles.group_end(me.plan.group_tiles, begin);
    // Starts a tile that all rows see whole, after another: returns once its scores are there, while the PV MMA of the
    // tile before runs. Returns the stage of the values of the tile before.
    const auto start_plain = [&] {
      const PipelineState<S::kStages> v = place;
      move(S::kKVWarpgroups);
      const uint32_t k_here = k_operand(S::key_place(place).stage), v_here = v_operand(v.stage), q_here = uniform(q);
      await(control.v_full[me.kv_warpgroup()], v);
      await(control.k_full[me.kv_warpgroup()], S::key_place(place));
      me.take_turn(turns);
      start_scores(s, q_here, k_here);
      start_values(o, w, v_here);
      me.give_turn(turns);
      wgmma_wait<1>();
      hold(s);
      me.release(control.k_empty[S::key_place(place).stage]);
      return v;
    };
    // Processes such a tile: the loop of long contexts, without a branch.
    const auto step_plain = [&] {
      const PipelineState<S::kStages> v = start_plain();
      const Softening x = begin_softening<S::kLift>(s, largest, me.to_log2);
      if constexpr (S::kDim > 128) {
        // The compiler hoists the wait for the PV MMA as far as it can. Long heads leave time for one row's weights
        // before it: the wait on a barrier that passed long ago keeps them there.
        soften(s, 0, x, me.to_log2, sum);
        if constexpr (S::kKeyStages == S::kStages) {
          await(control.k_full[me.kv_warpgroup()], place);
        } else {
          await(control.v_full[me.kv_warpgroup()], v);  // the other barrier may already have passed for the next keys
        }
      }
      wgmma_wait<0>();
      hold(o);
      me.release(control.v_empty[v.stage]);
      if constexpr (S::kDim <= 128) soften(s, 0, x, me.to_log2, sum);
      soften(s, 1, x, me.to_log2, sum);
      pack<M>(w, s);
      scale(o, x);
    };
    // step_plain() without the search for the largest score, a fifth of the instructions. The weights' sums tell
    // whether a score was far above all before.
    const auto step_lagging = [&] {
      const PipelineState<S::kStages> v = start_plain();
      wgmma_wait<0>();
      hold(o);
      me.release(control.v_empty[v.stage]);
      float added[2] = {weigh(s, 0, __fmul_rn(largest[0], factor_of(me.to_log2, 0)), factor_of(me.to_log2, 0)),
                        weigh(s, 1, __fmul_rn(largest[1], factor_of(me.to_log2, 1)), factor_of(me.to_log2, 1))};
      if (__any_sync(0xffffffffu, fmaxf(added[0], added[1]) > kMostAdded)) raise(s, o, largest, sum, added, me.to_log2);
      sum[0] += added[0], sum[1] += added[1];
      pack<M>(w, s);
    };
    // Has the bits of step_plain() without its search in every tile. It computes weights as if none of the tile's
    // scores were far above those before, and keeps the scores. If the weights' sums do not confirm it, it searches and
    // computes them again. After a tile whose sums do not confirm it even then, the next tile is searched first.
    float base[2];
    bool looks;
    const auto begin_guessing = [&] {
      base[0] = guess_base<S::kLift>(largest[0], factor_of(me.to_log2, 0));
      base[1] = guess_base<S::kLift>(largest[1], factor_of(me.to_log2, 1));
      looks = false;
    };
    const auto step_guessing = [&] {
      const PipelineState<S::kStages> v = start_plain();
      wgmma_wait<0>();
      hold(o);
      me.release(control.v_empty[v.stage]);
      if (!looks) {
        const float added[2] = {weigh_packed<M>(w, s, 0, base[0], factor_of(me.to_log2, 0)),
                                weigh_packed<M>(w, s, 1, base[1], factor_of(me.to_log2, 1))};
        looks = !surely_stay<S::kLift>(added);
        if (!looks) {
          sum[0] = __fadd_rn(sum[0], added[0]), sum[1] = __fadd_rn(sum[1], added[1]);
          return;
        }
      }
      const Softening x = begin_softening<S::kLift>(s, largest, me.to_log2);
      const float added[2] = {weigh_packed<M>(w, s, 0, x.base[0], factor_of(me.to_log2, 0)),
                              weigh_packed<M>(w, s, 1, x.base[1], factor_of(me.to_log2, 1))};
      looks = !surely_stay<S::kLift>(added);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] = fmaf(sum[half], x.keep[half], added[half]);
        base[half] = guess_base<S::kLift>(largest[half], factor_of(me.to_log2, half));
      }
      scale(o, x);
    };
    const auto end_group = [&] {
      stash(me, o, largest, sum, stashed);
      stashed = true;
      cut = work.tiles.group_end(me.plan.group_tiles, cut);
    };
    // Processes the last tile of a split with the first of the next, both seen whole: step() without what that makes
    // unnecessary.
    const auto step_to_next_group = [&] {
      const PipelineState<S::kStages> v = start_plain();
      wgmma_wait<0>();
      hold(o);
      me.release(control.v_empty[v.stage]);
      end_group();
      const Softening x = begin_softening<S::kLift>(s, largest, me.to_log2);
      sum[0] = weigh_packed<M>(w, s, 0, x.base[0], factor_of(me.to_log2, 0));
      sum[1] = weigh_packed<M>(w, s, 1, x.base[1], factor_of(me.to_log2, 1));
    };
    const auto step = [&](int i) {
      const PipelineState<S::kStages> v = place;
      move(S::kKVWarpgroups);
      await_values(i, v);
      await_keys(i + S::kKVWarpgroups);
      me.take_turn(turns);
      start_scores(s, q, k_operand(S::key_place(place).stage));
      start_values(o, w, v_operand(v.stage));
      me.give_turn(turns);
      wgmma_wait<0>();
      hold(s);
      hold(o);
      me.release(control.k_empty[S::key_place(place).stage]);
      me.release(control.v_empty[v.stage]);
      if (S::kKVWarpgroups == 1 && i + 2 >= end) release_queries();
      if (!S::kLastFirst && i + S::kKVWarpgroups == cut) end_group();
      finish_scores(i + S::kKVWarpgroups);
      const Softening x = begin_softening<S::kLift>(s, largest, me.to_log2);
      soften(s, 0, x, me.to_log2, sum), soften(s, 1, x, me.to_log2, sum);
      pack<M>(w, s);
      scale(o, x);
    };
    // The loop may begin with a masked tile if none of its values needs clearing and each row sees a key of it.
    PlainRun loop = plain;
    if (S::kLastFirst && plain.begin > begin) {
      const int before = work.tiles.tile(list_entry<S>(work, plain.begin - 1));
      if (holds_stored(ranges, before) && before * S::kKeys < work.top.end &&
          (before + 1) * S::kKeys > work.bottom.first) {
        --loop.begin;
      }
    }
    for (int i = begin; i + S::kKVWarpgroups < end;) {
      const int plain_until = me.p.cap > 0 || !loop.holds(i) ? i : min(min(plain.end, cut), end) - S::kKVWarpgroups;
      if (S::kGuesses && i < plain_until) begin_guessing();
      for (; i < plain_until; i += S::kKVWarpgroups) {
        if constexpr (S::kLags) {
          step_lagging();
        } else if constexpr (S::kGuesses) {
          step_guessing();
        } else {
          step_plain();
        }
      }
      if (i + S::kKVWarpgroups >= end) break;
      if (S::kManyGroups && i + S::kKVWarpgroups == cut && me.p.cap <= 0 && loop.holds(i) &&
          plain.holds(i + S::kKVWarpgroups)) {
        step_to_next_group();
      } else {
        step(i);
      }
      i += S::kKVWarpgroups;
    }
    if (S::kKVWarpgroups == 1) release_queries();
    if (begin < end) {
      await_values(begin + (end - 1 - begin) / S::kKVWarpgroups * S::kKVWarpgroups, place);
      me.take_turn(turns);
      start_values(o, w, v_operand(place.stage));
      me.give_turn(turns);
      wgmma_wait<0>();
      hold(o);
      me.release(control.v_empty[place.stage]);
      if (me.number == 0) me.take_turn(turns);  // consumes the turn that the last warpgroup gave
    }
    place.stage = (first_stage + max(end - work.begin, 0)) % S::kStages;
    sum[0] = quad_sum(sum[0]), sum[1] = quad_sum(sum[1]);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      largest[half] = __fmul_rn(largest[half], factor_of(me.to_log2, half)) - S::kLift;
    if (!S::kLastFirst && stashed) add_stashed(me, o, largest, sum);
    if constexpr (S::kKVWarpgroups == 2) {
      const bool first = merge_warpgroups(me, o, largest, sum);
      release_queries();
      if (!first) return;
    }
    if (work.slot >= 0) {
      write_part(me, work, o, largest, sum);
    } else {
      write_rows(me, work, o, largest, sum);
    }
  }
};

#endif

}  // namespace headrace::cuda
