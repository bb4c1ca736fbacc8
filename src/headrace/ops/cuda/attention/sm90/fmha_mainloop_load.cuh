// Producer warp of a Hopper attention CTA: fetches work tiles and loads their tiles of K and V, by TMA or row by row.
#pragma once
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_gather.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S>
struct Producer {
  const AttentionParams& p;
  const KVMaps& maps;
  SharedLayout<S> shared;
  PipelineState<S::kFeedStages> place;
  int lane;
  bool waited = false;  // pdl_wait() is done; before it the preceding kernel may still run

  // Page numbers of the tiles from list entry `first` on, one TMA box per lane: tile lane / boxes, box lane % boxes of
  // it. They are read ahead of their tiles, because a copy that waits for its page number comes too late.
  struct Pages {
    int page = 0, slot = 0;
    unsigned valid = 0;  // a bit per lane
  };
  struct Source {
    const int32_t* table;
    int box_rows, boxes;  // TMA boxes of a tile
  };
  __device__ Pages pages_of(const Work& work, const BlockKeys& keys, const Source& source, int first) const {
    const int at = first + lane / source.boxes;
    Pages pages;
    bool valid = at < work.end;
    if (valid) {
      const int i = list_entry<S>(work, at),
                from = work.tiles.tile(i) * S::kKeys + lane % source.boxes * source.box_rows,
                to = from + source.box_rows;
      const bool with_cached = work.tiles.holds_cached(i);
      valid = keys.sees_cached(from, to, with_cached) ||
              (p.k_new.data == nullptr && keys.sees_fresh(from, to, with_cached));
      if (valid) pages.page = source.table[from >> p.page_shift];
      pages.slot = from & (p.page_size - 1);
    }
    pages.valid = __ballot_sync(0xffffffffu, valid);
    return pages;
  }
  // Loads `kColumns` columns of 64 elements from element `first` on. kReads: the L2 cache policy.
  template <int kColumns, uint64_t kReads>
  __device__ void copy_side(const CUtensorMap& map, int first, uint32_t to, uint64_t& full, uint64_t& empty,
                            const Pages& pages, int kv_head, unsigned boxes_here, const Source& source) const {
    const uint32_t barrier = shared_address(&full);
    barrier_wait(shared_address(&empty), place.phase ^ 1);
    if (lane == 0)
      barrier_expect(barrier, __popc(boxes_here) * static_cast<uint32_t>(source.box_rows * 128 * kColumns));
    __syncwarp();
    if ((boxes_here >> lane & 1) == 0) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      tma_load(to + c * S::kColumnBytes + lane % source.boxes * source.box_rows * 128, map, first + c * 64, pages.slot,
               kv_head, pages.page, barrier, kReads);
    }
  }
  // Loads a tile of FP8: rows of kDim bytes.
  __device__ void copy_codes(const CUtensorMap& map, char* to, uint64_t& full, uint64_t& empty, const Pages& pages,
                             int kv_head, unsigned boxes_here, const Source& source) const {
    const uint32_t barrier = shared_address(&full), box_bytes = static_cast<uint32_t>(source.box_rows * S::kDim);
    barrier_wait(shared_address(&empty), place.phase ^ 1);
    if (lane == 0) barrier_expect(barrier, __popc(boxes_here) * box_bytes);
    __syncwarp();
    if ((boxes_here >> lane & 1) == 0) return;
    tma_load(shared_address(to) + lane % source.boxes * box_bytes, map, 0, pages.slot, kv_head, pages.page, barrier,
             S::kRowGroups == 1 ? kReadOnce : kReadAgain);
  }
  // Waits for the preceding kernel and lets the next one launch, once.
  __device__ void wait_ahead() {
    if (waited) return;
    pdl_wait();
    pdl_launch_dependents();
    waited = true;
  }
  // Returns true if no key of a tile is new. Cached keys were stored before the batch's first kernel (DeviceMetadata).
  __device__ bool is_cached(const Work& work, const BlockKeys& keys, int at) const {
    const int i = list_entry<S>(work, at), from = work.tiles.tile(i) * S::kKeys;
    return !p.encoder && ((!S::kGathers && p.k_new.data != nullptr) ||
                          !keys.sees_fresh(from, from + S::kKeys, work.tiles.holds_cached(i)));
  }
  // Loads all tiles of a work tile. `work` lies in shared memory, since registers are few here.
  __device__ void feed(const Work& work) {
    if constexpr (S::kGathers) return gather(work);
    Control<S>& control = shared.control();
    const KeyAxis axis(p, work.span);
    const BlockKeys keys(p, axis, work.top, work.bottom);
    const int box_rows = min(p.page_size, S::kKeys), boxes = S::kKeys / box_rows, each = 32 / boxes;
    const Source source{p.page_table + axis.page_row * p.table_stride, box_rows, boxes};
    const int kv_head = work.kv_head, end = work.end, value_column = first_column<S>(work);
    Pages pages = pages_of(work, keys, source, work.begin);
    for (int first = work.begin; first < end; first += each) {
      const Pages next = pages_of(work, keys, source, first + each);
      for (int j = 0; j < each && first + j < end; ++j, place.next()) {
        const unsigned here = pages.valid & ((boxes == 32 ? 0xffffffffu : (1u << boxes) - 1) << j * boxes);
        const int kv_warpgroup = (first + j - work.begin) % S::kKVWarpgroups, stage = place.stage;
        if (!waited && !is_cached(work, keys, first + j)) wait_ahead();
        if constexpr (S::kFp8) {
          copy_codes(maps.k, shared.k_fp8(stage), control.k_codes_full[stage], control.k_codes_empty[stage], pages,
                     kv_head, here, source);
          copy_codes(maps.v, shared.v_fp8(stage), control.v_codes_full[stage], control.v_codes_empty[stage], pages,
                     kv_head, here, source);
          continue;
        }
        constexpr uint64_t kValuesRead = S::kRowGroups == 1 ? kReadOnce : kReadAgain,
                           kKeysRead = S::kValueParts == 1 ? kValuesRead : kReadAgain;
        copy_side<S::kColumns, kKeysRead>(maps.k, 0, shared.k(stage), control.k_full[kv_warpgroup][stage],
                                          control.k_empty[stage], pages, kv_head, here, source);
        copy_side<S::kValueColumns, kValuesRead>(maps.v, value_column, shared.v(stage),
                                                 control.v_full[kv_warpgroup][stage], control.v_empty[stage], pages,
                                                 kv_head, here, source);
      }
      pages = next;
    }
  }
  // Loads the keys of a work tile row by row; a ValueGatherer loads its values.
  __device__ void gather(const Work& work) {
    const KeyAxis axis(p, work.span);
    const BlockKeys keys(p, axis, work.top, work.bottom);
    gather_side<S>({p, keys, p.page_table + axis.page_row * p.table_stride, work, lane}, KVSide::kKeys, shared, place,
                   [&](int i) {
                     if (!waited && !is_cached(work, keys, i)) wait_ahead();
                   });
  }
  // Words of a work tile: each lane has one of the first 32, and the first lanes have one of the rest.
  struct Words {
    int first = 0, second = 0;
  };
  __device__ Words words_of(const WorkPlan& plan, unsigned piece) const {
    const int* from = reinterpret_cast<const int*>(plan.works + piece);
    return {from[lane], lane + 32 < Work::kWords ? from[lane + 32] : 0};
  }
  // Publishes a work tile to the warpgroups and loads its keys.
  __device__ void send(const Words& words, PipelineState<2>& at) {
    Control<S>& control = shared.control();
    barrier_wait(shared_address(&control.work_empty[at.stage]), at.phase ^ 1);
    Work& work = control.work[at.stage];
    int* to = reinterpret_cast<int*>(&work);
    to[lane] = words.first;
    if (lane + 32 < Work::kWords) to[lane + 32] = words.second;
    __syncwarp();
    const bool any = work.request >= 0 && work.slot != Work::kNothing;
    if (any) find_ranges(work, control.ranges[at.stage]);
    barrier_arrive(shared_address(&control.work_full[at.stage]));
    at.next();
    if (any) feed(work);
  }
  __device__ void find_ranges(const Work& work, Ranges<S>& ranges) const {
    const KeyAxis axis(p, work.span);
    const PackedRows packed(p.heads / p.kv_heads);
    const bool together =
        p.encoder || (axis.span.phys0 == axis.span.ctx_len && axis.span.hole_end <= axis.span.hole_begin);
    const int last = min(work.row0 + S::kRows, work.rows) - 1;
    bool all = together;
    for (int r = lane; r < S::kRows; r += 32) {
      const KeyAxis::Row row = axis.row(p, packed.token(min(work.row0 + r, last)));
      all &= row.first_new <= axis.ctx;
      ranges.row[r] = make_int2(row.first, row.end);
    }
    all = __all_sync(0xffffffffu, all);
    if (lane != 0) return;
    const bool stored = all && (S::kGathers || p.k_new.data == nullptr) && !p.encoder;
    ranges.stored_from = stored ? work.top.first : 0;
    ranges.stored_to = stored ? axis.ctx + axis.span.q_len : 0;
    ranges.say_all = all;
  }
  // Returns the words for one KV head and one part of V's columns.
  __device__ Words of_head(Words words, int kv_head, int value_part, int slot_step) const {
    constexpr int kHead = offsetof(Work, kv_head) / 4, kSlot = offsetof(Work, slot) / 4,
                  kColumn = offsetof(Work, value_column) / 4;
    static_assert(kColumn >= 32);
    if (lane == kHead) words.first = kv_head;
    if (lane == kSlot && words.first >= 0) words.first += kv_head * slot_step;
    if (S::kValueParts > 1 && lane + 32 == kColumn) words.second = value_part * S::kValueDim;
    return words;
  }
  __device__ void run_share(const WorkPlan& plan, PipelineState<2>& at) {
    const uint2 share = plan.shares[blockIdx.x];
    if (share.x > share.y) return;
    Words words = words_of(plan, share.x);
    for (unsigned piece = share.x; piece <= share.y; ++piece) {
      const Words next = piece < share.y ? words_of(plan, piece + 1) : words;
      send(words, at);
      words = next;
    }
  }
  // Returns work tile `index` of the queue. The KV heads that are processed together are adjacent, and long causal
  // tiles come first. Prompts are served by one set of heads after another, all else by all heads at once.
  __device__ Words queued(const WorkPlan& plan, unsigned units, unsigned index) const {
    const unsigned part = index % S::kValueParts;
    unsigned of_turn = index / S::kValueParts, together = static_cast<unsigned>(p.kv_heads), first_head = 0;
    if constexpr (S::kRowGroups > 1) {
      together = static_cast<unsigned>(plan.heads_together);
      for (; of_turn >= together * units; of_turn -= together * units) first_head += together;
    }
    const unsigned place = of_turn / together, kv_head = first_head + of_turn % together;
    const unsigned unit = !plan.both_ends ? units - 1 - place : place % 2 == 1 ? place / 2 : units - 1 - place / 2;
    return of_head(words_of(plan, unit), static_cast<int>(kv_head), static_cast<int>(part), plan.max_splits);
  }
  __device__ void run_queue(const WorkPlan& plan, PipelineState<2>& at) {
    if (!plan.stands) wait_ahead();
    const unsigned units = *plan.units, pieces = units * static_cast<unsigned>(p.kv_heads) * S::kValueParts;
    for (unsigned index = blockIdx.x; index < pieces;) {
      send(queued(plan, units, index), at);
      wait_ahead();  // the preceding call may have the same queue
      if (lane == 0) index = gridDim.x + atomicAdd(&plan.queue[0], 1u);
      index = __shfl_sync(0xffffffffu, index, 0);
    }
    wait_ahead();
    if (lane == 0 && atomicInc(&plan.queue[1], gridDim.x - 1) == gridDim.x - 1) plan.queue[0] = 0;  // for the next call
  }
  __device__ void run(const WorkPlan& plan) {
    PipelineState<2> at;
    if (plan.sharing == WorkPlan::Sharing::kEvenSplits) {
      wait_ahead();
      run_share(plan, at);
    } else {
      run_queue(plan, at);
    }
    send({-1, -1}, at);  // end of the work
  }
};

#endif

}  // namespace headrace::cuda
