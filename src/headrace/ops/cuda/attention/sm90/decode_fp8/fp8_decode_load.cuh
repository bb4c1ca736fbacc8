// Producer warps of FP8 decode: one loads work tiles and their keys, one values.
#pragma once
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_fp8/fp8_decode_keys.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_fp8/fp8_decode_scheduler.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Fills the pipeline of K tiles, or that of V tiles.
template <class S, int kStages>
struct Fp8DecodeProducer {
  const AttentionParams& p;
  Fp8DecodeControl<S>& control;
  const CUtensorMap& map;
  uint32_t memory;
  uint64_t (&full)[kStages];
  uint64_t (&empty)[kStages];
  int lane;
  int box_rows, box_shift;  // keys of a TMA box; a tile has 1 << box_shift boxes
  PipelineState<kStages> place{};

  // Page numbers of the tiles from list entry `first` on, one TMA box per lane. They are read ahead of their tiles.
  struct Pages {
    int first = 0, page = 0, slot = 0;
    unsigned valid = 0;  // a bit per lane
  };
  Pages pages, next;

  __device__ Fp8DecodeProducer(const AttentionParams& params, Fp8DecodeControl<S>& of_block, const CUtensorMap& of,
                               uint32_t to, uint64_t (&are_full)[kStages], uint64_t (&are_empty)[kStages], int of_lane)
      : p(params),
        control(of_block),
        map(of),
        memory(to),
        full(are_full),
        empty(are_empty),
        lane(of_lane),
        box_rows(min(params.page_size, S::kKeys)),
        box_shift(__ffs(S::kKeys / box_rows) - 1) {}

  __device__ int tile_of_lane() const { return lane >> box_shift; }
  __device__ int box_of_lane() const { return lane & ((1 << box_shift) - 1); }
  __device__ Pages pages_of(const Work& work, int first) const {
    const Fp8DecodeBox box = fp8_decode_box<S>(p, work, first + tile_of_lane(), box_of_lane() * box_rows);
    return {first, box.entry >= 0 ? p.page_table[box.entry] : 0, box.slot, __ballot_sync(0xffffffffu, box.entry >= 0)};
  }
  __device__ void begin(const Work& work) {
    pages = pages_of(work, work.begin), next = pages_of(work, work.begin + (32 >> box_shift));
  }
  // Loads list entry `i` into the next stage.
  __device__ void bring(const Work& work, int i) {
    if (i - pages.first == 32 >> box_shift) {
      pages = next;
      next = pages_of(work, i + (32 >> box_shift));
    }
    const int j = i - pages.first;
    const unsigned here = pages.valid >> (j << box_shift) & ((1u << (1 << box_shift)) - 1);
    const uint32_t barrier = shared_address(&full[place.stage]),
                   to = memory + place.stage * S::kSideBytes + box_of_lane() * box_rows * 128;
    barrier_wait(shared_address(&empty[place.stage]), place.phase ^ 1);
    if (lane == 0) barrier_expect(barrier, __popc(here) * static_cast<uint32_t>(box_rows * S::kDim));
    __syncwarp();
    if (tile_of_lane() == j && (pages.valid >> lane & 1) != 0) {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c)
        tma_load(to + c * S::kColumnBytes, map, c * 128, pages.slot, work.kv_head, pages.page, barrier, kReadOnce);
    }
    place.next();
  }
  // Loads the first work tile's keys that existed before the preceding kernel began, then waits for that kernel.
  // Returns the next tile.
  __device__ int bring_cached(const Work& work) {
    int i = work.begin;
    begin(work);
    const int room = fp8_decode_any(work) ? min(work.end, work.begin + kStages) : i;
    while (i < room && fp8_decode_cached<S>(p, work, i)) bring(work, i++);
    pdl_wait();
    pdl_launch_dependents();
    return i;
  }

  // Key producer: publishes work tiles and loads their keys. It publishes the next work tile before the current one
  // ends.
  __device__ void run(Fp8DecodePieces<S>& pieces) {
    pieces.ask_words(), pieces.publish();
    Fp8DecodePiece<S> piece{control};
    for (int i = bring_cached(piece.work());; i = piece.work().begin) {
      const Work& work = piece.work();
      if (work.request < 0) break;
      const int end = fp8_decode_any(work) ? work.end : work.begin;
      if (i == work.begin) begin(work);
      pieces.ask_number();
      for (int step = 0; step < 2 || i < end; ++step) {
        if (i < end) bring(work, i++);
        if (step == 0) pieces.ask_words();
        if (step == 1) pieces.publish();
      }
      piece.pass();
    }
    if (lane == 0) pieces.leave();
  }
  // Value producer: follows the key producer's work tiles.
  __device__ void run() {
    Fp8DecodePiece<S> piece{control};
    for (int i = bring_cached(piece.work());; i = piece.work().begin) {
      const Work& work = piece.work();
      if (work.request < 0) return;
      const int end = fp8_decode_any(work) ? work.end : work.begin;
      if (i == work.begin) begin(work);
      while (i < end) bring(work, i++);
      piece.leave();
    }
  }
};

template <class S>
__device__ inline void produce_fp8_decode(const AttentionCall& call, Fp8DecodeControl<S>& control, char* shared,
                                          bool values, int lane) {
  const uint32_t to = shared_address(shared);
  if (values) {
    Fp8DecodeProducer<S, S::kValueStages>(call.p, control, call.maps.v, to + S::kValuesAt, control.values_full,
                                          control.values_empty, lane)
        .run();
  } else {
    Fp8DecodePieces<S> pieces(control, call.p, call.plan, lane);
    Fp8DecodeProducer<S, S::kKeyStages>(call.p, control, call.maps.k, to, control.keys_full, control.keys_empty, lane)
        .run(pieces);
  }
}

#endif

}  // namespace headrace::cuda
