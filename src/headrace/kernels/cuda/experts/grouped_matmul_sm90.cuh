// Grouped products on Hopper's warpgroup instructions, transposed: the weights' rows are the 64 rows of a product and
// the tokens its columns, because a product may have any multiple of 8 columns and experts have any number of tokens.
//
// Blocks stay and take tiles in turn: up to kMostRows tokens of one expert by kWeightRows rows of its weights. One
// warpgroup fills a ring of stages of 64 elements of `in`: weights by the copy engine, tokens, which lie anywhere, in
// pieces of 16 bytes. The others multiply two blocks of 64 weight rows each: gate and up of the same channels, so that
// a lane holds both, or 128 rows of down. A result is one chain of k16 products in ascending k whatever the tile, so a
// token's bits depend on nothing else.
#pragma once
#include "headrace/kernels/cuda/experts/grouped_matmul.h"
#include "headrace/kernels/cuda/primitives/bulk_copy.cuh"
#include "headrace/kernels/cuda/primitives/launch.cuh"
#include "headrace/kernels/cuda/primitives/wgmma_widths.cuh"

namespace headrace::cuda::grouped {

inline constexpr int kDepth = 64, kRowBytes = kDepth * 2, kNoRow = -1;
inline constexpr int kBlocks = 2, kBlockRows = 64, kBlockBytes = kBlockRows * kRowBytes;  // of a warpgroup

// One tensor map that reaches all memory: its last two dimensions walk over addresses, in steps of 16 bytes and of
// kFarStep bytes from kFirstAddress on. So the copy engine takes the address of any expert.
inline constexpr int64_t kFirstAddress = 4096, kNearStep = 16, kNearSteps = int64_t{1} << 31;
inline constexpr int64_t kFarStep = kNearStep * kNearSteps, kFarSteps = 4096;

struct Params {
  GroupedMatmul product;
  CUtensorMap weights;  // [far, near, out, in]: the weight at an address
  int column_tiles, chunks;
};

template <class T, int kConsumers, int kMost, int kStageCount>
struct Shape {
  using Element = T;
  static constexpr int kGroups = kConsumers, kMostRows = kMost, kStages = kStageCount, kThreads = (1 + kGroups) * 128;
  static constexpr int kWeightBlocks = kGroups * kBlocks, kWeightBytes = kWeightBlocks * kBlockBytes;
  static constexpr int kStageBytes = kWeightBytes + kMostRows * kRowBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // behind the stages: barriers and rows' places
  static_assert(kStages * 16 + kMostRows * 4 <= 1024 && kSharedBytes <= 227 << 10);
  static constexpr bool kFew = kMostRows <= kFewRowsSm90;
  static constexpr uint64_t kPolicy = kFew ? kReadOnce : kReadAgain;
};
// Weights are read once for all tokens, or by the few that follow each other.
template <class T>
using FewShape = Shape<T, 1, kFewRowsSm90, 9>;
template <class T>
using ManyShape = Shape<T, 2, kManyRowsSm90, 4>;

// Of tiles of one slot: no more rows than a product needs leave room for more stages.
template <class T>
using OneSlotShape = Shape<T, 1, 16, 12>;

// Channels that a tile makes.
template <class S, bool kGated>
constexpr int kColumns = S::kWeightBlocks* kBlockRows / (kGated ? 2 : 1);

// Columns that are multiplied for `count` tokens.
__device__ inline int width_of(int count) {
  return count <= 16    ? 16
         : count <= 32  ? 32
         : count <= 64  ? 64
         : count <= 96  ? 96
         : count <= 128 ? 128
         : count <= 144 ? 144
                        : 192;
}

// The first of the 64 channels of block `b` of a warpgroup.
template <class S, bool kGated>
__device__ inline int first_channel(int column_tile, int group, int b) {
  return column_tile * kColumns<S, kGated> + (kGated ? group : group * kBlocks + b) * kBlockRows;
}

template <class S>
struct Shared {
  char* stages;
  uint32_t full, empty;  // barriers
  int* row_places;       // [kMostRows]

  __device__ uint32_t weights(int stage) const { return shared_address(stages + stage * S::kStageBytes); }
  __device__ uint32_t rows(int stage) const { return weights(stage) + S::kWeightBytes; }
};

// By one thread of the block, before all meet.
template <class S>
__device__ Shared<S> begin_ring(char* memory) {
  auto* barriers = reinterpret_cast<uint64_t*>(memory + S::kStages * S::kStageBytes);
  const Shared<S> shared{memory, shared_address(barriers), shared_address(barriers + S::kStages),
                         reinterpret_cast<int*>(barriers + 2 * S::kStages)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      barrier_init(shared.full + stage * 8, 128 + 1);
      barrier_init(shared.empty + stage * 8, 4 * S::kGroups);
    }
    fence_barrier_init();
  }
  return shared;
}

// Arrives when the copies that this thread has begun are there.
__device__ inline void arrive_with_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Of tokens that are there when the kernel begins.
struct NobodyWaits {
  __device__ void operator()() const {}
};

template <class S, bool kGated>
struct Producer {
  const Params& p;
  Shared<S> shared;
  int thread;

  __device__ void run(int tiles) const {
    RingPlace<S::kStages> at;
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
      const ExpertTile tile = p.product.groups.tile(t / p.column_tiles);
      if (tile.count > 0) fill(tile, t % p.column_tiles, at, NobodyWaits());
    }
  }

  // A tile's stages. As many of them as the ring has get their weights before its tokens are waited for, by all
  // threads.
  template <class WaitForTokens>
  __device__ void fill(const ExpertTile& tile, int column_tile, RingPlace<S::kStages>& at,
                       const WaitForTokens& wait_for_tokens) const {
    constexpr int kAhead = std::is_same_v<WaitForTokens, NobodyWaits> ? 1 : S::kStages;
    const int width = width_of(tile.count);
    find_rows(tile, width);
    const Box box = thread < S::kWeightBlocks ? box_of(tile.expert, column_tile) : Box{};
    for (int first = 0; first < p.chunks; first += kAhead) {
      const int end = min(first + kAhead, p.chunks);
      RingPlace<S::kStages> of_weights = at;
      for (int chunk = first; chunk < end; ++chunk, of_weights.next()) copy_weights(box, chunk, of_weights);
      if (first == 0) wait_for_tokens();
      for (int chunk = first; chunk < end; ++chunk, at.next()) {
        copy_rows(width, chunk, shared.rows(at.stage));
        arrive_with_copies(shared.full + at.stage * 8);
      }
    }
  }

 private:
  // Where block `thread` of the tile's weights begins.
  struct Box {
    int row, near, far;
  };
  __device__ void copy_weights(const Box& box, int chunk, const RingPlace<S::kStages>& at) const {
    barrier_wait(shared.empty + at.stage * 8, at.phase ^ 1);
    if (thread >= 32) return;
    const uint32_t full = shared.full + at.stage * 8;
    if (thread == 0) barrier_expect(full, S::kWeightBytes);
    __syncwarp();
    if (thread >= S::kWeightBlocks) return;
    copy_box(shared.weights(at.stage) + thread * kBlockBytes, p.weights, chunk * kDepth, box.row, box.near, box.far,
             full, S::kPolicy);
  }
  // Notes where this warp's rows begin, in 16 bytes: registers would not hold them. A warp reads its own alone.
  __device__ void find_rows(const ExpertTile& tile, int width) const {
    __syncwarp();
    for (int row = thread / 8; row < width; row += 16) {
      const int place = tile.begin + row;
      const int from =
          row >= tile.count ? kNoRow : row_at(p.product.k == 0 ? place : p.product.groups.slot_at(place) / p.product.k);
      if (thread % 8 == 0) shared.row_places[row] = from;
    }
    __syncwarp();
  }
  __device__ int row_at(int row) const { return static_cast<int>(p.product.x.at(row) / 8); }

  __device__ Box box_of(int expert, int column_tile) const {
    const int channel = first_channel<S, kGated>(column_tile, thread / kBlocks, thread % kBlocks);
    const int64_t address = p.product.addresses[expert * 3 + (kGated ? thread % kBlocks : 2)] - kFirstAddress;
    return {channel < p.product.out ? channel : 0,  // results behind the last channel are not written
            static_cast<int>(address / kNearStep % kNearSteps), static_cast<int>(address / kFarStep)};
  }
  __device__ void copy_rows(int width, int chunk, uint32_t to) const {
    const int piece = thread % 8;
    const auto* x = static_cast<const uint4*>(p.product.x.data) + chunk * (kDepth / 8) + piece;
    to += swizzled<8>(thread / 8, piece);
#pragma unroll 4
    for (int row = thread / 8; row < width; row += 16, to += 16 * kRowBytes) {
      const int from = shared.row_places[row];
      copy16(to, from == kNoRow ? x : x + from, from != kNoRow);
    }
  }
};

template <class S, bool kGated>
struct Consumer {
  using T = typename S::Element;
  const Params& p;
  Shared<S> shared;
  int group, warp, lane;

  __device__ void run(int tiles) const {
    RingPlace<S::kStages> at;
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
      const ExpertTile tile = p.product.groups.tile(t / p.column_tiles);
      if (tile.count > 0) take(tile, t % p.column_tiles, at);
    }
  }

  __device__ void take(const ExpertTile& tile, int column_tile, RingPlace<S::kStages>& at) const {
    const int width = width_of(tile.count);
    if (width == 16 || S::kMostRows == 16) return make<2>(tile, column_tile, at);
    if (width == 32) return make<4>(tile, column_tile, at);
    if (width == 64) return make<8>(tile, column_tile, at);
    if constexpr (!S::kFew) {
      if (width == 96) return make<12>(tile, column_tile, at);
      if (width == 128) return make<16>(tile, column_tile, at);
      if (width == 144) return make<18>(tile, column_tile, at);
      return make<24>(tile, column_tile, at);
    }
  }

 private:
  template <int kTiles>
  __device__ void make(const ExpertTile& tile, int column_tile, RingPlace<S::kStages>& at) const {
    float sums[kBlocks][kTiles][4] = {};
    int before = 0;
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      barrier_wait(shared.full + at.stage * 8, at.phase);
      fence_for_wgmma();  // the tokens' pieces came by ordinary copies
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
      wgmma_wait<1>();
      if (chunk > 0) release(before);
      before = at.stage;
      at.next();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) hold(sums[b]);
    release(before);
    write(tile, column_tile, sums);
  }
  __device__ static uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }
  __device__ void release(int stage) const {
    if (lane == 0) barrier_arrive(shared.empty + stage * 8);
  }

  // A lane holds channels lane / 4 and 8 behind it of a warp's 16, of tokens 2 (lane % 4) and the next. Transposed, it
  // has two neighbours of each half, of token lane / 4: four lanes write 32 bytes of it in two parts.
  template <int kTiles>
  __device__ void write(const ExpertTile& tile, int column_tile, const float (&sums)[kBlocks][kTiles][4]) const {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int row = j * 8 + lane / 4, place = tile.begin + row;
      const bool there = row < tile.count;
      const int64_t to = kGated ? place : there ? p.product.groups.slot_at(place) : 0;
      T* y = static_cast<T*>(p.product.y.data) + to * p.product.y.token_stride;
      const float(&gate)[4] = sums[0][j], (&up)[4] = sums[1][j];
      if constexpr (kGated) {
        const float v[4] = {gated(gate[0], up[0]), gated(gate[1], up[1]), gated(gate[2], up[2]), gated(gate[3], up[3])};
        write_halves(v, first_channel<S, kGated>(column_tile, group, 0), there, y);
      } else {
        write_halves(gate, first_channel<S, kGated>(column_tile, group, 0), there, y);
        write_halves(up, first_channel<S, kGated>(column_tile, group, 1), there, y);
      }
    }
  }
  __device__ void write_halves(const float (&v)[4], int first, bool there, T* y) const {
    const uint32_t low = transposed(pack2<T>(v[0], v[1])), high = transposed(pack2<T>(v[2], v[3]));
    if (!there || first >= p.product.out) return;
    auto* to = reinterpret_cast<uint32_t*>(y + first + warp * 16 + lane % 4 * 2);
    to[0] = low, to[4] = high;
  }
  __device__ float gated(float gate, float up) const { return activated(p.product.activation, gate) * up; }
  __device__ static uint32_t transposed(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
  }
};

template <class S, bool kGated>
__global__ void __launch_bounds__(S::kThreads, 1) multiply(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  const Shared<S> shared = begin_ring<S>(memory);
  __syncthreads();
  wait_for_previous();
  let_next_start();
  const int tiles = p.product.groups.tiles_to_make() * p.column_tiles;
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
  if (group == 0) {
    if constexpr (!S::kFew) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    Producer<S, kGated>{p, shared, thread}.run(tiles);
  } else {
    // Together at most the registers of the launch, 3 x 168: more would wait for ever.
    if constexpr (!S::kFew) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Consumer<S, kGated>{p, shared, group - 1, thread / 32, thread % 32}.run(tiles);
  }
#endif
}

template <class S, bool kGated>
void launch(const Params& p, const Stream& stream) {
  launch_early(stream, multiply<S, kGated>, dim3(static_cast<unsigned>(stream.num_sms)), dim3(S::kThreads),
               S::kSharedBytes, p, "expert_mlp");
}

// A map whose boxes are blocks of 64 rows of 64 elements.
CUtensorMap map_of_weights(const GroupedMatmul& product);

template <class S>
Params params_of(const GroupedMatmul& product) {
  const int columns = product.of == GroupedMatmul::Of::kGateUp ? kColumns<S, true> : kColumns<S, false>;
  return {.product = product,
          .weights = map_of_weights(product),
          .column_tiles = (product.out + columns - 1) / columns,
          .chunks = (product.in + kDepth - 1) / kDepth};
}

template <class S>
void multiply_on(const GroupedMatmul& product, const Stream& stream) {
  const Params p = params_of<S>(product);
  product.of == GroupedMatmul::Of::kGateUp ? launch<S, true>(p, stream) : launch<S, false>(p, stream);
}

template <class T>
void multiply_of(const GroupedMatmul& product, const Stream& stream) {
  product.groups.tile_rows <= kFewRowsSm90 ? multiply_on<FewShape<T>>(product, stream)
                                           : multiply_on<ManyShape<T>>(product, stream);
}

}  // namespace headrace::cuda::grouped
