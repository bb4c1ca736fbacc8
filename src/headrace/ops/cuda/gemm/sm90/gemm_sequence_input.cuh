// A step's x in shared memory: loaded past the L1, normed there, and laid out as WGMMA's B operand: rows of 64 elements
// with the 128-byte swizzle, chunk by chunk.
#pragma once
#include "headrace/ops/cuda/arch/wgmma_mma.cuh"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_hand_over.cuh"

namespace headrace::cuda::gemm_sequence {

// The slices of x that a warpgroup multiplies with. Either all are in shared memory and the warpgroups swap them from
// group to group, or a warpgroup's own slices are streamed.
struct Slices {
  int first_slice, count, at = 0, turn = 0;  // at, turn: buffer and number of the slice to use next
  int next = 0, left = 0;                    // slice to fetch next; fetches to come
  bool whole, fresh = true;
};

// Address of a step's x. The copy stays in registers: values in shared memory, such as a Step, are read anew after
// every instruction that touches memory.
template <class T>
struct Source {
  const T* data;
  int64_t stride;
  int in;

  __device__ explicit Source(const Step& step)
      : data(static_cast<const T*>(step.x.data)), stride(step.x.token_stride), in(step.in) {}
};

// x as one consumer thread sees it.
template <class T>
struct Input {
  static constexpr int kPieces = GemmSequencePlan::kSliceLen / 8;  // 16-byte vectors of a row of a slice
  static constexpr int kRowStep = kTeamThreads / kPieces;          // a thread has one vector of every other row
  static constexpr int kThreadRows = kColumns / kRowStep;
  static constexpr int kSliceBytes = GemmSequencePlan::kSliceLen * 2 * kColumns;
  const Steps& p;
  const Shared shared;
  int team, warp, lane;
  int rows = p.rows, places = p.plan.slices;
  int piece = threadIdx.x % kPieces, first_row = threadIdx.x % kTeamThreads / kPieces;

  __device__ void meet_team() const {
    team == 0 ? named_barrier<kTeam0, kTeamThreads>() : named_barrier<kTeam1, kTeamThreads>();
  }
  __device__ uint32_t slice(int i, int of_team) const { return shared.x + (of_team * places + i) * kSliceBytes; }
  // Returns the address of this thread's vector of a row of x.
  __device__ uint32_t vec8_at(int i, int row) const {
    const int at = piece / 8 * kColumns + row;  // in rows of 128 bytes
    return slice(i, team) + at * 128 + ((piece ^ at) % 8) * 16;
  }
  __device__ uint32_t norm_piece(int slice) const { return shared.norm + (slice * kPieces + piece) * 16; }

  __device__ void fetch_norm(const Step& step) const {
    if (step.norm_weight == nullptr || first_row != 0 || Share(step).empty()) return;
    const auto* const weight = static_cast<const T*>(step.norm_weight);
    for (int slice = team, slices = step.slices, in = step.in; slice < slices; slice += kTeams) {
      const int k = slice * GemmSequencePlan::kSliceLen + piece * 8;
      const bool inside = k < in;
      copy16(norm_piece(slice), weight + (inside ? k : 0), inside);
    }
  }
  // Loads past this SM's L1, since other CTAs have just written x. Zeros past the ends.
  __device__ void fetch(const Source<T>& x, int slice, int to) const {
    const int k = slice * GemmSequencePlan::kSliceLen + piece * 8;
    const T* from = x.data + first_row * x.stride + k;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i, from += kRowStep * x.stride) {
      const int row = first_row + i * kRowStep;
      const bool inside = k < x.in && row < rows;
      copy16(vec8_at(to, row), inside ? from : x.data, inside);
    }
  }
  // Call it when this thread's fetch is complete. Polls handed-over values that have not arrived until they do. That is
  // rare, so it uses as few registers as possible.
  __device__ void settle(const Step& step, int slice, int place) const {
    if (!step.handed) return;
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const uint4 words = load_vec8(vec8_at(place, first_row + i * kRowStep));
      largest = max(largest, max(words.y, words.w));  // all ones if a word is missing; zeros are not
    }
    if (largest != ~0u) return;
#pragma unroll 1
    for (int row = first_row; row < min(p.rows, kColumns); row += kRowStep) {
      const int k = slice * GemmSequencePlan::kSliceLen + piece * 8;
      const T* const from = static_cast<const T*>(step.x.data) + row * step.in + k;
      if (k < step.in) store_vec8(vec8_at(place, row), wait_for_words(from));
    }
  }

  __device__ void settle_all(const Step& step, int slices) const {
    for (int i = 0; i < slices; ++i) settle(step, team + i * kTeams, i);
  }
  // Adds the squares of each of this thread's rows to its sum. Returns true if all values of a handed-over x have
  // arrived.
  __device__ bool square(int slices, float (&sums)[kThreadRows]) const {
    uint32_t largest = 0;
    for (int slice = 0; slice < slices; ++slice) {
      uint4 pieces[kThreadRows];
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) pieces[i] = load_vec8(vec8_at(slice, first_row + i * kRowStep));
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        largest = max(largest, max(pieces[i].y, pieces[i].w));
        for (const uint32_t word : {pieces[i].x, pieces[i].y, pieces[i].z, pieces[i].w}) {
          const float2 v = unpack2<T>(word);
          sums[i] = fmaf(v.y, v.y, fmaf(v.x, v.x, sums[i]));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) sums[i] = warp_sum(sums[i]);
    return largest != ~0u;
  }
  // Computes the norm's factor of each of this thread's rows, with the sums of rms_norm.cu.
  __device__ void find_scales(const Step& step, int slices, float (&scales)[kThreadRows]) const {
    constexpr int kOfRow = GemmSequencePlan::kMostRows / 2;  // sums of each warp
    float sums[kThreadRows] = {};
    while (!__all_sync(0xffffffffu, square(slices, sums) || !step.handed)) {
      settle_all(step, slices);
#pragma unroll
      for (float& sum : sums) sum = 0;
    }
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) shared.squares[(team * 4 + warp) * kOfRow + i] = sums[i];
    }
    named_barrier<kSquared, kConsumers>();
    named_barrier<kSquaresSeen, kConsumers>();  // racecheck misses the first one in some launches
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      float sum = 0;
#pragma unroll
      for (int t = 0; t < kTeams; ++t) {
#pragma unroll
        for (int w = 0; w < kPieces / 32; ++w) {
          sum += shared.squares[(t * 4 + first_row * (kPieces / 32) + w) * kOfRow + i];
        }
      }
      scales[i] = rsqrtf(sum / static_cast<float>(step.in) + step.eps);
    }
  }
  __device__ void normalise(const Step& step, int slices) const {
    float scales[kThreadRows];
    find_scales(step, slices, scales);
    const float weight_offset = step.weight_offset;
    for (int slice = 0; slice < slices; ++slice) {
      const uint4 factor = load_vec8(norm_piece(slice * kTeams + team));
      uint4 pieces[kThreadRows];
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) pieces[i] = load_vec8(vec8_at(slice, first_row + i * kRowStep));
      const uint32_t factor_words[] = {factor.x, factor.y, factor.z, factor.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float2 f = unpack2<T>(factor_words[j]);
        f.x += weight_offset, f.y += weight_offset;
#pragma unroll
        for (int i = 0; i < kThreadRows; ++i) {
          uint32_t* const words[] = {&pieces[i].x, &pieces[i].y, &pieces[i].z, &pieces[i].w};
          const float2 v = unpack2<T>(*words[j]);
          *words[j] = pack2<T>(v.x * (scales[i] * f.x), v.y * (scales[i] * f.y));
        }
      }
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) store_vec8(vec8_at(slice, first_row + i * kRowStep), pieces[i]);
    }
  }

  __device__ Slices begin(const Step& step) const {
    Slices x{.first_slice = team,
             .count = GemmSequencePlan::team_slices(step.slices, team),
             .whole = p.plan.holds(step.slices)};
    const int now = min(x.count, p.plan.slices);
    const Source<T> source(step);
    for (; x.next < now; ++x.next) {
      fetch(source, team + x.next * kTeams, x.next);
      commit_copies();
    }
    if (x.whole) {
      wait_copies<0>();
      step.norm_weight != nullptr ? normalise(step, x.count) : settle_all(step, x.count);  // normalise polls by itself
      fence_for_wgmma();
      named_barrier<kXIsHere, kConsumers>();
      return x;
    }
    for_groups(step, [&](int, int) { x.left += x.count; });
    x.left -= now;
    return x;
  }
  // Returns the address of the next streamed slice. All threads of the warpgroup are done with the slice before it, so
  // a later slice goes to that buffer.
  __device__ uint32_t take(const Step& step, Slices& x) const {
    wait_copies<1>();
    settle(step, team + x.turn * kTeams, x.at);
    if (++x.turn == x.count) x.turn = 0;
    fence_for_wgmma();
    meet_team();
    if (!x.fresh) {
      if (x.left > 0) {
        if (x.next == x.count) x.next = 0;
        fetch(Source<T>(step), team + x.next * kTeams, x.at == 0 ? places - 1 : x.at - 1);
        ++x.next, --x.left;
      }
      commit_copies();
    }
    x.fresh = false;
    const int at = x.at;
    if (++x.at == places) x.at = 0;
    return slice(at, team);
  }
};

}  // namespace headrace::cuda::gemm_sequence
