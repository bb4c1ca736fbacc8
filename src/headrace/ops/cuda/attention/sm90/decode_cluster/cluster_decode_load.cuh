// K and V load warps of a cluster decode CTA.
#pragma once
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode_traits.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// TMA boxes of one page's slots each, one box per lane.
template <class S>
struct ClusterDecodeLoads : ClusterDecodeShared<S> {
  using T = typename S::T;
  using Octet = typename ClusterKeys<S>::Octet;
  using Rounds = typename ClusterDecodeShared<S>::Rounds;

  // K or V of up to kTiles tiles, from list entry `begin` on.
  template <int kTiles_, int kColumns_>
  struct Side {
    static constexpr int kTiles = kTiles_, kColumns = kColumns_, kHeld = (kTiles * S::kOctets + 31) / 32;
    const CUtensorMap& map;
    const PagedSide &stored, &fresh;
    int dim, column;  // of the whole head; the first to load
    int page[kHeld];  // of this lane's boxes: lane, lane + 32 ...
  };
  __device__ int box_shift() const { return min(this->p.page_shift, S::kKeys == 128 ? 7 : 6); }
  __device__ Octet box(int begin, int i) const {  // the box's first keys
    const int in_tile = (S::kKeys == 128 ? 7 : 6) - box_shift();
    return this->octet(begin + (i >> in_tile), (i & ((1 << in_tile) - 1)) << box_shift());
  }
  __device__ int boxes_of(int tiles) const { return tiles * S::kKeys >> box_shift(); }
  template <class Of>
  __device__ void find_pages(Of& side, int begin, int tiles) const {
#pragma unroll
    for (int h = 0; h < Of::kHeld; ++h) {
      const int i = h * 32 + this->lane;
      side.page[h] = i < boxes_of(tiles) ? this->page_of(box(begin, i)) : 0;
    }
  }
  // Every lane arrives at `full` when its copies have, and TMA with its own.
  template <class Of>
  __device__ void load(const Of& side, int begin, int tiles, uint32_t to, uint32_t full) const {
    constexpr int kRows = Of::kTiles * S::kKeys, kColumns = Of::kColumns < 64 ? Of::kColumns : 64;
    const int rows = 1 << box_shift();
    unsigned whole[Of::kHeld], there[Of::kHeld], boxes = 0;
#pragma unroll
    for (int h = 0; h < Of::kHeld; ++h) {
      const int i = h * 32 + this->lane;
      const Octet x = box(begin, i);
      there[h] = __ballot_sync(0xffffffffu, i < boxes_of(tiles));
      whole[h] = there[h] & __ballot_sync(0xffffffffu, x.whole && x.at + rows <= this->whole_to);
      boxes += __popc(whole[h]);
    }
    if (this->lane == 0) barrier_expect(full, boxes * rows * Of::kColumns * 2);
    __syncwarp();
#pragma unroll
    for (int h = 0; h < Of::kHeld; ++h) {
      const int i = h * 32 + this->lane;
      if ((whole[h] >> this->lane & 1) != 0) {
        const int slot = box(begin, i).at & (this->p.page_size - 1);
#pragma unroll
        for (int c = 0; c < Of::kColumns; c += kColumns)
          tma_load(to + this->template place<kRows, Of::kColumns>(i * rows, c / 8), side.map, side.column + c, slot,
                   this->kv_head, side.page[h], full, kReadOnce);
      }
      for (unsigned left = there[h] & ~whole[h]; left != 0; left &= left - 1) {
        const int of = __ffs(static_cast<int>(left)) - 1;
        load_keys(side, begin, h * 32 + of, __shfl_sync(0xffffffffu, side.page[h], of), to);
      }
    }
    arrive_behind_copies(full);
  }
  // Loads a box key by key, because some are not seen or lie elsewhere. Four lanes load a key.
  template <class Of>
  __device__ void load_keys(const Of& side, int begin, int i, int page, uint32_t to) const {
    const int rows = 1 << box_shift();
    const Octet first = box(begin, i);
#pragma unroll 1
    for (int o = 0; o < rows; o += 8) {
      const Octet x{first.at + o, first.with_cached, false};
      const int j = this->lane / 4;
      const T* key = this->find_key(x, page, j, side.stored, side.fresh);
#pragma unroll 4
      for (int c = this->lane % 4; c < Of::kColumns / 8; c += 4)
        this->copy_or_clear(to + this->template place<Of::kTiles * S::kKeys, Of::kColumns>(i * rows + o + j, c), key,
                            side.column + c * 8, side.dim, side.stored.data);
    }
  }
  // Returns true if the list's tiles before `end` hold only keys that were cached before the step.
  __device__ bool cached_before(int end) const {
    return !this->p.encoder && this->tiles.holds_cached(end - 1) &&
           (this->tiles.tile(end - 1) + 1) * S::kKeys <= this->axis.ctx;
  }
  // Loads K, the CTA's own tile of each round, or V, all tiles. Rounds of cached keys do not wait for the preceding
  // kernel (DeviceMetadata).
  template <class Of, int kStages>
  __device__ void run_loads(const Rounds& rounds, ClusterRound now, Of side, int first_full, int stages_at) const {
    constexpr int kBytes = Of::kTiles * S::kKeys * Of::kColumns * 2;
    constexpr bool kOwn = Of::kTiles != S::kBlocks || S::kColumns != Of::kColumns;
    const auto begin_of = [&](const ClusterRound& round) { return kOwn ? round.begin + this->rank : round.begin; };
    const auto tiles_of = [&](const ClusterRound& round) {
      return kOwn ? (this->has_tile(round) ? 1 : 0) : round.count();
    };
    find_pages(side, begin_of(now), tiles_of(now));
    PipelineState<kStages> at;
    while (now.count() > 0) {
      const uint32_t full = this->barrier(first_full + at.stage);
      barrier_wait(full + kStages * 8, at.phase ^ 1);
      if (!cached_before(now.end)) pdl_wait();
      load(side, begin_of(now), tiles_of(now), shared_address(this->shared) + stages_at + at.stage * kBytes, full);
      now = rounds.after(now);
      find_pages(side, begin_of(now), tiles_of(now));
      at.next();
    }
    wait_copies<0>();
    pdl_wait();
  }
  __device__ void load_all_keys(const Rounds& rounds, const ClusterRound& first, const CUtensorMap& map) const {
    const AttentionParams& p = this->p;
    run_loads<Side<1, S::kDim>, S::kKeyStages>(rounds, first, {map, p.k, p.k_new, p.head_dim, 0}, S::kKeysFull, 0);
  }
  __device__ void load_all_values(const Rounds& rounds, const ClusterRound& first, const CUtensorMap& map) const {
    const AttentionParams& p = this->p;
    run_loads<Side<S::kBlocks, S::kColumns>, S::kValueStages>(
        rounds, first, {map, p.v, p.v_new, p.v_head_dim, this->rank * S::kColumns}, S::kValuesFull, S::kValuesAt);
  }
};

#endif

}  // namespace headrace::cuda
