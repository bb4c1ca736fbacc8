// A step's x in the shared memory of a product chain: brought past the caches, normed there, laid out as the second
// operand of wgmma: rows of 64 elements with the 128-byte swizzle, chunk by chunk.
#pragma once
#include "headrace/ops/cuda/arch/wgmma_mma.cuh"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_hand_over.cuh"

namespace headrace::cuda::gemm_sequence {

// The slices of x that a team multiplies with: all of them are here, and the teams take turns with them, or its own
// come as they are needed.
struct Slices {
  int first_slice, count, at = 0, turn = 0;  // the place and the number of what is to be used
  int next = 0, left = 0;                    // to be fetched; fetches to come
  bool whole, fresh = true;
};

// Where a step's x lies. Such copies stand in registers: what lies in shared memory, as a step does, is read anew
// behind every instruction that touches memory.
template <class T>
struct Source {
  const T* data;
  int64_t stride;
  int in;

  __device__ explicit Source(const Step& step)
      : data(static_cast<const T*>(step.x.data)), stride(step.x.token_stride), in(step.in) {}
};

// As one thread of a team sees it. kColumns: rows of x in a product, those that are not there are zeros.
template <class T, int kColumns>
struct Input {
  static constexpr int kPieces = GemmSequencePlan::kSliceLen / 8;  // of 16 bytes, of a row of a slice
  static constexpr int kRowStep = kTeamThreads / kPieces;          // a thread has one piece of every other row
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
  // This thread's piece of a row of x.
  __device__ uint32_t vec8_at(int i, int row) const {
    const int at = piece / 8 * kColumns + row;  // of rows of 128 bytes
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
  // Past the caches of this multiprocessor: other blocks have just written it. Zeros behind the ends.
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
  // What this thread fetched has come. Where it was handed over and had not been there yet, it is asked for until it
  // is: seldom, so in as few registers as may be.
  __device__ void settle(const Step& step, int slice, int place) const {
    if (!step.handed) return;
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const uint4 words = load_vec8(vec8_at(place, first_row + i * kRowStep));
      largest = max(largest, max(words.y, words.w));  // all ones where a word has not come; zeros have
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
  // Adds to a row's sum for each of this thread's rows; whether all of x has come, where it is handed over.
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
  // The factors of this thread's rows: sums as those of rms_norm.cu.
  __device__ void find_scales(const Step& step, int slices, float (&scales)[kThreadRows]) const {
    constexpr int kOfRow = GemmSequencePlan::kMostRows / 2;  // places for each warp
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
    named_barrier<kSquaresSeen, kConsumers>();  // the race checker misses the first one in some launches
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
      step.norm_weight != nullptr ? normalise(step, x.count) : settle_all(step, x.count);  // normalise looks by itself
      fence_for_wgmma();
      named_barrier<kXIsHere, kConsumers>();
      return x;
    }
    for_groups(step, [&](int, int) { x.left += x.count; });
    x.left -= now;
    return x;
  }
  // The next slice of those that come, where it lies. The one before it is done with by all of the team: its place
  // serves a later one.
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
