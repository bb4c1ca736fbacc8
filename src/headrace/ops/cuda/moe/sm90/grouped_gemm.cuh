// Grouped GEMM by WGMMA (sm_90a) with swap-AB: A = weights (64 rows), B = tokens. N of WGMMA may be any multiple of 8,
// and experts have any number of tokens.
//
// Persistent CTAs take tiles of up to kMostRows tokens of one expert by kWeightBlocks x 64 rows of its weights. One
// producer warpgroup fills a pipeline with stages of 64 elements of K: weights by TMA; tokens, which lie anywhere, by
// 16-byte cp.async. Each consumer warpgroup multiplies two blocks of 64 weight rows: gate and up of the same channels,
// so that a lane holds both, or 128 rows of down. A result is one chain of k16 MMAs in ascending k whatever the tile,
// so a token's bits depend on nothing else.
#pragma once
#include "headrace/ops/cuda/arch/lean_silu.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/shared_vec.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/arch/wgmma.cuh"
#include "headrace/ops/cuda/arch/wgmma_widths.cuh"
#include "headrace/ops/cuda/moe/grouped_gemm.h"

namespace headrace::cuda::grouped {

inline constexpr int kDepth = 64, kRowBytes = kDepth * 2;
inline constexpr int kBlocks = 2, kBlockRows = 64, kBlockBytes = kBlockRows * kRowBytes;  // of a warpgroup
inline constexpr int kPairBytes = 16 * 16 * 2, kWarpResultBytes = 2 * kPairBytes;  // 16 tokens of a warp's channels

// One TMA descriptor that reaches all memory. Its last two dimensions walk over addresses, in steps of 16 bytes and of
// kFarStep bytes from kFirstAddress on. So TMA can load the weights of any expert.
inline constexpr int64_t kFirstAddress = 4096, kNearStep = 16, kNearSteps = int64_t{1} << 31;
inline constexpr int64_t kFarStep = kNearStep * kNearSteps, kFarSteps = 4096;

struct Params {
  GroupedGemm gemm;
  CUtensorMap weights;  // [far, near, out, in]: the weight at an address
  int column_tiles, chunks;
};

template <class T, int kConsumers, int kMost, int kStageCount>
struct Shape {
  using Element = T;
  static constexpr int kGroups = kConsumers, kMostRows = kMost, kStages = kStageCount, kThreads = (1 + kGroups) * 128;
  static constexpr int kWeightBlocks = kGroups * kBlocks, kWeightBytes = kWeightBlocks * kBlockBytes;
  static constexpr int kStageBytes = kWeightBytes + kMostRows * kRowBytes;
  static constexpr int kResultBytes = kGroups * 4 * kWarpResultBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + 16) + kResultBytes;
  static_assert(kSharedBytes <= 227 << 10);
  static constexpr bool kFew = kMostRows <= kFewRowsSm90;
  static constexpr uint64_t kPolicy = kFew ? kReadOnce : kReadAgain;
};
// FewShape: weights are read once, for all tokens. ManyShape: again by the few tiles that follow.
template <class T>
using FewShape = Shape<T, 1, kFewRowsSm90, 9>;
template <class T>
using ManyShape = Shape<T, 2, kManyRowsSm90, 4>;

// Channels of a tile.
template <class S, bool kGated>
constexpr int kColumns = S::kWeightBlocks* kBlockRows / (kGated ? 2 : 1);
static_assert(kColumns<ManyShape<__half>, false> == kDownColumnsSm90);

// Returns N of the MMA for `count` tokens.
__device__ inline int width_of(int count) {
  return count <= 16    ? 16
         : count <= 32  ? 32
         : count <= 64  ? 64
         : count <= 96  ? 96
         : count <= 128 ? 128
         : count <= 144 ? 144
         : count <= 160 ? 160
                        : 176;
}

// Returns the first of the 64 channels of block `b` of a warpgroup.
template <class S, bool kGated>
__device__ inline int first_channel(int column_tile, int group, int b) {
  return column_tile * kColumns<S, kGated> + (kGated ? group : group * kBlocks + b) * kBlockRows;
}

// Calls f(tile, column tile) for each tile that this CTA takes.
template <class F>
__device__ void for_tiles(const Params& p, const F& f) {
  const ExpertGroups& groups = p.gemm.groups;
  const int num_tiles = groups.tiles_to_run() * p.column_tiles, step = static_cast<int>(gridDim.x);
  int i = static_cast<int>(blockIdx.x);
  if (i >= num_tiles) return;
  for (ExpertTile next = groups.tile(i / p.column_tiles); i < num_tiles; i += step) {
    const ExpertTile tile = next;
    if (i + step < num_tiles) next = groups.tile((i + step) / p.column_tiles);  // loaded while this one is computed
    if (tile.count > 0) f(tile, i % p.column_tiles);
  }
}

template <class S>
struct Shared {
  uint32_t stages, results, full, empty;  // addresses; the last two of mbarriers
  __device__ uint32_t weights(int stage) const { return stages + stage * S::kStageBytes; }
  __device__ uint32_t rows(int stage) const { return weights(stage) + S::kWeightBytes; }
};

// Initialises the mbarriers in one thread. Call it before a CTA-wide barrier.
template <class S>
__device__ Shared<S> init_pipeline(char* memory) {
  const uint32_t stages = shared_address(memory), results = stages + S::kStages * S::kStageBytes;
  const uint32_t full = results + S::kResultBytes, empty = full + S::kStages * 8;
  const Shared<S> shared{stages, results, full, empty};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      barrier_init(shared.full + stage * 8, 128 + 1);
      barrier_init(shared.empty + stage * 8, 4 * S::kGroups);
    }
    fence_barrier_init();
  }
  return shared;
}

// Arrives when all cp.async that this thread has issued so far are complete.
__device__ inline void arrive_with_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

template <class S, bool kGated>
struct Producer {
  const Params& p;
  Shared<S> shared;
  int thread;

  __device__ void run() const {
    PipelineState<S::kStages> at;
    for_tiles(p, [&](const ExpertTile& tile, int columns) { fill(tile, columns, at); });
  }

 private:
  // Fills the stages of a tile.
  __device__ void fill(const ExpertTile& tile, int column_tile, PipelineState<S::kStages>& at) const {
    const TokenRows rows = find_rows(tile);
    const Box box = thread < S::kWeightBlocks ? box_of(tile.expert, column_tile) : Box{};
    for (int chunk = 0; chunk < p.chunks; ++chunk, at.next()) {
      copy_weights(box, chunk, at);
      copy_rows(rows, chunk, shared.rows(at.stage));
      arrive_with_copies(shared.full + at.stage * 8);
    }
  }
  // TMA coordinates of weight block `thread` of the tile.
  struct Box {
    int row, near, far;
  };
  __device__ void copy_weights(const Box& box, int chunk, const PipelineState<S::kStages>& at) const {
    barrier_wait(shared.empty + at.stage * 8, at.phase ^ 1);
    if (thread >= 32) return;
    const uint32_t full = shared.full + at.stage * 8;
    if (thread == 0) barrier_expect(full, S::kWeightBytes);
    __syncwarp();
    if (thread >= S::kWeightBlocks) return;
    tma_load(shared.weights(at.stage) + thread * kBlockBytes, p.weights, chunk * kDepth, box.row, box.near, box.far,
             full, S::kPolicy);
  }
  // Rows of x of which this thread copies 16 bytes: those of the tile's tokens thread / 8 and every 16th after it. Rows
  // without a token keep old data, on which no token's results depend.
  struct TokenRows {
    int rows[S::kMostRows / 16], count;
  };
  __device__ TokenRows find_rows(const ExpertTile& tile) const {
    TokenRows found{.count = (tile.count - thread / 8 + 15) / 16};
#pragma unroll
    for (int i = 0; i < S::kMostRows / 16; ++i) {
      const int row = min(thread / 8 + i * 16, tile.count - 1);  // loads without branches are in flight together
      found.rows[i] = row_at(tile.begin + row);
    }
    return found;
  }
  __device__ int row_at(int place) const { return p.gemm.k == 0 ? place : p.gemm.groups.slot_at(place) / p.gemm.k; }

  __device__ Box box_of(int expert, int column_tile) const {
    const int channel = first_channel<S, kGated>(column_tile, thread / kBlocks, thread % kBlocks);
    const int64_t address = p.gemm.addresses[expert * 3 + (kGated ? thread % kBlocks : 2)] - kFirstAddress;
    return {p.gemm.first + (channel < p.gemm.out ? channel : 0),  // nothing is written past the last channel
            static_cast<int>(address / kNearStep % kNearSteps), static_cast<int>(address / kFarStep)};
  }
  __device__ void copy_rows(const TokenRows& rows, int chunk, uint32_t to) const {
    const int piece = thread % 8;
    const auto* x = static_cast<const char*>(p.gemm.x.data) + chunk * kRowBytes + piece * 16;
    const int64_t bytes = p.gemm.x.token_stride * 2;
    to += swizzled<8>(thread / 8, piece);
#pragma unroll
    for (int i = 0; i < S::kMostRows / 16; ++i) {
      if (i < rows.count) copy16(to + i * 16 * kRowBytes, x + rows.rows[i] * bytes, true);
    }
  }
};

template <class S, bool kGated>
struct Consumer {
  using T = typename S::Element;
  const Params& p;
  Shared<S> shared;
  int group, warp, lane;

  __device__ void run() const {
    PipelineState<S::kStages> at;
    for_tiles(p, [&](const ExpertTile& tile, int columns) { take(tile, columns, at); });
  }

 private:
  __device__ void take(const ExpertTile& tile, int column_tile, PipelineState<S::kStages>& at) const {
    const int width = width_of(tile.count);
    if (width == 16) return make<2>(tile, column_tile, at);
    if (width == 32) return make<4>(tile, column_tile, at);
    if (width == 64) return make<8>(tile, column_tile, at);
    if constexpr (!S::kFew) {
      if (width == 96) return make<12>(tile, column_tile, at);
      if (width == 128) return make<16>(tile, column_tile, at);
      if (width == 144) return make<18>(tile, column_tile, at);
      if (width == 160) return make<20>(tile, column_tile, at);
      return make<22>(tile, column_tile, at);
    }
  }

  // kDown: destinations of the results. Lane l has the slots of tokens l, 32 + l, ...
  template <int kTiles>
  struct Places {
    int slots[kGated ? 1 : (kTiles * 8 + 31) / 32];
  };
  template <int kTiles>
  __device__ Places<kTiles> places_of(const ExpertTile& tile) const {
    Places<kTiles> places = {};
    if constexpr (!kGated) {
#pragma unroll
      for (int i = 0; i < (kTiles * 8 + 31) / 32; ++i) {
        const int row = i * 32 + lane;
        if (row < tile.count) places.slots[i] = p.gemm.groups.slot_at(tile.begin + row);
      }
    }
    return places;
  }

  // A single consumer warpgroup issues the next MMAs before it waits for these. Two fill one another's waits, and
  // release a stage at once.
  template <int kTiles>
  __device__ void make(const ExpertTile& tile, int column_tile, PipelineState<S::kStages>& at) const {
    constexpr int kPending = S::kGroups == 1 ? 1 : 0;
    const Places<kTiles> places = places_of<kTiles>(tile);
    float sums[kBlocks][kTiles][4] = {};
    int before = 0;
    for (int chunk = 0; chunk < p.chunks; ++chunk, at.next()) {
      multiply_stage(at, sums);
      wgmma_wait<kPending>();
      if constexpr (kPending == 0) {
        hold_all(sums);
        release(at.stage);
      } else if (chunk > 0) {
        release(before);
      }
      before = at.stage;
    }
    if constexpr (kPending > 0) {
      wgmma_wait<0>();
      hold_all(sums);
      release(before);
    }
    write(tile, column_tile, places, sums);
  }
  template <int kTiles>
  __device__ void multiply_stage(const PipelineState<S::kStages>& at, float (&sums)[kBlocks][kTiles][4]) const {
    barrier_wait(shared.full + at.stage * 8, at.phase);
    fence_for_wgmma();  // cp.async wrote the tokens
    const uint32_t w = uniform(operand_low(shared.weights(at.stage) + group * kBlocks * kBlockBytes, 0));
    const uint32_t x = uniform(operand_low(shared.rows(at.stage), 0));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        wgmma_shared<T>(sums[b], operand(w + b * kBlockBytes / 16 + k * 2), operand(x + k * 2), Add::kYes);
    }
    wgmma_commit();
  }
  template <int kTiles>
  __device__ static void hold_all(float (&sums)[kBlocks][kTiles][4]) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) hold(sums[b]);
  }
  __device__ static uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }
  __device__ void release(int stage) const {
    if (lane == 0) barrier_arrive(shared.empty + stage * 8);
  }

  template <int kTiles>
  __device__ void write(const ExpertTile& tile, int column_tile, const Places<kTiles>& places,
                        const float (&sums)[kBlocks][kTiles][4]) const {
    const auto first = [&](int b) { return first_channel<S, kGated>(column_tile, group, b); };
    if constexpr (!kGated) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        write_block(tile, first(b), places, [&](int j, int i) { return pack2<T>(sums[b][j][i], sums[b][j][i + 1]); });
    } else if (p.gemm.activation == Activation::kSilu) {
      write_block(tile, first(0), places, [&](int j, int i) { return gated_pair<lean_silu>(sums, j, i); });
    } else {
      write_block(tile, first(0), places, [&](int j, int i) { return gated_pair<gelu>(sums, j, i); });
    }
  }
  template <float (*kActivation)(float), int kTiles>
  __device__ static uint32_t gated_pair(const float (&sums)[kBlocks][kTiles][4], int j, int i) {
    return pack2<T>(kActivation(sums[0][j][i]) * sums[1][j][i], kActivation(sums[0][j][i + 1]) * sums[1][j][i + 1]);
  }
  // A lane has pairs of two tokens, 2 (lane % 4) of each 8 and the next, of channels lane / 4 and lane / 4 + 8 of a
  // warp's 16: pair(tokens / 8, 0 or 2). A transpose through shared memory, 32 tokens at a time, gives it 8 channels of
  // one token.
  template <int kTiles, class F>
  __device__ void write_block(const ExpertTile& tile, int first, const Places<kTiles>& places, const F& pair) const {
    if (first >= p.gemm.out) return;
    const int of_pair = lane / 2, channel = first + warp * 16 + lane % 2 * 8;
    const uint32_t to = shared.results + (group * 4 + warp) * kWarpResultBytes + lane * 16;
    const uint32_t from = to + ((of_pair / 8 * 2 + lane % 2) * 8 + of_pair % 8 - lane) * 16;
    auto* y = static_cast<T*>(p.gemm.y.data) + channel;
#pragma unroll
    for (int j = 0; j < kTiles; j += 4) {
#pragma unroll
      for (int i = j; i < min(j + 4, kTiles); i += 2)
        stmatrix_x4_trans(to + (i - j) / 2 * kPairBytes, pair(i, 0), pair(i, 2), pair(i + 1, 0), pair(i + 1, 2));
      __syncwarp();
#pragma unroll
      for (int i = j; i < min(j + 4, kTiles); i += 2) {
        const uint4 piece = load_vec8(from + (i - j) / 2 * kPairBytes);
        const int row = i * 8 + of_pair;
        int place = tile.begin + row;
        if constexpr (!kGated) place = __shfl_sync(0xffffffffu, places.slots[j / 4], i % 4 * 8 + of_pair);
        if (row < tile.count) *reinterpret_cast<uint4*>(y + place * p.gemm.y.token_stride) = piece;
      }
      __syncwarp();
    }
  }
};

template <class S, bool kGated>
__global__ void __launch_bounds__(S::kThreads, 1) multiply(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  const Shared<S> shared = init_pipeline<S>(memory);
  __syncthreads();
  pdl_wait();
  pdl_launch_dependents();
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
  if (group == 0) {
    if constexpr (!S::kFew) asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    Producer<S, kGated>{p, shared, thread}.run();
  } else {
    // The launch has 3 x 168 registers in total; with more, setmaxnreg would wait forever.
    if constexpr (!S::kFew) asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    Consumer<S, kGated>{p, shared, group - 1, thread / 32, thread % 32}.run();
  }
#endif
}

template <class S, bool kGated>
void launch(const Params& p, const Stream& stream) {
  launch_pdl(stream, multiply<S, kGated>, dim3(static_cast<unsigned>(stream.num_sms)), dim3(S::kThreads),
             S::kSharedBytes, p, "expert_mlp");
}

// Returns a TMA descriptor whose boxes are blocks of 64 rows of 64 elements. Throws kCuda.
CUtensorMap map_of_weights(const GroupedGemm& gemm);

template <class S>
Params params_of(const GroupedGemm& gemm) {
  const int columns = gemm.projection == GroupedGemm::Projection::kGateUp ? kColumns<S, true> : kColumns<S, false>;
  return {.gemm = gemm,
          .weights = map_of_weights(gemm),
          .column_tiles = (gemm.out + columns - 1) / columns,
          .chunks = (gemm.in + kDepth - 1) / kDepth};
}

template <class S>
void multiply_on(const GroupedGemm& gemm, const Stream& stream) {
  const Params p = params_of<S>(gemm);
  gemm.projection == GroupedGemm::Projection::kGateUp ? launch<S, true>(p, stream) : launch<S, false>(p, stream);
}

template <class T>
void multiply_of(const GroupedGemm& gemm, const Stream& stream) {
  gemm.groups.tile_rows <= kFewRowsSm90 ? multiply_on<FewShape<T>>(gemm, stream)
                                        : multiply_on<ManyShape<T>>(gemm, stream);
}

}  // namespace headrace::cuda::grouped
