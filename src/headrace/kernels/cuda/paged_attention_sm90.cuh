// Attention of 16-bit floats on Hopper: a warp feeds tiles of K and V from the pool's pages through the copy engine,
// and one or two warpgroups of 64 rows each multiply them. Rows are packed as (token, query head of the group), so that
// one pass over K and V serves the whole group; keys may be cut into parts, which the last one to end joins. Source:
// Dao 2023, FlashAttention-2; Shah et al. 2024, FlashAttention-3; Dao et al. 2023, Flash-Decoding.
#pragma once
#include "headrace/kernels/cuda/attention_row.cuh"
#include "headrace/kernels/cuda/attention_work.cuh"
#include "headrace/kernels/cuda/bulk_copy.cuh"
#include "headrace/kernels/cuda/stream.h"
#include "headrace/kernels/cuda/wgmma_products.cuh"

namespace headrace::cuda {

constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }

template <class T_, int kDim_, int kConsumers_>
struct Sm90Shape {
  using T = T_;
  static constexpr int kDim = kDim_, kConsumers = kConsumers_, kKeys = kDim > 128 ? 64 : 128, kColumns = kDim / 64;
  static constexpr int kRows = 64 * kConsumers, kThreads = 128 * (kConsumers + 1), kChunks = kDim / 8;
  static constexpr int kColumnBytes = kKeys * 128, kTileBytes = kColumns * kColumnBytes;
  static constexpr int kQBytes = larger(64 * kDim * 2, (static_cast<int>(sizeof(RowScratch)) + 1023) / 1024 * 1024);
  static constexpr int kFreeBytes = 227 * 1024 - 1024 - 2048 - kConsumers * kQBytes;  // less alignment, Control
  static constexpr int kStages = smaller(4, kFreeBytes / (2 * kTileBytes));
  static constexpr int kSharedBytes = 1024 + kConsumers * kQBytes + kStages * 2 * kTileBytes + 2048;
  static_assert(kStages >= 2);
};

template <class S>
struct Control {
  uint64_t k_full[S::kStages], k_empty[S::kStages], v_full[S::kStages], v_empty[S::kStages];
  uint64_t work_full[2], work_empty[2];
  Work work[2];
  int arrived[S::kConsumers];
};

template <class S>
struct SharedLayout {
  char* base;

  __device__ explicit SharedLayout(char* memory) {
    const uint32_t at = shared_address(memory);
    base = memory + ((1024 - (at & 1023)) & 1023);
  }
  __device__ char* q(int consumer) const { return base + consumer * S::kQBytes; }
  __device__ uint32_t k(int stage) const {
    return shared_address(base) + S::kConsumers * S::kQBytes + stage * 2 * S::kTileBytes;
  }
  __device__ uint32_t v(int stage) const { return k(stage) + S::kTileBytes; }
  __device__ Control<S>& control() const {
    return *reinterpret_cast<Control<S>*>(base + S::kConsumers * S::kQBytes + S::kStages * 2 * S::kTileBytes);
  }
};

// 16-byte chunk `chunk` of a row of a tile of `rows` rows, stored as columns of 64 elements.
__device__ inline uint32_t column_swizzled(int rows, int row, int chunk) {
  return static_cast<uint32_t>((chunk / 8 * rows + row) * 128 + ((chunk ^ row) & 7) * 16);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The warp that fetches pieces of work and their keys.
template <class S>
struct Producer {
  const AttentionParams& p;
  const KVMaps& maps;
  SharedLayout<S> shared;
  RingPlace<S::kStages> place;
  int lane;

  __device__ void copy_side(const CUtensorMap& map, uint32_t to, uint64_t& full, int page, int slot, bool valid,
                            int kv_head, int box_rows, int pages) {
    const uint32_t barrier = shared_address(&full);
    if (lane == 0) barrier_expect(barrier, static_cast<uint32_t>(pages * box_rows * 128 * S::kColumns));
    __syncwarp();
    if (!valid) return;
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      copy_box(to + c * S::kColumnBytes + lane * box_rows * 128, map, c * 64, slot, kv_head, page, barrier);
    }
  }
  __device__ void feed(const Work& work) {
    Control<S>& control = shared.control();
    const KeyAxis axis(p, work.span);
    const int group = p.heads / p.kv_heads, last = min(work.row0 + S::kRows, work.rows) - 1;
    const BlockKeys keys(p, axis, axis.row(p, work.row0 / group), axis.row(p, last / group));
    const int box_rows = min(p.page_size, S::kKeys), boxes = S::kKeys / box_rows;
    const int32_t* table = p.page_table + axis.page_row * p.table_stride;
    for (int i = work.begin; i < work.end; ++i) {
      const int from = work.tiles.tile(i) * S::kKeys + lane * box_rows;
      const bool with_cached = work.tiles.holds_cached(i);
      const bool valid =
          lane < boxes && (keys.sees_cached(from, from + box_rows, with_cached) ||
                           (p.k_new.data == nullptr && keys.sees_fresh(from, from + box_rows, with_cached)));
      const int page = valid ? table[from >> p.page_shift] : 0, slot = from & (p.page_size - 1);
      const int pages = __popc(__ballot_sync(0xffffffffu, valid));
      barrier_wait(shared_address(&control.k_empty[place.stage]), place.phase ^ 1);
      copy_side(maps.k, shared.k(place.stage), control.k_full[place.stage], page, slot, valid, work.kv_head, box_rows,
                pages);
      barrier_wait(shared_address(&control.v_empty[place.stage]), place.phase ^ 1);
      copy_side(maps.v, shared.v(place.stage), control.v_full[place.stage], page, slot, valid, work.kv_head, box_rows,
                pages);
      place.next();
    }
  }
  __device__ void run(const PartPlan& plan) {
    Control<S>& control = shared.control();
    const WorkList<S::kKeys, S::kRows> list(p, plan);
    const int pieces = list.pieces();
    RingPlace<2> at;
    int index = blockIdx.x;
    for (bool more = true; more; at.next()) {
      more = index < pieces;
      Work work;
      if (more) work = list.piece(index);
      barrier_wait(shared_address(&control.work_empty[at.stage]), at.phase ^ 1);
      if (lane == 0) {
        control.work[at.stage] = work;
        barrier_arrive(shared_address(&control.work_full[at.stage]));
      }
      __syncwarp();
      if (!more) break;
      feed(work);
      if (lane == 0) index = gridDim.x + static_cast<int>(atomicAdd(&plan.queue[0], 1u));
      index = __shfl_sync(0xffffffffu, index, 0);
    }
    if (lane == 0 && atomicInc(&plan.queue[1], gridDim.x - 1) == gridDim.x - 1) plan.queue[0] = 0;  // for the next call
  }
};

// A warpgroup and its 64 rows.
template <class S>
struct Consumer {
  using T = typename S::T;
  static constexpr int kSteps = S::kKeys / 16;
  using Scores = float[S::kKeys / 8][4];
  using Values = float[S::kDim / 8][4];

  const AttentionParams& p;
  const PartPlan& plan;
  SharedLayout<S> shared;
  int consumer, thread, lane, warp;  // of the warpgroup
  RingPlace<S::kStages> place;
  float to_log2;

  __device__ void sync() const { named_barrier(1 + consumer, 128); }
  __device__ int row_of(int half) const { return consumer * 64 + warp * 16 + half * 8 + lane / 4; }

  __device__ void release(uint64_t& empty) const {
    if (lane == 0) barrier_arrive(shared_address(&empty));
  }

  __device__ void load_queries(const Work& work, int group) const {
    char* to = shared.q(consumer);
    for (int i = thread; i < 64 * S::kChunks; i += 128) {
      const int r = i / S::kChunks, c = i % S::kChunks, row = work.row0 + consumer * 64 + r;
      uint4 x = make_uint4(0, 0, 0, 0);
      if (row < work.rows && c * 8 < p.head_dim) {
        const int64_t token = work.span.q_off + row / group;
        const int head = work.kv_head * group + row % group;
        x = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.q) + token * p.q_token_stride +
                                            head * p.q_head_stride + c * 8);
      }
      *reinterpret_cast<uint4*>(to + column_swizzled(64, r, c)) = x;
    }
    fence_for_wgmma();
    sync();
  }

  __device__ void start_scores(Scores& s) const {
    const uint32_t q_at = shared_address(shared.q(consumer)), k_at = shared.k(place.stage);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      const uint32_t column = d / 4, within = d % 4 * 32;
      wgmma_shared<T>(s, wgmma_operand(q_at + column * 64 * 128 + within, 0),
                      wgmma_operand(k_at + column * S::kColumnBytes + within, 0), d == 0 ? Add::kNo : Add::kYes);
    }
    wgmma_commit();
  }
  __device__ void start_values(Values& o, const uint32_t (&w)[kSteps][4], int stage) const {
    const uint32_t v_at = shared.v(stage);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < kSteps; ++n) wgmma_registers<T>(o, w[n], wgmma_operand(v_at + n * 2048, S::kColumnBytes));
    wgmma_commit();
  }

  // What the copy engine cannot bring: new keys that are not read from the pool; and, with kClearHidden, zeros for keys
  // that no row of the block sees, since what lies there may be NaN. Both warpgroups may write the same.
  enum class Fill : uint8_t { kNewKeys, kClearHidden };
  __device__ void fill_tile(const PagedSide& fresh, int dim, const BlockKeys& keys, const KeySpan& span, int kv_head,
                            int tile, bool with_cached, uint32_t to, Fill fill) const {
    for (int i = thread; i < S::kKeys * S::kChunks; i += 128) {
      const int r = i / S::kChunks, c = i % S::kChunks, at = tile * S::kKeys + r;
      const bool is_new = keys.sees_fresh(at, at + 1, with_cached);
      uint4 x = make_uint4(0, 0, 0, 0);
      if (is_new && fresh.data != nullptr) {
        const int64_t from =
            int64_t{span.q_off + at - span.phys0} * fresh.page_stride + kv_head * fresh.head_stride + c * 8;
        if (c * 8 < dim) x = *reinterpret_cast<const uint4*>(static_cast<const T*>(fresh.data) + from);
      } else if (is_new || fill == Fill::kNewKeys || keys.sees_cached(at, at + 1, with_cached)) {
        continue;
      }
      *reinterpret_cast<uint4*>(shared.base + (to - shared_address(shared.base)) + column_swizzled(S::kKeys, r, c)) = x;
    }
    fence_for_wgmma();
    sync();
  }

  __device__ void cap_scores(Scores& s) const {
    const float inner = p.scale / p.cap;
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[n][j] = p.cap * tanhf(s[n][j] * inner);
    }
  }
  __device__ void mask_scores(Scores& s, const KeyAxis& axis, const KeyAxis::Row (&rows)[2], int shift, int tile,
                              bool with_cached) const {
    const int first = tile * S::kKeys + lane % 4 * 2;
    if (shift == 0 && rows[0].first_new <= axis.ctx && rows[1].first_new <= axis.ctx &&
        axis.span.hole_end <= axis.span.hole_begin) {
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = first + n * 8 + j % 2;
          if (at < rows[j / 2].first || at >= rows[j / 2].end) s[n][j] = -INFINITY;
        }
      }
      return;
    }
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = first + n * 8 + j % 2;
        if (!sees_position(p, axis, rows[j / 2], shift, at, with_cached)) s[n][j] = -INFINITY;
      }
    }
  }

  // Scores to weights in place; `keep` is what earlier values are to be multiplied by.
  __device__ void soften(Scores& s, float (&largest)[2], float (&sum)[2], float (&keep)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = largest[half];
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) top = fmaxf(top, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float base = top == -INFINITY ? 0.0f : top * to_log2;
      keep[half] = exp2_fast(fmaf(largest[half], to_log2, -base));
      float added = 0;
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
        for (int j = half * 2; j < half * 2 + 2; ++j) added += s[n][j] = exp2_fast(fmaf(s[n][j], to_log2, -base));
      }
      largest[half] = top;
      sum[half] = fmaf(sum[half], keep[half], added);
    }
  }
  __device__ static float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ static void pack(uint32_t (&w)[kSteps][4], const Scores& s) {
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      w[n][0] = pack2<T>(s[2 * n][0], s[2 * n][1]);
      w[n][1] = pack2<T>(s[2 * n][2], s[2 * n][3]);
      w[n][2] = pack2<T>(s[2 * n + 1][0], s[2 * n + 1][1]);
      w[n][3] = pack2<T>(s[2 * n + 1][2], s[2 * n + 1][3]);
    }
  }

  __device__ void run() {
    Control<S>& control = shared.control();
    RingPlace<2> at;
    for (;; at.next()) {
      barrier_wait(shared_address(&control.work_full[at.stage]), at.phase);
      const Work& work = control.work[at.stage];
      if (work.request < 0) return;
      if (work.row0 + consumer * 64 < work.rows) {
        attend(work);
      } else {
        pass(work);
      }
      release(control.work_empty[at.stage]);
    }
  }

  // Keeps the rings in step for a piece that has no rows here.
  __device__ void pass(const Work& work) {
    Control<S>& control = shared.control();
    for (int i = work.begin; i < work.end; ++i) {
      barrier_wait(shared_address(&control.k_full[place.stage]), place.phase);
      release(control.k_empty[place.stage]);
      barrier_wait(shared_address(&control.v_full[place.stage]), place.phase);
      release(control.v_empty[place.stage]);
      place.next();
    }
  }

  // Whether every row of the block sees all of a tile.
  __device__ static bool plain_tile(const KeyAxis& axis, const KeyAxis::Row& top, const KeyAxis::Row& bottom,
                                    const BlockKeys& keys, int tile) {
    const int from = tile * S::kKeys, to = from + S::kKeys;
    if (!keys.joined || to > top.end || keys.hole.meets(from, to)) return false;
    return (from >= axis.ctx || from >= bottom.first) && (to <= axis.ctx || max(from, axis.ctx) >= bottom.first_new);
  }

  __device__ void attend(const Work& work) {
    Control<S>& control = shared.control();
    const int group = p.heads / p.kv_heads;
    load_queries(work, group);
    const KeyAxis axis(p, work.span);
    const int last = min(work.row0 + S::kRows, work.rows) - 1;
    const KeyAxis::Row top = axis.row(p, work.row0 / group), bottom = axis.row(p, last / group);
    const BlockKeys keys(p, axis, top, bottom);
    KeyAxis::Row rows[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) rows[half] = axis.row(p, min(work.row0 + row_of(half), last) / group);

    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {}, keep[2];
    Values o;
#pragma unroll
    for (int d = 0; d < S::kDim / 8; ++d) o[d][0] = o[d][1] = o[d][2] = o[d][3] = 0;
    uint32_t w[kSteps][4];
    Scores s;
    const auto finish_scores = [&](int i) {
      const int tile = work.tiles.tile(i);
      if (p.cap > 0) cap_scores(s);
      if (!plain_tile(axis, top, bottom, keys, tile))
        mask_scores(s, axis, rows, keys.shift, tile, work.tiles.holds_cached(i));
      soften(s, largest, sum, keep);
    };
    const auto has_new = [&](int tile, bool with_cached) {
      return p.k_new.data != nullptr && keys.sees_fresh(tile * S::kKeys, (tile + 1) * S::kKeys, with_cached);
    };
    const auto await_keys = [&](int i) {
      barrier_wait(shared_address(&control.k_full[place.stage]), place.phase);
      const int tile = work.tiles.tile(i);
      const bool with_cached = work.tiles.holds_cached(i);
      if (!has_new(tile, with_cached)) return;
      fill_tile(p.k_new, p.head_dim, keys, work.span, work.kv_head, tile, with_cached, shared.k(place.stage),
                Fill::kNewKeys);
    };
    const auto await_values = [&](int i, const RingPlace<S::kStages>& v) {
      barrier_wait(shared_address(&control.v_full[v.stage]), v.phase);
      const int tile = work.tiles.tile(i);
      const bool with_cached = work.tiles.holds_cached(i);
      if (plain_tile(axis, top, bottom, keys, tile) && !has_new(tile, with_cached)) return;
      fill_tile(p.v_new, p.v_head_dim, keys, work.span, work.kv_head, tile, with_cached, shared.v(v.stage),
                Fill::kClearHidden);
    };
    if (work.begin < work.end) {
      await_keys(work.begin);
      start_scores(s);
      wgmma_wait<0>();
      hold(s);
      release(control.k_empty[place.stage]);
      finish_scores(work.begin);
      pack(w, s);
      for (int i = work.begin + 1; i < work.end; ++i) {
        const RingPlace<S::kStages> v = place;
        place.next();
        await_keys(i);
        start_scores(s);
        await_values(i - 1, v);
        start_values(o, w, v.stage);
        wgmma_wait<1>();
        hold(s);
        release(control.k_empty[place.stage]);
        finish_scores(i);
        wgmma_wait<0>();
        hold(o);
        release(control.v_empty[v.stage]);
        if (__any_sync(0xffffffffu, keep[0] != 1 || keep[1] != 1)) {
#pragma unroll
          for (int d = 0; d < S::kDim / 8; ++d) {
            o[d][0] *= keep[0], o[d][1] *= keep[0], o[d][2] *= keep[1], o[d][3] *= keep[1];
          }
        }
        pack(w, s);
      }
      await_values(work.end - 1, place);
      start_values(o, w, place.stage);
      wgmma_wait<0>();
      hold(o);
      release(control.v_empty[place.stage]);
      place.next();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    }
    if (work.part >= work.parts) return;  // none of its keys are seen
    if (work.parts > 1) {
      write_part(work, group, o, largest, sum);
    } else {
      write_rows(work, group, o, largest, sum);
    }
  }

  __device__ int64_t row_place(const Work& work, int group, int row, int& token, int& head) const {
    token = work.span.q_off + row / group;
    head = work.kv_head * group + row % group;
    return int64_t{token} * p.heads + head;
  }
  __device__ void write_rows(const Work& work, int group, const Values& o, const float (&largest)[2],
                             const float (&sum)[2]) const {
    bool nan = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = work.row0 + row_of(half);
      if (row >= work.rows) continue;
      int token, head;
      row_place(work, group, row, token, head);
      if (p.lse != nullptr && lane % 4 == 0) {
        p.lse[token * p.lse_stride + head] = log_sum(__fmul_rn(largest[half], to_log2), sum[half]);
      }
      const float scale = sum[half] == 0 ? 0.0f : 1.0f / sum[half];
      T* to = static_cast<T*>(p.out) + token * p.out_token_stride + head * p.out_head_stride;
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
        const int column = d * 8 + lane % 4 * 2;
        if (column >= p.v_head_dim) continue;
        const float x = o[d][half * 2] * scale, y = o[d][half * 2 + 1] * scale;
        *reinterpret_cast<uint32_t*>(to + column) = pack2<T>(x, y);
        nan |= isnan(x) || isnan(y);
      }
    }
    redo_if(nan, work, group);
  }
  // Rounded step by step, so that every caller has the same bits.
  __device__ static float log_sum(float largest, float sum) {
    return sum == 0 ? -INFINITY : __fmul_rn(__fadd_rn(largest, log2f(sum)), 0.6931471805599453f);
  }

  // A value that is infinite or NaN spoils rows that do not see it, since 0 times it is NaN. Such elements, which real
  // models do not have, are done again row by row.
  __device__ void redo_if(bool nan, const Work& work, int group) const {
    const int found = any_of_group(nan);
    if (!found) return;
    for (int row = work.row0 + consumer * 64; row < min(work.row0 + consumer * 64 + 64, work.rows); ++row) {
      attend_row(p, work.request, work.span.q_off + row / group, work.kv_head * group + row % group,
                 *reinterpret_cast<RowScratch*>(shared.q(consumer)), RowWrite::kWhereNaN,
                 RowTeam{1 + consumer, thread});
    }
  }
  __device__ int any_of_group(bool mine) const {
    int any;
    asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; bar.red.or.pred q, %2, 128, p; selp.b32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"(static_cast<int>(mine)), "r"(1 + consumer)
                 : "memory");
    return any;
  }

  __device__ void write_part(const Work& work, int group, const Values& o, const float (&largest)[2],
                             const float (&sum)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = work.row0 + row_of(half);
      if (row >= work.rows) continue;
      int token, head;
      const int64_t at = row_place(work, group, row, token, head) * plan.max_parts + work.part;
      if (lane % 4 == 0) plan.states[at] = make_float2(__fmul_rn(largest[half], to_log2), sum[half]);
      float* to = plan.values + at * p.v_head_dim;
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
        const int column = d * 8 + lane % 4 * 2;
        if (column < p.v_head_dim)
          *reinterpret_cast<float2*>(to + column) = make_float2(o[d][half * 2], o[d][half * 2 + 1]);
      }
    }
    __threadfence();
    sync();
    Control<S>& control = shared.control();
    if (thread == 0) {
      const int64_t counter = (int64_t{work.tile_index} * p.kv_heads + work.kv_head) * S::kConsumers + consumer;
      control.arrived[consumer] = static_cast<int>(atomicInc(&plan.arrived[counter], work.parts - 1));
    }
    sync();
    if (control.arrived[consumer] == work.parts - 1) join(work, group);
  }

  // Adds up the parts of this warpgroup's rows, in their order: a warp a row.
  __device__ void join(const Work& work, int group) const {
    __threadfence();
    bool nan = false;
    const int first = work.row0 + consumer * 64, stop = min(first + 64, work.rows);
    for (int row = first + warp; row < stop; row += 4) {
      int token, head;
      const int64_t at = row_place(work, group, row, token, head) * plan.max_parts;
      float top = -INFINITY, total = 0;
      for (int i = lane; i < work.parts; i += 32) top = fmaxf(top, __ldcg(&plan.states[at + i].x));
      top = warp_max(top);
      const float base = top == -INFINITY ? 0.0f : top;
      float x[S::kDim / 32] = {};
#pragma unroll 4
      for (int i = 0; i < work.parts; ++i) {
        const float2 state = __ldcg(&plan.states[at + i]);
        const float factor = exp2_fast(state.x - base);
        total = fmaf(factor, state.y, total);
        const float* from = plan.values + (at + i) * p.v_head_dim;
#pragma unroll
        for (int d = 0; d < S::kDim / 64; ++d) {
          const int column = d * 64 + lane * 2;
          const float2 v =
              column < p.v_head_dim ? __ldcg(reinterpret_cast<const float2*>(from + column)) : make_float2(0, 0);
          x[2 * d] = fmaf(factor, v.x, x[2 * d]);
          x[2 * d + 1] = fmaf(factor, v.y, x[2 * d + 1]);
        }
      }
      const float scale = total == 0 ? 0.0f : 1.0f / total;
      T* to = static_cast<T*>(p.out) + token * p.out_token_stride + head * p.out_head_stride;
#pragma unroll
      for (int d = 0; d < S::kDim / 64; ++d) {
        const int column = d * 64 + lane * 2;
        if (column >= p.v_head_dim) continue;
        *reinterpret_cast<uint32_t*>(to + column) = pack2<T>(x[2 * d] * scale, x[2 * d + 1] * scale);
        nan |= isnan(x[2 * d] * scale) || isnan(x[2 * d + 1] * scale);
      }
      if (p.lse != nullptr && lane == 0) p.lse[token * p.lse_stride + head] = log_sum(base, total);
    }
    redo_if(nan, work, group);
  }
};

template <class S>
__device__ void attend_sm90_block(const KVMaps& maps, const AttentionParams& p, const PartPlan& plan, char* memory) {
  const SharedLayout<S> shared(memory);
  Control<S>& control = shared.control();
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      for (uint64_t* full : {&control.k_full[i], &control.v_full[i]}) barrier_init(shared_address(full), 1);
      for (uint64_t* empty : {&control.k_empty[i], &control.v_empty[i]})
        barrier_init(shared_address(empty), 4 * S::kConsumers);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&control.work_full[i]), 1);
      barrier_init(shared_address(&control.work_empty[i]), 4 * S::kConsumers);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  if (group == 0) {
    if constexpr (S::kConsumers == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (thread < 32) Producer<S>{p, maps, shared, {}, thread}.run(plan);
  } else {
    if constexpr (S::kConsumers == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    Consumer<S>{p,           plan,   shared,
                group - 1,   thread, thread % 32,
                thread / 32, {},     p.cap > 0 ? 1.4426950408889634f : p.scale * 1.4426950408889634f}
        .run();
  }
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    attend_sm90(const __grid_constant__ KVMaps maps, const __grid_constant__ AttentionParams p,
                const __grid_constant__ PartPlan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  attend_sm90_block<S>(maps, p, plan, memory);
#endif
}

template <class S>
void launch_sm90(const KVMaps& maps, const AttentionParams& p, const PartPlan& plan, const Stream& stream) {
  static const bool ready = [] {
    check_cuda(cudaFuncSetAttribute(attend_sm90<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
               "paged_attention: shared memory");
    return true;
  }();
  static_cast<void>(ready);
  attend_sm90<S><<<static_cast<unsigned>(stream.num_sms), S::kThreads, S::kSharedBytes, stream.handle>>>(maps, p, plan);
  check_launch("paged_attention");
}

template <class T, int kDim>
void attend_sm90_of(const KVMaps& maps, const AttentionParams& p, const PartPlan& plan, int max_rows,
                    const Stream& stream) {
  if (max_rows <= 64) {
    launch_sm90<Sm90Shape<T, kDim, 1>>(maps, p, plan, stream);
  } else {
    launch_sm90<Sm90Shape<T, kDim, 2>>(maps, p, plan, stream);
  }
}

}  // namespace headrace::cuda
