// Merges rows whose KV splits ran on several CTAs.
#include "headrace/ops/cuda/arch/mma_sm80.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/common/merge_states.cuh"
#include "headrace/ops/cuda/attention/simt/attention_row.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kMergeWarps = 4, kAhead = 8;  // kAhead: splits loaded before the first is used

// Merged state of a row, or one warp's part of it. Lane l holds the elements l * 4 + 128 i and the three after each.
template <int kVectors>
struct MergedRow {
  PartialState state;
  float4 value[kVectors] = {};

  __device__ void add(PartialState part, const float4 (&values)[kVectors]) {
    if (part.sum == 0) return;
    const PartialState all = state.merged_with(part);
    const float a = state.factor(all), b = part.factor(all);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      value[i].x = PartialState::merged_value(value[i].x, a, values[i].x, b);
      value[i].y = PartialState::merged_value(value[i].y, a, values[i].y, b);
      value[i].z = PartialState::merged_value(value[i].z, a, values[i].z, b);
      value[i].w = PartialState::merged_value(value[i].w, a, values[i].w, b);
    }
    state = all;
  }

  // Merges every `step`-th split from `first` on.
  __device__ void add(const AttentionParams& p, const WorkPlan& plan, const MergeEntry& entry, int row, int lane,
                      int first, int step) {
    for (int base = first; base < entry.parts; base += kAhead * step) {
      float4 loaded[kAhead][kVectors];
      PartialState parts[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int part = base + j * step;
        if (part >= entry.parts) continue;
        const int64_t at = static_cast<int64_t>(entry.slot_of(part)) * plan.slot_rows + row;
        const float2 x = plan.states[at];
        parts[j] = {x.x, x.y};
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const int d = lane * 4 + i * 128;
          loaded[j][i] =
              d < p.v_head_dim ? *reinterpret_cast<const float4*>(plan.values + at * p.v_head_dim + d) : float4{};
        }
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (base + j * step < entry.parts) add(parts[j], loaded[j]);
      }
    }
  }

  // Returns true if a value is NaN.
  __device__ bool write(const AttentionParams& p, int token, int head, int lane) const {
    const float scale = state.sum == 0 ? 0.0f : p.v_scale / state.sum;
    bool nan = false;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int d = lane * 4 + i * 128;
      if (d >= p.v_head_dim) continue;
      const float x[4] = {value[i].x * scale, value[i].y * scale, value[i].z * scale, value[i].w * scale};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        store(p.out, p.q_type, token * p.out_token_stride + head * p.out_head_stride + d + j, x[j]);
        nan |= isnan(x[j]);
      }
    }
    if (p.lse != nullptr && lane == 0) p.lse[token * p.lse_stride + head] = state.log_sum();
    return nan;
  }
};

// Merges what the CTA's warps have of a row, in the first warp.
template <int kVectors>
__device__ void merge_warps(MergedRow<kVectors>& row, int warp, int lane) {
  __shared__ float4 values[kMergeWarps][kVectors][32];
  __shared__ PartialState states[kMergeWarps];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) values[warp][i][lane] = row.value[i];
  if (lane == 0) states[warp] = row.state;
  __syncthreads();
  if (warp != 0) return;
  for (int w = 1; w < kMergeWarps; ++w) {
    float4 others[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) others[i] = values[w][i][lane];
    row.add(states[w], others);
  }
}

// kRows: rows of a CTA. One per warp; or one that all warps share, where splits are many and no order of theirs is
// required.
template <int kVectors, int kRows>
__global__ void __launch_bounds__(kMergeWarps * 32) merge_splits(const __grid_constant__ AttentionCall call) {
  const AttentionParams& p = call.p;
  const WorkPlan& plan = call.plan;
  __shared__ RowScratch scratch;
  pdl_launch_dependents();
  pdl_wait();  // the CTAs that write the splits
  const MergeEntry entry = plan.entries[blockIdx.x];
  if (entry.parts < 2) return;
  const int group = p.heads / p.kv_heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.y * kRows;
  const int q_off = p.spans[entry.request].q_off, here = min(plan.slot_rows, entry.rows - entry.row0);
  const auto token_of = [&](int row) { return q_off + (entry.row0 + row) / group; };
  const auto head_of = [&](int row) { return entry.kv_head * group + (entry.row0 + row) % group; };
  if (first >= here) return;
  bool nan = false;
  if constexpr (kRows == 1) {
    MergedRow<kVectors> merged;
    merged.add(p, plan, entry, first, lane, warp, kMergeWarps);
    merge_warps(merged, warp, lane);
    if (warp == 0) nan = merged.write(p, token_of(first), head_of(first), lane);
  } else if (const int row = first + warp; row < here) {
    MergedRow<kVectors> merged;
    merged.add(p, plan, entry, row, lane, 0, 1);
    nan = merged.write(p, token_of(row), head_of(row), lane);
  }
  if (!__syncthreads_or(nan)) return;
  for (int row = first; row < min(first + kRows, here); ++row) {
    attend_row(p, entry.request, token_of(row), head_of(row), scratch, RowWrite::kWhereNaN,
               {1, static_cast<int>(threadIdx.x)});
  }
}

template <int kRows>
void launch_merge(const AttentionCall& call, const Stream& stream) {
  const auto rows = static_cast<unsigned>((call.plan.slot_rows + kRows - 1) / kRows);
  launch_pdl(stream, call.p.v_head_dim <= 128 ? merge_splits<1, kRows> : merge_splits<2, kRows>,
             dim3(static_cast<unsigned>(call.plan.entry_count), rows), dim3(kMergeWarps * 32), 0, call,
             "paged_attention: merging KV splits");
}

}  // namespace

void merge_splits_sm90(const AttentionCall& call, const Stream& stream) {
  const bool many_parts = call.plan.sharing == WorkPlan::Sharing::kEvenSplits && call.plan.slot_rows <= kCutRows;
  (many_parts ? launch_merge<1> : launch_merge<kMergeWarps>)(call, stream);
}

}  // namespace headrace::cuda
