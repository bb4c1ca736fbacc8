// Distribution of work tiles to the CTAs of FP8 decode.
#pragma once
#include "headrace/ops/cuda/attention/sm90/decode_fp8/fp8_decode_traits.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Work tiles of a CTA, from its share or from the queue, as the key producer copies them to shared memory. Number,
// words and publication of one are requested while others are processed.
template <class S>
struct Fp8DecodePieces {
  Fp8DecodeControl<S>& control;
  const AttentionParams& p;
  const WorkPlan& plan;
  int lane;
  unsigned at, end;           // the next work tile; none from `end` on
  unsigned units = 0;         // length of the queue
  int first = 0, second = 0;  // words of the next work tile
  PipelineState<Fp8DecodeControl<S>::kPieces> place{};

  __device__ Fp8DecodePieces(Fp8DecodeControl<S>& of_block, const AttentionParams& params, const WorkPlan& work_plan,
                             int of_lane)
      : control(of_block), p(params), plan(work_plan), lane(of_lane) {
    if (is_queue()) {
      units = *plan.units, at = blockIdx.x, end = units * static_cast<unsigned>(p.kv_heads);
    } else {
      const uint2 share = plan.shares[blockIdx.x];
      at = share.x, end = share.y + 1;
    }
  }
  // Requests the next work tile's number. Call it only after the preceding kernel has ended, which may use the same
  // queue. Only lane 0 has the number until ask_words().
  __device__ void ask_number() {
    if (!is_queue()) {
      ++at;
    } else if (lane == 0) {
      at = gridDim.x + atomicAdd(&plan.queue[0], 1u);
    }
  }
  // Requests that work tile's words. Long work tiles of the queue come first.
  __device__ void ask_words() {
    at = __shfl_sync(0xffffffffu, at, 0);
    if (at >= end) return;
    const int* from = reinterpret_cast<const int*>(plan.works + (is_queue() ? units - 1 - at / kv_heads() : at));
    first = from[lane];
    if (lane + 32 < Work::kWords) second = from[lane + 32];
  }
  // Publishes the requested work tile. Its request is -1 if there is none.
  __device__ void publish() {
    barrier_wait(shared_address(&control.work_empty[place.stage]), place.phase ^ 1);
    Work& to = control.work[place.stage];
    int* words = reinterpret_cast<int*>(&to);
    words[lane] = first;
    if (lane + 32 < Work::kWords) words[lane + 32] = second;
    __syncwarp();
    if (lane == 0) complete(to);
    barrier_arrive(shared_address(&control.work_full[place.stage]));
    place.next();
  }
  // Resets the queue after the last CTA. One thread calls it, when all work is done.
  __device__ void leave() const {
    if (is_queue() && atomicInc(&plan.queue[1], gridDim.x - 1) == gridDim.x - 1)
      plan.queue[0] = 0;  // for the next call
  }

 private:
  __device__ void complete(Work& work) const {
    if (at >= end) work.request = -1;
    if (!is_queue()) return;
    work.kv_head = static_cast<int>(at % kv_heads());
    if (work.slot >= 0) work.slot += work.kv_head * plan.max_splits;
  }
  __device__ unsigned kv_heads() const { return static_cast<unsigned>(p.kv_heads); }
  __device__ bool is_queue() const { return plan.sharing == WorkPlan::Sharing::kQueue; }
};

// Boundaries of the fixed KV splits in a work tile. Batch-invariant mode merges these splits in order.
struct Fp8DecodeCuts {
  const KeyTiles& tiles;
  int group, next;  // tiles of a split; first tile of the next split

  __device__ Fp8DecodeCuts(const AttentionCall& call, const Work& work)
      : tiles(work.tiles),
        group(call.determinism == Determinism::kStrict ? call.plan.group_tiles : 0),
        next(group > 0 ? tiles.group_end(group, work.begin) : work.end) {}
  // Returns true if tile `i` begins another split. The work tile's tiles come in order.
  __device__ bool pass(int i) {
    if (i != next) return false;
    next = tiles.group_end(group, i);
    return true;
  }
};

// Read side of the work tiles, for each warp that processes or loads them.
template <class S>
struct Fp8DecodePiece {
  Fp8DecodeControl<S>& control;
  PipelineState<Fp8DecodeControl<S>::kPieces> place{};

  // Waits until the work tile is published.
  __device__ const Work& work() const { return known(place); }
  __device__ const Work& behind() const { return known(place_behind()); }
  __device__ int stage_behind() const { return place_behind().stage; }
  // Releases the work tile. All lanes of all warps that process it call it.
  __device__ void leave() {
    barrier_arrive(shared_address(&control.work_empty[place.stage]));
    pass();
  }
  __device__ void pass() { place.next(); }

 private:
  __device__ PipelineState<Fp8DecodeControl<S>::kPieces> place_behind() const {
    PipelineState<Fp8DecodeControl<S>::kPieces> after = place;
    after.next();
    return after;
  }
  __device__ const Work& known(const PipelineState<Fp8DecodeControl<S>::kPieces>& at) const {
    barrier_wait(shared_address(&control.work_full[at.stage]), at.phase);
    return control.work[at.stage];
  }
};

#endif

}  // namespace headrace::cuda
