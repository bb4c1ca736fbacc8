// How a warp of attention of few rows over codes brings its part of the keys, or of the values.
#pragma once
#include "headrace/kernels/cuda/attention/sm90/attention_few_codes_keys.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S, int kStages>
struct FewCodesRing {
  const AttentionParams& p;
  const CUtensorMap& map;
  uint32_t memory, full;  // the part in the first place, and that place's barrier
  int part, lane;
  int box_rows, box_shift;  // keys of a box of the copy engine; boxes of a part are 1 << box_shift
  RingPlace<kStages> asked{}, taken{};
  int on_their_way = 0;  // places that are asked for and not taken

  // Pages of the tiles from some list entry on, a lane a box: they are read ahead of their tiles.
  struct Pages {
    int page = 0, slot = 0;
    unsigned valid = 0;  // by lane
  };
  const Work* work = nullptr;                   // the piece whose tiles are asked for
  int kv_head = 0, first = 0, at = 0, end = 0;  // list entries: the first of `pages`, the tile's, and where they end
  Pages pages, next;

  __device__ FewCodesRing(const AttentionParams& params, const CUtensorMap& of, uint32_t to, uint32_t barrier,
                          int of_part, int of_lane)
      : p(params),
        map(of),
        memory(to),
        full(barrier),
        part(of_part),
        lane(of_lane),
        box_rows(min(params.page_size, S::kPartKeys)),
        box_shift(__ffs(S::kPartKeys / box_rows) - 1) {}

  __device__ int tile_of_lane() const { return lane >> box_shift; }
  __device__ int box_of_lane() const { return lane & ((1 << box_shift) - 1); }
  __device__ Pages pages_of(int from) const {
    const FewCodesBox box =
        few_codes_box<S>(p, *work, from, part * S::kPartKeys + box_of_lane() * box_rows, tile_of_lane());
    return {box.entry >= 0 ? p.page_table[box.entry] : 0, box.slot, __ballot_sync(0xffffffffu, box.entry >= 0)};
  }
  __device__ void turn_to(const Work& of) {
    work = &of, kv_head = of.kv_head, first = at = of.begin;
    end = of.request >= 0 && of.slot != Work::kNothing ? of.end : of.begin;
    pages = pages_of(first), next = pages_of(first + (32 >> box_shift));
  }
  __device__ bool any() const { return at < end; }
  __device__ void ask() {
    if (at - first == 32 >> box_shift) {
      first = at, pages = next;
      next = pages_of(at + (32 >> box_shift));
    }
    const int j = at - first;
    const unsigned here = pages.valid >> (j << box_shift) & ((1u << (1 << box_shift)) - 1);
    const uint32_t barrier = full + asked.stage * 8, to = memory + asked.stage * S::kSideBytes;
    if (lane == 0) barrier_expect(barrier, __popc(here) * static_cast<uint32_t>(box_rows * S::kDim));
    __syncwarp();
    if (tile_of_lane() == j && (pages.valid >> lane & 1) != 0) {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c)
        copy_box(to + c * S::kColumnBytes + box_of_lane() * box_rows * 128, map, c * 128, pages.slot, kv_head,
                 pages.page, barrier, kReadOnce);
    }
    asked.next();
    ++at, ++on_their_way;
  }
  // What was there before the kernel ahead began.
  __device__ void ask_for_cached() {
    while (on_their_way < kStages && any() && few_codes_cached<S>(p, *work, at, part)) ask();
  }
  // `free`: places that nobody looks at any more, also those to which something is on its way.
  __device__ void fill(int free) {
    while (on_their_way < free && any()) ask();
  }
  // Returns the place of the next tile.
  __device__ int take() {
    barrier_wait(full + taken.stage * 8, taken.phase);
    const int stage = taken.stage;
    taken.next();
    --on_their_way;
    return stage;
  }
};

#endif

}  // namespace headrace::cuda
