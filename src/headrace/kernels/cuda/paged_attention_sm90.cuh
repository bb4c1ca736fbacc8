// Attention of 16-bit floats on Hopper: a warp feeds tiles of K and V from the pool's pages through the copy engine,
// and one or two warpgroups of 64 rows each multiply them. Rows are packed as (token, query head of the group), so that
// one pass over K and V serves the whole group; keys may be cut into parts, which the last one to end joins. Source:
// Dao 2023, FlashAttention-2; Shah et al. 2024, FlashAttention-3; Dao et al. 2023, Flash-Decoding.
#pragma once
#include <climits>

#include "headrace/kernels/cuda/attention_row.cuh"
#include "headrace/kernels/cuda/attention_work.cuh"
#include "headrace/kernels/cuda/bulk_copy.cuh"
#include "headrace/kernels/cuda/launch.cuh"
#include "headrace/kernels/cuda/part_sum.cuh"
#include "headrace/kernels/cuda/stream.h"
#include "headrace/kernels/cuda/wgmma_products.cuh"

namespace headrace::cuda {

constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }

// kRowGroups groups of 64 rows, each the work of kTeams warpgroups that take its tiles of keys in turns.
template <class T_, int kDim_, int kRowGroups_, int kTeams_>
struct Sm90Shape {
  using T = T_;
  static constexpr int kDim = kDim_, kRowGroups = kRowGroups_, kTeams = kTeams_, kWarpgroups = kRowGroups * kTeams;
  static constexpr int kKeys = tile_keys(kDim, kTeams), kColumns = kDim / 64, kChunks = kDim / 8;
  static constexpr int kRows = 64 * kRowGroups, kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kColumnBytes = kKeys * 128, kTileBytes = kColumns * kColumnBytes;
  static constexpr int kQBytes = 64 * kDim * 2,
                       kScratchBytes = (static_cast<int>(sizeof(RowScratch)) + 1023) / 1024 * 1024;
  static constexpr int kControlBytes = (3072 + 16 * kRows + 1023) / 1024 * 1024;
  static constexpr int kOtherBytes = 1024 + kControlBytes + kScratchBytes + kWarpgroups * kQBytes;  // 1024: to align
  static constexpr int kStages = smaller(6, (227 * 1024 - kOtherBytes) / (2 * kTileBytes));
  static constexpr int kSharedBytes = kOtherBytes + kStages * 2 * kTileBytes;
  // Registers of a thread: of 64 Ki in all.
  static constexpr int kProducerRegisters = kWarpgroups == 3 ? 32 : 56,
                       kConsumerRegisters = kWarpgroups == 3 ? 160 : 224;
  static_assert(kStages >= 2 && kWarpgroups <= 3);
};

// What the rows of a piece see, where one range of positions says it: neither a hole, nor new keys that a window hides,
// nor new keys apart from the cached ones.
template <class S>
struct Ranges {
  int2 row[S::kRows];  // [first, end)
  // A tile within these positions is in the pool and every key of it belongs to the request: what some rows do not see
  // of it is hidden by their weights alone. Empty where that is not so.
  int stored_from, stored_to;
  bool say_all;
};

template <class S>
struct Control {
  // A team has full barriers of its own: it may be two rounds ahead of what the other has seen, and a barrier tells two
  // rounds apart, no more.
  uint64_t k_full[S::kTeams][S::kStages], v_full[S::kTeams][S::kStages], k_empty[S::kStages], v_empty[S::kStages];
  uint64_t q_full[S::kWarpgroups], q_empty[S::kWarpgroups];
  uint64_t work_full[2], work_empty[2];
  Work work[2];
  Ranges<S> ranges[2];                     // of these
  float exchange[4][128];                  // of the second team: largest scores and sums
  uint64_t exchange_full, exchange_empty;  // of these and half of its values; each is passed twice a piece
  int scratch_taken;
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
    return shared_address(base) + S::kWarpgroups * S::kQBytes + stage * 2 * S::kTileBytes;
  }
  __device__ uint32_t v(int stage) const { return k(stage) + S::kTileBytes; }
  __device__ Control<S>& control() const {
    static_assert(sizeof(Control<S>) <= S::kControlBytes);
    return *reinterpret_cast<Control<S>*>(base + S::kWarpgroups * S::kQBytes + S::kStages * 2 * S::kTileBytes);
  }
  __device__ RowScratch& scratch() const {
    return *reinterpret_cast<RowScratch*>(reinterpret_cast<char*>(&control()) + S::kControlBytes);
  }
};

// A number that all lanes of a warp have: the compiler then knows it, and keeps it where products take descriptors
// from.
__device__ inline uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

// 16-byte chunk `chunk` of a row of a tile of `rows` rows, stored as columns of 64 elements.
__device__ inline uint32_t column_swizzled(int rows, int row, int chunk) {
  return static_cast<uint32_t>((chunk / 8 * rows + row) * 128 + ((chunk ^ row) & 7) * 16);
}

// Rows are packed as (token, head of the group). A multiplication finds the token: a division costs as much as loading
// it.
struct PackedRows {
  int group;
  uint32_t inverse;  // of the group, times 2^32: exact while a row times the group is less than that

  __device__ explicit PackedRows(int of)
      : group(of), inverse(of == 1 ? 0 : UINT32_MAX / static_cast<uint32_t>(of) + 1) {}
  __device__ int token(int row) const { return inverse == 0 ? row : static_cast<int>(__umulhi(row, inverse)); }
  __device__ int head(int row) const { return row - token(row) * group; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The warp that fetches pieces of work and their keys.
template <class S>
struct Producer {
  const AttentionParams& p;
  const KVMaps& maps;
  SharedLayout<S> shared;
  RingPlace<S::kStages> place;
  int lane;

  // The pages of the tiles from list entry `first` on, a lane a box: tile lane / boxes, box lane % boxes of it. They
  // are read ahead of their tiles, since a copy that waits for its page number comes too late.
  struct Pages {
    int page = 0, slot = 0;
    unsigned valid = 0;  // by lane
  };
  struct Source {
    const int32_t* table;
    int box_rows, boxes;  // of a tile
  };
  __device__ Pages pages_of(const Work& work, const BlockKeys& keys, const Source& source, int first) const {
    const int i = first + lane / source.boxes;
    Pages pages;
    bool valid = i < work.end;
    if (valid) {
      const int from = work.tiles.tile(i) * S::kKeys + lane % source.boxes * source.box_rows,
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
  __device__ void copy_side(const CUtensorMap& map, uint32_t to, uint64_t& full, uint64_t& empty, const Pages& pages,
                            int kv_head, unsigned boxes_here, const Source& source) const {
    const uint32_t barrier = shared_address(&full);
    barrier_wait(shared_address(&empty), place.phase ^ 1);
    if (lane == 0)
      barrier_expect(barrier, __popc(boxes_here) * static_cast<uint32_t>(source.box_rows * 128 * S::kColumns));
    __syncwarp();
    if ((boxes_here >> lane & 1) == 0) return;
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      copy_box(to + c * S::kColumnBytes + lane % source.boxes * source.box_rows * 128, map, c * 64, pages.slot, kv_head,
               pages.page, barrier, S::kRowGroups == 1 ? kReadOnce : kReadAgain);
    }
  }
  // The piece itself lies in shared memory: registers are few here.
  __device__ void feed(const Work& work) {
    Control<S>& control = shared.control();
    const KeyAxis axis(p, work.span);
    const BlockKeys keys(p, axis, work.top, work.bottom);
    const int box_rows = min(p.page_size, S::kKeys), boxes = S::kKeys / box_rows, each = 32 / boxes;
    const Source source{p.page_table + axis.page_row * p.table_stride, box_rows, boxes};
    const int kv_head = work.kv_head, end = work.end;
    Pages pages = pages_of(work, keys, source, work.begin);
    for (int first = work.begin; first < end; first += each) {
      const Pages next = pages_of(work, keys, source, first + each);
      for (int j = 0; j < each && first + j < end; ++j, place.next()) {
        const unsigned here = pages.valid & ((boxes == 32 ? 0xffffffffu : (1u << boxes) - 1) << j * boxes);
        const int team = (first + j - work.begin) % S::kTeams, stage = place.stage;
        copy_side(maps.k, shared.k(stage), control.k_full[team][stage], control.k_empty[stage], pages, kv_head, here,
                  source);
        copy_side(maps.v, shared.v(stage), control.v_full[team][stage], control.v_empty[stage], pages, kv_head, here,
                  source);
      }
      pages = next;
    }
  }
  // A piece's words, a lane one of 32, lanes of the rest two.
  struct Words {
    int first = 0, second = 0;
  };
  __device__ Words words_of(const WorkPlan& plan, unsigned piece) const {
    const int* from = reinterpret_cast<const int*>(plan.works + piece);
    return {from[lane], lane + 32 < Work::kWords ? from[lane + 32] : 0};
  }
  // Hands a piece to the warpgroups and brings its keys.
  __device__ void send(const Words& words, RingPlace<2>& at) {
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
    const bool stored = all && p.k_new.data == nullptr && !p.encoder;
    ranges.stored_from = stored ? work.top.first : 0;
    ranges.stored_to = stored ? axis.ctx + axis.span.q_len : 0;
    ranges.say_all = all;
  }
  // The piece of one kv head.
  __device__ Words of_head(Words words, int kv_head, int slot_step) const {
    constexpr int kHead = offsetof(Work, kv_head) / 4, kSlot = offsetof(Work, slot) / 4;
    if (lane == kHead) words.first = kv_head;
    if (lane == kSlot && words.first >= 0) words.first += kv_head * slot_step;
    return words;
  }
  __device__ void run_share(const WorkPlan& plan, RingPlace<2>& at) {
    const uint2 share = plan.shares[blockIdx.x];
    if (share.x > share.y) return;
    Words words = words_of(plan, share.x);
    for (unsigned piece = share.x; piece <= share.y; ++piece) {
      const Words next = piece < share.y ? words_of(plan, piece + 1) : words;
      send(words, at);
      words = next;
    }
  }
  // A tile's kv heads lie together, and long causal tiles come first.
  __device__ void run_queue(const WorkPlan& plan, RingPlace<2>& at) {
    const unsigned units = *plan.units, kv_heads = static_cast<unsigned>(p.kv_heads), pieces = units * kv_heads;
    const auto piece_of = [&](unsigned index) {
      const unsigned place = index / kv_heads;
      const unsigned unit = !plan.both_ends ? units - 1 - place : place % 2 == 1 ? place / 2 : units - 1 - place / 2;
      return of_head(words_of(plan, unit), static_cast<int>(index % kv_heads), plan.max_parts);
    };
    for (unsigned index = blockIdx.x; index < pieces;) {
      send(piece_of(index), at);
      if (lane == 0) index = gridDim.x + atomicAdd(&plan.queue[0], 1u);
      index = __shfl_sync(0xffffffffu, index, 0);
    }
    if (lane == 0 && atomicInc(&plan.queue[1], gridDim.x - 1) == gridDim.x - 1) plan.queue[0] = 0;  // for the next call
  }
  __device__ void run(const WorkPlan& plan) {
    RingPlace<2> at;
    if (plan.sharing == WorkPlan::Sharing::kShares) {
      run_share(plan, at);
    } else {
      run_queue(plan, at);
    }
    send({-1, -1}, at);  // no more
  }
};

// A warp that brings the queries of one warpgroup: those of the next piece while the last one ends.
template <class S>
struct QueryLoader {
  const AttentionParams& p;
  SharedLayout<S> shared;
  int consumer, lane;
  PackedRows packed;
  uint32_t phase = 0;

  __device__ void run() {
    Control<S>& control = shared.control();
    RingPlace<2> at;
    for (;; at.next()) {
      barrier_wait_asleep(shared_address(&control.work_full[at.stage]), at.phase);
      const Work& work = control.work[at.stage];
      const int request = work.request, row0 = work.row0 + (S::kRowGroups == 1 ? 0 : consumer * 64), rows = work.rows,
                kv_head = work.kv_head;
      const int64_t token0 = work.span.q_off;
      const bool any = work.slot != Work::kNothing && row0 < rows;
      barrier_arrive(shared_address(&control.work_empty[at.stage]));
      if (request < 0) return;
      if (any) load(token0, row0, rows, kv_head);
    }
  }

 private:
  __device__ void load(int64_t token0, int row0, int rows, int kv_head) {
    Control<S>& control = shared.control();
    barrier_wait_asleep(shared_address(&control.q_empty[consumer]), phase ^ 1);
    phase ^= 1;
    const auto* q = static_cast<const typename S::T*>(p.q);
    const uint32_t to = shared_address(shared.q(consumer));
#pragma unroll 4
    for (int i = lane; i < 64 * S::kChunks; i += 32) {
      const int r = i / S::kChunks, c = i % S::kChunks, row = row0 + r;
      const bool inside = row < rows && c * 8 < p.head_dim;
      const int64_t token = token0 + packed.token(row);
      const int head = kv_head * packed.group + packed.head(row);
      const auto* from = inside ? q + token * p.q_token_stride + head * p.q_head_stride + c * 8 : q;
      copy16(to + column_swizzled(64, r, c), from, inside);
    }
    commit_copies();
    wait_copies<0>();
    fence_for_wgmma();
    barrier_arrive(shared_address(&control.q_full[consumer]));
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
  const WorkPlan& plan;
  SharedLayout<S> shared;
  int consumer, thread, lane, warp;  // of the warpgroup
  float to_log2;
  PackedRows packed;
  RingPlace<S::kStages> place{};
  uint32_t rounds = 0;  // a bit a stage: the phase that its next tile for this team completes
  uint32_t q_phase = 0;

  __device__ int row_group() const { return S::kRowGroups == 1 ? 0 : consumer; }
  __device__ int team() const { return S::kTeams == 1 ? 0 : consumer; }
  // Calls `use` with a constant: the number of this warpgroup, or of another.
  template <class F>
  __device__ static void with_constant(int number, F use) {
    if (number == 0) {
      use(std::integral_constant<int, 0>());
      return;
    }
    asm volatile("" : "+r"(number));  // three comparisons of one number become a table of jumps, which is slow
    if (S::kWarpgroups == 2 || number == 1) {
      use(std::integral_constant<int, 1>());
    } else {
      use(std::integral_constant<int, 2>());
    }
  }
  __device__ void sync() const {
    with_constant(consumer,
                  []<int kNumber>(std::integral_constant<int, kNumber>) { named_barrier<1 + kNumber, 128>(); });
  }
  __device__ int row_of(int half) const { return row_group() * 64 + warp * 16 + half * 8 + lane / 4; }

  // A warp is done with what the barrier guards: all of its lanes are.
  __device__ void release(uint64_t& empty) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&empty));
  }

  // Operands of the products with the tile of stage `stage`: numbers that the whole warp has.
  __device__ uint32_t k_operand(int stage) const { return uniform(operand_low(shared.k(stage), 0)); }
  __device__ uint32_t v_operand(int stage) const { return uniform(operand_low(shared.v(stage), S::kColumnBytes)); }

  __device__ void start_scores(Scores& s, uint32_t q, uint32_t k) const {
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      const uint32_t column = d / 4, within = d % 4 * 32;
      wgmma_shared<T>(s, operand(q + (column * 64 * 128 + within) / 16),
                      operand(k + (column * S::kColumnBytes + within) / 16), d == 0 ? Add::kNo : Add::kYes);
    }
    wgmma_commit();
  }
  __device__ void start_values(Values& o, const uint32_t (&w)[kSteps][4], uint32_t v) const {
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < kSteps; ++n) wgmma_registers<T>(o, w[n], operand(v + n * (2048 / 16)));
    wgmma_commit();
  }

  // What this thread's two rows see, and what all rows of the piece do. Made anew for every tile that is not seen
  // whole: kept, it would push the sums out of registers.
  struct Sight {
    const Work& work;
    KeyAxis axis;
    BlockKeys keys;
    KeyAxis::Row rows[2];

    __device__ Sight(const Consumer& c, const Work& of)
        : work(read_anew(of)), axis(c.p, work.span), keys(c.p, axis, work.top, work.bottom) {
      const int last = min(work.row0 + S::kRows, work.rows) - 1;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        rows[half] = axis.row(c.p, c.packed.token(min(work.row0 + c.row_of(half), last)));
    }
    __device__ static const Work& read_anew(const Work& work) {
      const Work* at = &work;
      asm volatile("" : "+l"(at));  // the compiler does not know any more what it has read there
      return *at;
    }
  };

  // What the copy engine cannot bring: new keys that are not read from the pool; and, with kClearHidden, zeros for keys
  // that no row of the block sees, since what lies there may be NaN. Both warpgroups may write the same.
  enum class Fill : uint8_t { kNewKeys, kClearHidden };
  __device__ void fill_tile(const PagedSide& fresh, int dim, const Sight& sight, int index, uint32_t to,
                            Fill fill) const {
    const BlockKeys& keys = sight.keys;
    const KeySpan& span = sight.work.span;
    const int first = sight.work.tiles.tile(index) * S::kKeys;
    const bool with_cached = sight.work.tiles.holds_cached(index);
    for (int i = thread; i < S::kKeys * S::kChunks; i += 128) {
      const int r = i / S::kChunks, c = i % S::kChunks, at = first + r;
      const bool is_new = keys.sees_fresh(at, at + 1, with_cached);
      uint4 x = make_uint4(0, 0, 0, 0);
      if (is_new && fresh.data != nullptr) {
        const int64_t from =
            int64_t{span.q_off + at - span.phys0} * fresh.page_stride + sight.work.kv_head * fresh.head_stride + c * 8;
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
  __device__ void mask_by_ranges(Scores& s, const Ranges<S>& ranges, int tile) const {
    const int first = tile * S::kKeys + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int2 seen = ranges.row[row_of(half)];
      const int from = seen.x - first, to = seen.y - first;
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (n * 8 + j < from || n * 8 + j >= to) s[n][half * 2 + j] = -INFINITY;
        }
      }
    }
  }
  __device__ void mask_one_by_one(Scores& s, const Sight& sight, int i) const {
    const KeyTiles& tiles = sight.work.tiles;
    const int first = tiles.tile(i) * S::kKeys + lane % 4 * 2;
    const bool with_cached = tiles.holds_cached(i);
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = first + n * 8 + j % 2;
        if (!sees_position(p, sight.axis, sight.rows[j / 2], sight.keys.shift, at, with_cached)) s[n][j] = -INFINITY;
      }
    }
  }

  // The score that exponents are less follows a row's largest one only when that is more than this (base 2) above it:
  // weights stay below 2^kSlack, and earlier values are seldom multiplied. A row decides for itself, so its bits do not
  // depend on the others. Source: FlashAttention-4, conditional rescaling.
  static constexpr float kSlack = 8;

  // The softmax of one step: what earlier values are to be multiplied by, and what the exponents are less.
  struct Softening {
    float keep[2], base[2];
  };
  // Four chains for the largest of both rows: one after the other they would wait for each result.
  __device__ Softening begin_softening(const Scores& s, float (&largest)[2]) const {
    float top[2][2] = {{largest[0], -INFINITY}, {largest[1], -INFINITY}};
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[half][n % 2] = fmaxf(top[half][n % 2], fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) top[half][0] = fmaxf(top[half][0], top[half][1]);
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[half][0] = fmaxf(top[half][0], __shfl_xor_sync(0xffffffffu, top[half][0], step));
      }
    }
    Softening x;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = largest[half];
      if (__fmul_rn(__fadd_rn(top[half][0], -before), to_log2) > kSlack) largest[half] = top[half][0];
      x.base[half] = largest[half] == -INFINITY ? 0.0f : __fmul_rn(largest[half], to_log2);
      x.keep[half] = exp2_fast(__fadd_rn(__fmul_rn(before, to_log2), -x.base[half]));  // 1 exactly where it stays
    }
    return x;
  }
  // Scores of row `half` to weights in place.
  __device__ void soften(Scores& s, int half, const Softening& x, float (&sum)[2]) const {
    float added[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& weight = s[n][half * 2 + j];
        weight = exp2_fast(fmaf(weight, to_log2, -x.base[half]));
        added[j] = __fadd_rn(added[j], weight);
      }
    }
    sum[half] = fmaf(sum[half], x.keep[half], __fadd_rn(added[0], added[1]));
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
  __device__ static void scale(Values& o, const Softening& x) {
    if (!__any_sync(0xffffffffu, x.keep[0] != 1 || x.keep[1] != 1)) return;
#pragma unroll
    for (int d = 0; d < S::kDim / 8; ++d) {
      o[d][0] *= x.keep[0], o[d][1] *= x.keep[0], o[d][2] *= x.keep[1], o[d][3] *= x.keep[1];
    }
  }

  __device__ void run() {
    Control<S>& control = shared.control();
    RingPlace<2> at;
    for (;; at.next()) {
      barrier_wait(shared_address(&control.work_full[at.stage]), at.phase);
      const Work& work = control.work[at.stage];
      if (work.request < 0) return;
      if (work.slot != Work::kNothing) {
        if (work.row0 + row_group() * 64 < work.rows) {
          attend(work, control.ranges[at.stage]);
        } else {
          pass(work);
        }
      }
      barrier_arrive(shared_address(&control.work_empty[at.stage]));
    }
  }

  // Goes to the tile `count` stages on, which is this team's.
  __device__ void move(int count) {
    place.stage = (place.stage + count) % S::kStages;
    place.phase = rounds >> place.stage & 1;
    rounds ^= 1u << place.stage;
  }

  // Keeps the rings in step for a piece that has no rows here.
  __device__ void pass(const Work& work) {
    Control<S>& control = shared.control();
    for (int i = work.begin; i < work.end; ++i) {
      move(i == work.begin ? 0 : 1);
      barrier_wait(shared_address(&control.k_full[team()][place.stage]), place.phase);
      release(control.k_empty[place.stage]);
      barrier_wait(shared_address(&control.v_full[team()][place.stage]), place.phase);
      release(control.v_empty[place.stage]);
    }
    if (work.begin < work.end) place.stage = (place.stage + 1) % S::kStages;
  }

  // A run of the list of tiles that every row of the block sees whole and that the copy engine brings whole.
  struct PlainRun {
    int begin = 0, end = 0;
    __device__ bool holds(int i) const { return i >= begin && i < end; }
  };
  __device__ PlainRun plain_run(const Work& work) const {
    const KeyTiles& tiles = work.tiles;
    const KeyAxis::Row &top = work.top, &bottom = work.bottom;
    const KeyAxis axis(p, work.span);
    const BlockKeys keys(p, axis, top, bottom);
    if (!keys.joined) return {};
    int from = (bottom.first + S::kKeys - 1) / S::kKeys;
    const bool cached_only = p.k_new.data != nullptr || bottom.first_new > axis.ctx;
    int to = (cached_only ? min(top.end, axis.ctx) : top.end) / S::kKeys;
    if (keys.hole.end > keys.hole.begin) {  // what lies before it, or behind it
      const int hole_begin = keys.hole.begin / S::kKeys, hole_end = (keys.hole.end + S::kKeys - 1) / S::kKeys;
      if (hole_begin - from >= to - hole_end) {
        to = min(to, hole_begin);
      } else {
        from = max(from, hole_end);
      }
    }
    return {tiles.index_of(from), tiles.index_of(to)};
  }
  __device__ bool holds_new(const Sight& sight, int i) const {
    const KeyTiles& tiles = sight.work.tiles;
    const int from = tiles.tile(i) * S::kKeys;
    return sight.keys.sees_fresh(from, from + S::kKeys, tiles.holds_cached(i));
  }

  __device__ static bool holds_stored(const Ranges<S>& ranges, int tile) {
    return tile * S::kKeys >= ranges.stored_from && (tile + 1) * S::kKeys <= ranges.stored_to;
  }

  // The warpgroups take turns, so that one multiplies while the others find their weights.
  __device__ void take_turn(bool turns) const {
    if (S::kRowGroups == 1 || !turns) return;
    with_constant(consumer,
                  []<int kNumber>(std::integral_constant<int, kNumber>) { named_barrier<4 + kNumber, 256>(); });
  }
  __device__ void give_turn(bool turns) const {
    if (S::kRowGroups == 1 || !turns) return;
    with_constant(consumer, []<int kNumber>(std::integral_constant<int, kNumber>) {
      named_barrier_arrive<4 + (kNumber + 1) % S::kRowGroups, 256>();
    });
  }

  __device__ void attend(const Work& work, const Ranges<S>& ranges) {
    Control<S>& control = shared.control();
    const PlainRun plain = plain_run(work);
    barrier_wait(shared_address(&control.q_full[consumer]), q_phase);
    q_phase ^= 1;
    bool holds_queries = true;
    const auto release_queries = [&] {
      if (holds_queries) release(control.q_empty[consumer]);
      holds_queries = false;
    };
    const int begin = work.begin + team(), end = work.end;
    const bool turns = work.row0 + S::kRows - 64 < work.rows;  // all groups of rows are there

    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    Values o;
#pragma unroll
    for (int d = 0; d < S::kDim / 8; ++d) o[d][0] = o[d][1] = o[d][2] = o[d][3] = 0;
    uint32_t w[kSteps][4];
    Scores s;
    const uint32_t q = uniform(operand_low(shared_address(shared.q(consumer)), 0));
    const auto finish_scores = [&](int i) {
      if (p.cap > 0) cap_scores(s);
      if (plain.holds(i)) return;
      if (ranges.say_all) {
        mask_by_ranges(s, ranges, work.tiles.tile(i));
      } else {
        mask_one_by_one(s, Sight(*this, work), i);
      }
    };
    const auto await_keys = [&](int i) {
      barrier_wait(shared_address(&control.k_full[team()][place.stage]), place.phase);
      if (plain.holds(i) || p.k_new.data == nullptr) return;
      const Sight sight(*this, work);
      if (holds_new(sight, i)) fill_tile(p.k_new, p.head_dim, sight, i, shared.k(place.stage), Fill::kNewKeys);
    };
    const auto await_values = [&](int i, const RingPlace<S::kStages>& v) {
      barrier_wait(shared_address(&control.v_full[team()][v.stage]), v.phase);
      if (plain.holds(i) || holds_stored(ranges, work.tiles.tile(i))) return;
      fill_tile(p.v_new, p.v_head_dim, Sight(*this, work), i, shared.v(v.stage), Fill::kClearHidden);
    };
    const int first_stage = place.stage;
    if (begin < end) {
      move(team());
      if (consumer == S::kRowGroups - 1) give_turn(turns);  // the first turn is the first warpgroup's
      await_keys(begin);
      take_turn(turns);
      start_scores(s, q, k_operand(place.stage));
      give_turn(turns);
      wgmma_wait<0>();
      hold(s);
      release(control.k_empty[place.stage]);
      finish_scores(begin);
      const Softening x = begin_softening(s, largest);
      soften(s, 0, x, sum), soften(s, 1, x, sum);
      pack(w, s);
    }
    bool stashed = false;
    int cut = plan.group_tiles == 0 ? INT_MAX : group_end(work.tiles, begin);
    // A tile that all rows see whole, after another: the loop of long contexts, without a branch.
    const auto step_plain = [&] {
      const RingPlace<S::kStages> v = place;
      move(S::kTeams);
      const uint32_t k_here = k_operand(place.stage), v_here = v_operand(v.stage), q_here = uniform(q);
      barrier_wait(shared_address(&control.v_full[team()][v.stage]), v.phase);
      barrier_wait(shared_address(&control.k_full[team()][place.stage]), place.phase);
      take_turn(turns);
      start_scores(s, q_here, k_here);
      start_values(o, w, v_here);
      give_turn(turns);
      wgmma_wait<1>();
      hold(s);
      release(control.k_empty[place.stage]);
      const Softening x = begin_softening(s, largest);
      if constexpr (S::kDim > 128) {
        // The compiler moves the wait for the values up as far as it can. Long ones leave time for one row's weights
        // before it: held here by a barrier long passed.
        soften(s, 0, x, sum);
        barrier_wait(shared_address(&control.k_full[team()][place.stage]), place.phase);
      }
      wgmma_wait<0>();
      hold(o);
      release(control.v_empty[v.stage]);
      if constexpr (S::kDim <= 128) soften(s, 0, x, sum);
      soften(s, 1, x, sum);
      pack(w, s);
      scale(o, x);
    };
    const auto step = [&](int i) {
      const RingPlace<S::kStages> v = place;
      move(S::kTeams);
      await_values(i, v);
      await_keys(i + S::kTeams);
      take_turn(turns);
      start_scores(s, q, k_operand(place.stage));
      start_values(o, w, v_operand(v.stage));
      give_turn(turns);
      wgmma_wait<0>();
      hold(s);
      hold(o);
      release(control.k_empty[place.stage]);
      release(control.v_empty[v.stage]);
      if (S::kTeams == 1 && i + 2 >= end) release_queries();
      if (i + S::kTeams == cut) {
        stash(o, largest, sum, stashed);
        stashed = true;
        cut = group_end(work.tiles, cut);
      }
      finish_scores(i + S::kTeams);
      const Softening x = begin_softening(s, largest);
      soften(s, 0, x, sum), soften(s, 1, x, sum);
      pack(w, s);
      scale(o, x);
    };
    for (int i = begin; i + S::kTeams < end;) {
      const int plain_until = p.cap > 0 || !plain.holds(i) ? i : min(min(plain.end, cut), end) - S::kTeams;
      for (; i < plain_until; i += S::kTeams) step_plain();
      if (i + S::kTeams >= end) break;
      step(i);
      i += S::kTeams;
    }
    if (S::kTeams == 1) release_queries();
    if (begin < end) {
      await_values(begin + (end - 1 - begin) / S::kTeams * S::kTeams, place);
      take_turn(turns);
      start_values(o, w, v_operand(place.stage));
      give_turn(turns);
      wgmma_wait<0>();
      hold(o);
      release(control.v_empty[place.stage]);
      if (consumer == 0) take_turn(turns);  // takes what the last one gave
    }
    place.stage = (first_stage + max(end - work.begin, 0)) % S::kStages;
    sum[0] = quad_sum(sum[0]), sum[1] = quad_sum(sum[1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) largest[half] = __fmul_rn(largest[half], to_log2);
    if (stashed) add_stashed(o, largest, sum);
    if constexpr (S::kTeams == 2) {
      const bool first = join_teams(o, largest, sum);
      release_queries();
      if (!first) return;
    }
    if (work.slot >= 0) {
      write_part(work, o, largest, sum);
    } else {
      write_rows(work, o, largest, sum);
    }
  }

  __device__ static float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }

  // Adds the second team's sums to the first's, whose call returns true.
  __device__ bool join_teams(Values& o, float (&largest)[2], float (&sum)[2]) const {
    Control<S>& control = shared.control();
    float* values = reinterpret_cast<float*>(shared.q(1)) + thread;
    constexpr int kHalf = S::kDim / 16;
    float a[2], b[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      if (consumer == 1) {
        if (part == 0) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            control.exchange[half][thread] = largest[half], control.exchange[2 + half][thread] = sum[half];
          }
        }
#pragma unroll
        for (int d = 0; d < kHalf; ++d) {
#pragma unroll
          for (int j = 0; j < 4; ++j) values[(d * 4 + j) * 128] = o[part * kHalf + d][j];
        }
      }
      if (consumer == 1) {
        barrier_arrive(shared_address(&control.exchange_full));
        barrier_wait(shared_address(&control.exchange_empty), part);
      } else {
        barrier_wait(shared_address(&control.exchange_full), part);
        if (part == 0) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const PartSum mine{largest[half], sum[half]},
                next{control.exchange[half][thread], control.exchange[2 + half][thread]};
            const PartSum all = mine.joined(next);
            a[half] = mine.factor(all), b[half] = next.factor(all);
            largest[half] = all.largest, sum[half] = all.sum;
          }
        }
#pragma unroll
        for (int d = 0; d < kHalf; ++d) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            float& x = o[part * kHalf + d][j];
            x = PartSum::joined_value(x, a[j / 2], values[(d * 4 + j) * 128], b[j / 2]);
          }
        }
        barrier_arrive(shared_address(&control.exchange_empty));
      }
    }
    return consumer == 0;
  }

  // Strict mode: where in the list the group of entry i ends.
  __device__ int group_end(const KeyTiles& tiles, int i) const {
    if (!tiles.holds_cached(i)) {
      const int next = (tiles.tile(i) / plan.group_tiles + 1) * plan.group_tiles;
      return i + next - tiles.tile(i);
    }
    return tiles.index_of((tiles.tile(i) / plan.group_tiles + 1) * plan.group_tiles);
  }
  __device__ float* stash_place() const {
    return plan.stash + static_cast<int64_t>(blockIdx.x) * kStashFloats * 256 + consumer * 128 + thread;
  }
  // Puts a group's sums away, with those of the groups before, and begins anew.
  __device__ __forceinline__ void stash(Values& o, float (&largest)[2], float (&sum)[2], bool stashed) const {
    sum[0] = quad_sum(sum[0]), sum[1] = quad_sum(sum[1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) largest[half] = __fmul_rn(largest[half], to_log2);
    if (stashed) add_stashed(o, largest, sum);
    float* to = stash_place();
    constexpr int kStep = 128 * S::kWarpgroups;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to[half * kStep] = largest[half], to[(2 + half) * kStep] = sum[half];
      largest[half] = -INFINITY, sum[half] = 0;
    }
#pragma unroll
    for (int d = 0; d < S::kDim / 8; ++d) {
#pragma unroll
      for (int j = 0; j < 4; ++j) to[(4 + d * 4 + j) * kStep] = o[d][j], o[d][j] = 0;
    }
  }
  __device__ void add_stashed(Values& o, float (&largest)[2], float (&sum)[2]) const {
    const float* from = stash_place();
    constexpr int kStep = 128 * S::kWarpgroups;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const PartSum before{from[half * kStep], from[(2 + half) * kStep]}, mine{largest[half], sum[half]};
      const PartSum all = before.joined(mine);
      const float a = before.factor(all), b = mine.factor(all);
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
#pragma unroll
        for (int j = half * 2; j < half * 2 + 2; ++j) {
          o[d][j] = PartSum::joined_value(from[(4 + d * 4 + j) * kStep], a, o[d][j], b);
        }
      }
      largest[half] = all.largest, sum[half] = all.sum;
    }
  }

  // Four words of each of four lanes, transposed: lane l gets word l of all.
  __device__ void transpose(uint32_t (&w)[4]) const {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      const bool upper = (lane & step) != 0;
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const int low = pair * (3 - step), high = low + step;
        const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[low] : w[high], step);
        w[low] = upper ? got : w[low];
        w[high] = upper ? w[high] : got;
      }
    }
  }
  // A row's values, of which four lanes have two in eight, leave in pieces of 16 bytes, 64 together.
  __device__ void write_rows(const Work& work, const Values& o, const float (&largest)[2],
                             const float (&sum)[2]) const {
    bool nan = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = work.row0 + row_of(half);
      const bool inside = row < work.rows;
      const int64_t token = work.span.q_off + packed.token(row);
      const int head = work.kv_head * packed.group + packed.head(row);
      if (p.lse != nullptr && lane % 4 == 0 && inside) {
        p.lse[token * p.lse_stride + head] = PartSum{largest[half], sum[half]}.log_sum();
      }
      T* to = static_cast<T*>(p.out) + token * p.out_token_stride + head * p.out_head_stride;
      const float scale = sum[half] == 0 ? 0.0f : 1.0f / sum[half];
#pragma unroll
      for (int g = 0; g < S::kDim / 32; ++g) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float x = o[4 * g + i][half * 2] * scale, y = o[4 * g + i][half * 2 + 1] * scale;
          w[i] = pack2<T>(x, y);
          nan |= inside && (4 * g + i) * 8 < p.v_head_dim && (isnan(x) || isnan(y));
        }
        transpose(w);
        const int column = (4 * g + lane % 4) * 8;
        if (inside && column < p.v_head_dim)
          *reinterpret_cast<uint4*>(to + column) = make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
    redo_if(nan, work);
  }
  // A value that is infinite or NaN spoils rows that do not see it, since 0 times it is NaN. Such elements, which real
  // models do not have, are done again row by row.
  __device__ void redo_if(bool nan, const Work& work) const {
    const int found = any_of_group(nan);
    if (!found) return;
    int& taken = shared.control().scratch_taken;  // the warpgroups have one place for it
    if (thread == 0) {
      while (atomicCAS(&taken, 0, 1) != 0) __nanosleep(100);
    }
    sync();
    for (int row = work.row0 + row_group() * 64; row < min(work.row0 + row_group() * 64 + 64, work.rows); ++row) {
      attend_row(p, work.request, work.span.q_off + packed.token(row), work.kv_head * packed.group + packed.head(row),
                 shared.scratch(), RowWrite::kWhereNaN, RowTeam{1 + consumer, thread});
    }
    sync();
    if (thread == 0) atomicExch(&taken, 0);
  }
  __device__ int any_of_group(bool mine) const {
    int any;
    asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; bar.red.or.pred q, %2, 128, p; selp.b32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"(static_cast<int>(mine)), "r"(1 + consumer)
                 : "memory");
    return any;
  }

  __device__ void write_part(const Work& work, const Values& o, const float (&largest)[2],
                             const float (&sum)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(half);
      if (work.row0 + row >= work.rows) continue;
      const int64_t at = static_cast<int64_t>(work.slot) * plan.slot_rows + row;
      if (lane % 4 == 0) plan.states[at] = make_float2(largest[half], sum[half]);
      float* to = plan.values + at * p.v_head_dim;
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
        const int column = d * 8 + lane % 4 * 2;
        if (column < p.v_head_dim) {
          *reinterpret_cast<float2*>(to + column) = make_float2(o[d][half * 2], o[d][half * 2 + 1]);
        }
      }
    }
  }
};

template <class S>
__device__ void attend_sm90_block(const KVMaps& maps, const AttentionParams& p, const WorkPlan& plan, char* memory) {
  const SharedLayout<S> shared(memory);
  Control<S>& control = shared.control();
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      for (int team = 0; team < S::kTeams; ++team) {
        barrier_init(shared_address(&control.k_full[team][i]), 1);
        barrier_init(shared_address(&control.v_full[team][i]), 1);
      }
      for (uint64_t* empty : {&control.k_empty[i], &control.v_empty[i]})
        barrier_init(shared_address(empty), 4 * S::kRowGroups);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&control.work_full[i]), 32);
      barrier_init(shared_address(&control.work_empty[i]), (128 + 32) * S::kWarpgroups);
    }
    for (int i = 0; i < S::kWarpgroups; ++i) {
      barrier_init(shared_address(&control.q_full[i]), 32);
      barrier_init(shared_address(&control.q_empty[i]), 4);
    }
    control.scratch_taken = 0;
    barrier_init(shared_address(&control.exchange_full), 128);
    barrier_init(shared_address(&control.exchange_empty), 128);
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();  // the join's blocks may come as soon as there is room
  const int group = static_cast<int>(uniform(threadIdx.x / 128)), thread = threadIdx.x % 128;
  if (group == 0) {
    if constexpr (S::kWarpgroups > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kProducerRegisters));
    const int warp = thread / 32, lane = thread % 32;
    if (warp == 0) Producer<S>{p, maps, shared, {}, lane}.run(plan);
    if (warp > 0 && warp <= S::kWarpgroups) {
      QueryLoader<S>{p, shared, warp - 1, lane, PackedRows(p.heads / p.kv_heads)}.run();
    }
  } else {
    if constexpr (S::kWarpgroups > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kConsumerRegisters));
    Consumer<S>{.p = p,
                .plan = plan,
                .shared = shared,
                .consumer = group - 1,
                .thread = thread,
                .lane = thread % 32,
                .warp = thread / 32,
                .to_log2 = p.cap > 0 ? 1.4426950408889634f : p.scale * 1.4426950408889634f,
                .packed = PackedRows(p.heads / p.kv_heads)}
        .run();
  }
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) attend_sm90(const __grid_constant__ AttentionCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  attend_sm90_block<S>(call.maps, call.p, call.plan, memory);
#endif
}

template <class S>
void launch_sm90(const AttentionCall& call, const Stream& stream) {
  static const bool ready = [] {
    check_cuda(cudaFuncSetAttribute(attend_sm90<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
               "paged_attention: shared memory");
    return true;
  }();
  static_cast<void>(ready);
  launch_early(stream, attend_sm90<S>, dim3(static_cast<unsigned>(call.blocks)), dim3(S::kThreads), S::kSharedBytes,
               call, "paged_attention");
}

template <class T, int kDim>
void attend_sm90_of(const AttentionCall& call, int max_rows, const Stream& stream) {
  if (max_rows > 64) {
    launch_sm90<Sm90Shape<T, kDim, tall_rows(kDim) / 64, 1>>(call, stream);
  } else if (call.plan.teams == 2) {
    launch_sm90<Sm90Shape<T, kDim, 1, 2>>(call, stream);
  } else {
    launch_sm90<Sm90Shape<T, kDim, 1, 1>>(call, stream);
  }
}

}  // namespace headrace::cuda
