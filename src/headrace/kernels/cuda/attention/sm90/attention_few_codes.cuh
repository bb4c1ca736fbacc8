// Attention of few rows over a pool of FP8 on Hopper, in fast mode: memory is all that it should wait for. The four
// warps of a block share a piece of work, each a quarter of every tile of keys, which it brings by the copy engine and
// unpacks in registers: codes become half floats, which hold them exactly, so that an instruction makes two. They are
// the rows of `mma.sync` and queries, a few, its columns. Queries of bfloat16 become half floats, too, a row times a
// power of two. At a piece's end the warps' sums are joined, while keys of the next are on their way. Source: Dao et
// al. 2023, Flash-Decoding.
#pragma once
#include "headrace/kernels/cuda/attention/sm90/attention_few_codes_pieces.cuh"
#include "headrace/kernels/cuda/attention/sm90/attention_few_codes_warp.cuh"
#include "headrace/kernels/cuda/attention/sm90/row_sum.cuh"
#include "headrace/kernels/cuda/primitives/launch.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The warps' sums of one of eight rows, added up by one of them.
template <class S>
struct FewCodesRow : RowSum<S::kColumns> {
  using RowSum<S::kColumns>::add, RowSum<S::kColumns>::state, RowSum<S::kColumns>::value;

  __device__ FewCodesRow(const FewCodesControl<S>& control, const char* sums, int row, int lane) {
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float2 x = control.states[w][row];
      if (x.y == 0) continue;
      float4 values[S::kColumns];
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c)
        values[c] = *reinterpret_cast<const float4*>(sums + few_codes_sum_at<S>(w, row, c * 512 + lane * 16));
      add({x.x, x.y}, values);
    }
  }
  __device__ void write_part(const AttentionCall& call, int slot, int row, int lane) const {
    const int64_t at = static_cast<int64_t>(slot) * call.plan.slot_rows + row;
    if (lane == 0) call.plan.states[at] = make_float2(state.largest, state.sum);
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      const int d = c * 128 + lane * 4;
      if (d < call.p.v_head_dim) *reinterpret_cast<float4*>(call.plan.values + at * call.p.v_head_dim + d) = value[c];
    }
  }
  // Returns whether a value is NaN.
  __device__ bool write(const AttentionParams& p, int token, int head, int lane) const {
    const float by = state.sum == 0 ? 0.0f : p.v_scale / state.sum;
    auto* to = static_cast<typename S::T*>(p.out) + token * p.out_token_stride + head * p.out_head_stride;
    float zeros = 0;  // NaN where a value is NaN or infinite
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      const int d = c * 128 + lane * 4;
      const float x = value[c].x * by, y = value[c].y * by, z = value[c].z * by, w = value[c].w * by;
      zeros = fmaf(x, 0, fmaf(y, 0, fmaf(z, 0, fmaf(w, 0, zeros))));
      if (d < p.v_head_dim)
        *reinterpret_cast<uint2*>(to + d) = make_uint2(pack2<typename S::T>(x, y), pack2<typename S::T>(z, w));
    }
    if (p.lse != nullptr && lane == 0) p.lse[token * p.lse_stride + head] = state.log_sum();
    return isnan(zeros);
  }
};

// The rows of a piece that ends, eight at a time, by all warps in turn. Queries of the next are asked for meanwhile.
template <class S>
__device__ inline void write_few_codes(FewCodesWarp<S>& me, const Work& work, const Work& behind,
                                       FewCodesControl<S>& control, char* sums) {
  const AttentionParams& p = me.p;
  // Read before all have met for the last time: who is ahead puts the piece behind the next in this one's place.
  const int here = min(S::kRows, work.rows - work.row0), slot = work.slot;
  const auto token_of = [&](int row) { return work.span.q_off + me.packed.token(work.row0 + row); };
  const auto head_of = [&](int row) { return work.kv_head * me.packed.group + me.packed.head(work.row0 + row); };
  bool nan = false;
  const auto write_eight = [&](int first) {
    for (int row = first + me.warp; row < min(here, first + 8); row += S::kWarps) {
      const FewCodesRow<S> of(control, sums, row % 8, me.lane);
      if (slot >= 0) {
        of.write_part(me.call, slot, row, me.lane);
      } else {
        nan |= of.write(p, token_of(row), head_of(row), me.lane);
      }
    }
  };
  if (!S::kKeepsOn) __syncthreads();  // all are done with keys
  me.leave(control, sums, 0);
  if (S::kOctets > 1 && here > 8) {
    __syncthreads();
    write_eight(0);
    __syncthreads();
    me.leave(control, sums, S::kOctets - 1);
  }
  typename FewCodesWarp<S>::QueryWords words = {};
  if (S::kKeepsOn) me.ask_for_queries(behind, words);
  __syncthreads();
  write_eight(here > 8 ? 8 : 0);
  if (slot < 0 && __syncthreads_or(nan)) {
    for (int row = 0; row < here; ++row) {
      attend_row(p, work.request, token_of(row), head_of(row), *reinterpret_cast<RowScratch*>(sums),
                 RowWrite::kWhereNaN, {1, static_cast<int>(threadIdx.x)});
    }
  }
  if constexpr (S::kKeepsOn) {
    me.take_queries(words);
  } else {
    me.load_queries(behind);
  }
}

template <class S>
__device__ inline void attend_few_codes_block(const AttentionCall& call, char* shared) {
  char* const sums = shared + S::kSumsAt;
  auto& control = *reinterpret_cast<FewCodesControl<S>*>(shared + S::kControlAt);
  const int warp = static_cast<int>(uniform(threadIdx.x / 32)), lane = threadIdx.x % 32;
  if (lane < S::kStages) barrier_init(shared_address(&control.full[warp][lane]), 1);
  fence_barrier_init();
  if (!call.plan.stands) wait_for_previous();
  FewCodesPieces pieces(call.p, call.plan, lane);
  if (warp == 0) pieces.ask_words(), pieces.take(control.work[0]);
  const int box_rows = min(call.p.page_size, S::kWarpKeys), box_shift = __ffs(S::kWarpKeys / box_rows) - 1;
  FewCodesWarp<S> me{.call = call,
                     .p = call.p,
                     .full = shared_address(control.full[warp]),
                     .memory = shared_address(shared + warp * S::kRingBytes),
                     .bytes = shared + warp * S::kRingBytes,
                     .lane = lane,
                     .warp = warp,
                     .packed = PackedRows(call.p.heads / call.p.kv_heads),
                     .box_rows = box_rows,
                     .box_shift = box_shift,
                     .tile_of_lane = lane >> box_shift,
                     .box_of_lane = lane & ((1 << box_shift) - 1)};
  __syncthreads();
  auto source = me.source_of(control.work[0]);
  while (me.on_their_way < S::kStages && source.any() && few_codes_cached<S>(call.p, *source.work, source.at, warp))
    me.ask(source);
  wait_for_previous();
  let_next_start();
  me.fill_places(source);
  me.load_queries(control.work[0]);
  for (int now = 0; control.work[now].request >= 0; now ^= 1) {
    const Work& work = control.work[now];
    Work& behind = control.work[now ^ 1];
    if (warp == 0) pieces.ask_number();
    me.begin();
    const bool any = work.slot != Work::kNothing;
    const PlainRun plain = any ? few_codes_plain<S>(call.p, work) : PlainRun{};
    // All warps get to know the piece behind, and have read the sums of the one before.
    bool knows_next = false;
    const auto look_ahead = [&] {
      if (warp == 0) pieces.take(behind);
      __syncthreads();
      knows_next = true;
    };
    int i = work.begin;
#pragma unroll 1
    for (; any && i < work.end; ++i) {
      if (i == work.begin + 1 && warp == 0) pieces.ask_words();
      if (i == work.begin + 2) look_ahead();
      if (S::kKeepsOn && knows_next && source.work == &work && !source.any()) source = me.source_of(behind);
      me.attend_tile(work, source, i, plain.holds(i));
    }
    if (i <= work.begin + 1 && warp == 0) pieces.ask_words();
    if (!knows_next) look_ahead();
    if (source.work == &work) source = me.source_of(behind);
    if (S::kKeepsOn) me.fill_places(source);
    if (any) {
      write_few_codes<S>(me, work, behind, control, sums);
    } else {
      me.load_queries(behind);
    }
    if (S::kKeepsOn) continue;
    fence_for_wgmma();  // for the copy engine: keys of the next piece come where sums were
    __syncthreads();
    me.fill_places(source);
  }
  if (threadIdx.x == 0) pieces.leave();
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kResident) attend_codes(const __grid_constant__ AttentionCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  attend_few_codes_block<S>(call, shared);
#endif
}

template <class T, int kDim, int kOctets>
void launch_few_codes(const AttentionCall& call, const Stream& stream) {
  using S = FewCodesShape<T, kDim, kOctets>;
  launch_early(stream, attend_codes<S>, dim3(static_cast<unsigned>(call.blocks)), dim3(S::kThreads),
               few_codes_shared<S>(), call, "paged_attention");
}

template <class T, int kDim>
void attend_few_codes(const AttentionCall& call, const Stream& stream) {
  static_assert(kFewCodesRows == 16);
  (call.plan.slot_rows <= 8 ? launch_few_codes<T, kDim, 1> : launch_few_codes<T, kDim, 2>)(call, stream);
}

}  // namespace headrace::cuda
