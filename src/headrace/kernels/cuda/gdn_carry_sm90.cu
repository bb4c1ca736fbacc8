// The chunked gated delta rule on Hopper, second part: a block carries one value head's state, or half of its value
// dimensions, through a request's chunks. One thread reads ahead with the copy engine; a warpgroup for 64 value
// dimensions works on transposes, so that its state [64, 128] stays in registers as the accumulator of its update and,
// rounded to bfloat16, as the left operand of the products with k and q; N and the right-hand side pass from one
// product to the next in the same way, and raw q, k, T and P are right operands from shared memory. No value dimension
// ever meets another.
#include "headrace/kernels/cuda/gdn_chunk_sm90.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HR_BUILD_SM90A 1
#include "headrace/kernels/cuda/wgmma.cuh"
#endif

namespace headrace::cuda {
namespace {

using namespace gdn;

constexpr int kStages = 3;

// Shared memory of a block with kHalves warpgroups that carry state.
template <int kHalves>
struct Layout {
  static constexpr int kTiles = 4 + kHalves;
  // Of one stage: k and q in halves of 64 columns, v, an image.
  static constexpr int kK = 0, kQ = 2 * kTile, kV = 4 * kTile, kImage = kTiles * kTile;
  static constexpr int kStage = (kImage + Image::kBytes + 1023) / 1024 * 1024;
  static constexpr int kOutput = kStages * kStage;                   // [halves] tiles of 64 tokens
  static constexpr int kCounts = kOutput + kHalves * kTile;          // [stages] tokens of the chunk; 0: no more chunks
  static constexpr int kBarriers = kCounts + 16;                     // full, then empty
  static constexpr int kBytes = kBarriers + 2 * kStages * 8 + 1024;  // the base is rounded up to 1024
};

#ifdef HR_BUILD_SM90A
struct Place {
  int request, head, key_head, first_row;  // first_row: value dimension of the block's first
  int place;                               // of the request's first image in the pass
  uint32_t shared;                         // address of the layout
  char* base;
  KeySpan span;
  Walk walk;  // before the first chunk of the pass
};

// Carries 64 value dimensions' state through the chunks.
template <int kHalves>
struct Carrier {
  using L = Layout<kHalves>;
  const GDNParams& p;
  const Pass& pass;
  const Place& at;
  const CUtensorMap& out;
  int half, thread, warp, lane;

  __device__ uint32_t stage(int s) const { return at.shared + s * L::kStage; }
  // Row of the state that s[n][0..1] belong to; s[n][2..3] belong to the eighth after it.
  __device__ int row() const { return at.first_row + 64 * half + 16 * warp + lane / 4; }

  // A head's state [128, 128], null for zeros.
  __device__ void load(const float* from, float (&s)[16][4]) const {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2* const x = reinterpret_cast<const float2*>(from + (row() + 8 * i) * kDim + 8 * n + 2 * (lane % 4));
        const float2 pair = from == nullptr ? float2{} : *x;
        s[n][2 * i] = pair.x, s[n][2 * i + 1] = pair.y;
      }
    }
  }
  __device__ void save(float* to, const float (&s)[16][4]) const {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<float2*>(to + (row() + 8 * i) * kDim + 8 * n + 2 * (lane % 4)) = {s[n][2 * i],
                                                                                            s[n][2 * i + 1]};
      }
    }
  }

  __device__ void pack_state(const float (&s)[16][4], uint32_t (&packed)[8][4]) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        packed[k][i] = pack2<__nv_bfloat16>(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
    }
  }
  // x = S rows^T, of k or q.
  __device__ void start_state_product(uint32_t rows, const uint32_t (&packed)[8][4], float (&x)[8][4]) const {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint64_t right = wgmma_operand(rows + k / 4 * kTile + k % 4 * 32, 1024, 16);
      if (k == 0) {
        wgmma_rs<kZeroFirst, 0>(x, packed[k], right);
      } else {
        wgmma_rs<kAccumulate, 0>(x, packed[k], right);
      }
    }
    wgmma_commit();
  }

  // The right-hand side beta v - beta exp(G) rk x, as left operands over the tokens.
  __device__ void right_hand_side(uint32_t tiles, const float4* scales, const float (&x)[8][4],
                                  uint32_t (&r)[4][4]) const {
    const uint32_t values = tiles + L::kV + half * kTile;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t v[4];  // v^T of tokens 16 k.. and, in the last two, 16 k + 8..
      load_tiles_transposed(v, values + swizzled<8>(16 * k + lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float4 a = scales[16 * k + 8 * n + 2 * (lane % 4)], b = scales[16 * k + 8 * n + 2 * (lane % 4) + 1];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t pair = v[2 * n + i];
          const float* const xs = &x[2 * k + n][2 * i];
          r[k][2 * n + i] =
              pack2<__nv_bfloat16>(fmaf(a.y, xs[0], a.x * low_bf16(pair)), fmaf(b.y, xs[1], b.x * high_bf16(pair)));
        }
      }
    }
  }

  // n = r T^T.
  __device__ void start_solve(uint32_t tiles, const uint32_t (&r)[4][4], float (&n)[8][4]) const {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t right = wgmma_operand(tiles + L::kImage + Image::kT + k * 32, 1024, 16);
      if (k == 0) {
        wgmma_rs<kZeroFirst, 0>(n, r[k], right);
      } else {
        wgmma_rs<kAccumulate, 0>(n, r[k], right);
      }
    }
    wgmma_commit();
  }

  // S = exp(G_C) S + (scaled n) k; `plain` is n as left operands.
  __device__ void start_update(uint32_t tiles, const float4* scales, float last, const float (&n)[8][4],
                               float (&s)[16][4], uint32_t (&plain)[4][4], uint32_t (&scaled)[4][4]) const {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const float a = scales[8 * m + 2 * (lane % 4)].w, b = scales[8 * m + 2 * (lane % 4) + 1].w;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scaled[m / 2][m % 2 * 2 + i] = pack2<__nv_bfloat16>(n[m][2 * i] * a, n[m][2 * i + 1] * b);
        plain[m / 2][m % 2 * 2 + i] = pack2<__nv_bfloat16>(n[m][2 * i], n[m][2 * i + 1]);
      }
    }
#pragma unroll
    for (int m = 0; m < 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][i] *= last;
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_rs<kAccumulate, 1>(s, scaled[k], wgmma_operand(tiles + L::kK + k * 2048, 1024, kTile));
    }
    wgmma_commit();
  }
  // o = exp(G) rq o + n P^T
  __device__ void start_output(uint32_t tiles, const float4* scales, const uint32_t (&plain)[4][4],
                               float (&o)[8][4]) const {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const float a = scales[8 * m + 2 * (lane % 4)].z, b = scales[8 * m + 2 * (lane % 4) + 1].z;
#pragma unroll
      for (int i = 0; i < 2; ++i) o[m][2 * i] *= a, o[m][2 * i + 1] *= b;
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_rs<kAccumulate, 0>(o, plain[k], wgmma_operand(tiles + L::kImage + Image::kP + k * 32, 1024, 16));
    }
    wgmma_commit();
  }

  __device__ int outputs() const { return L::kOutput + half * kTile; }
  // A chunk's outputs, turned from [dimension, token] to rows, wait in shared memory ..
  __device__ void keep_output(const float (&o)[8][4]) const {
    if (thread == 0) wait_bytes_out();
    named_barrier(2 + half, kGroupThreads);  // the rows before are read
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      const int token = 8 * n + lane % 8 + lane / 16 * 8;
      stmatrix_x4_trans(at.shared + outputs() + swizzled<8>(token, 2 * warp + lane / 8 % 2),
                        pack2<__nv_bfloat16>(o[n][0], o[n][1]), pack2<__nv_bfloat16>(o[n][2], o[n][3]),
                        pack2<__nv_bfloat16>(o[n + 1][0], o[n + 1][1]), pack2<__nv_bfloat16>(o[n + 1][2], o[n + 1][3]));
    }
    fence_for_wgmma();
  }
  // .. and are written while the tensor cores have work again: a whole chunk by the copy engine.
  __device__ void write_output(int first, int count) const {
    named_barrier(2 + half, kGroupThreads);
    const int token0 = at.span.q_off + first, column = at.first_row + 64 * half;
    if (count == kChunk) {
      if (thread == 0) copy_box_out(out, column, at.head, token0, 0, at.shared + outputs());
      return;
    }
    auto* const to = static_cast<__nv_bfloat16*>(p.out.data) + column + thread % 8 * 8;
    for (int token = thread / 8; token < count; token += kGroupThreads / 8) {
      *reinterpret_cast<uint4*>(to + p.out.at(token0 + token, at.head)) =
          *reinterpret_cast<const uint4*>(at.base + outputs() + swizzled<8>(token, thread % 8));
    }
  }

  struct Chunk {
    uint32_t tiles;
    const float4* scales;
    float last;  // exp(G_C)
  };
  __device__ Chunk chunk(int s) const {
    const char* const image = at.base + s * L::kStage + L::kImage;
    return {stage(s), reinterpret_cast<const float4*>(image + Image::kScales),
            *reinterpret_cast<const float*>(image + Image::kLast)};
  }
  // From x = S k^T to the chunk's outputs o and its last state s, both still being summed, s the earlier.
  __device__ void carry(const Chunk& c, const float (&x)[8][4], const uint32_t (&packed)[8][4], float (&s)[16][4],
                        float (&o)[8][4]) const {
    uint32_t r[4][4], plain[4][4], scaled[4][4];
    float n[8][4];
    right_hand_side(c.tiles, c.scales, x, r);
    start_solve(c.tiles, r, n);
    start_state_product(c.tiles + L::kQ, packed, o);
    wgmma_wait<1>();
    hold(n);
    start_update(c.tiles, c.scales, c.last, n, s, plain, scaled);
    wgmma_wait<1>();
    hold(o);
    start_output(c.tiles, c.scales, plain, o);
  }

  __device__ void save_snapshots(int& snapshot, int done, const float (&s)[16][4]) const {
    for (; snapshot < p.snapshots && p.batch.snapshots[snapshot].request == at.request &&
           p.batch.snapshots[snapshot].num_tokens == done;
         ++snapshot) {
      save(p.state_of(p.batch.snapshots[snapshot].slot, at.head), s);
    }
  }

  // Tokens of the chunk in a stage, once it is there. Rows that are not the chunk's become zeros: they may be NaN.
  __device__ int wait_for(uint32_t full, int s, int parity) const {
    barrier_wait(full + 8 * s, parity);
    const int count = reinterpret_cast<const int*>(at.base + L::kCounts)[s];
    if (count > 0 && count < kChunk) {
      clear_rows(at.base + s * L::kStage, L::kTiles, count, half * kGroupThreads + thread, kHalves * kGroupThreads);
      fence_for_wgmma();
      named_barrier(1, kHalves * kGroupThreads);
    }
    return count;
  }

  // All chunks of the pass. A chunk's outputs are summed and written while the state meets the next keys.
  __device__ void run(uint32_t full, uint32_t empty) const {
    const StateSlots slots = p.batch.state_slots[at.request];
    float* const between = pass.states + (int64_t{at.request} * p.v_heads + at.head) * kDim * kDim;
    Walk walk = at.walk;
    int now = 0, parity = 0, first = walk.done;
    walk.next(p);
    int snapshot = walk.snapshot;
    float s[16][4], x[8][4], o[8][4];
    uint32_t packed[8][4];
    load(first > 0 ? between : p.state_of(slots.read, at.head), s);
    int count = wait_for(full, 0, 0);
    pack_state(s, packed);
    start_state_product(stage(0) + L::kK, packed, x);
    wgmma_wait<0>();
    hold(x);
    while (count > 0) {
      carry(chunk(now), x, packed, s, o);
      const int before = now;
      if (++now == kStages) now = 0, parity ^= 1;
      const int next_count = wait_for(full, now, parity);
      wgmma_wait<1>();
      hold(s);
      pack_state(s, packed);
      start_state_product(stage(now) + L::kK, packed, x);  // after the last chunk of no use, and of no harm
      wgmma_wait<1>();
      hold(o);
      barrier_arrive(empty + 8 * before);
      keep_output(o);
      write_output(first, count);
      wgmma_wait<0>();
      hold(x);
      first += count, count = next_count;
      if (p.snapshots > 0) save_snapshots(snapshot, first, s);
    }
    if (first < at.span.q_len) {
      save(between, s);
    } else if (slots.write != kNoState) {
      save(p.state_of(slots.write, at.head), s);
    }
    if (thread == 0) wait_bytes_out();
  }
};

// By one thread: reads ahead.
template <int kHalves>
__device__ void read_chunks(const GDNParams& p, const Pass& pass, const Place& at, const CUtensorMap& qkv,
                            uint32_t full, uint32_t empty) {
  using L = Layout<kHalves>;
  Walk walk = at.walk;
  int stage = 0, parity = 1;
  for (int i = 0;; ++i) {
    const int row = at.span.q_off + walk.done, count = i < pass.count ? walk.next(p) : 0;
    barrier_wait(empty + 8 * stage, parity);  // at first there is nothing to wait for
    const uint32_t to = at.shared + stage * L::kStage, barrier = full + 8 * stage;
    reinterpret_cast<int*>(at.base + L::kCounts)[stage] = count;
    if (count == 0) return barrier_arrive(barrier);
    barrier_expect(barrier, L::kTiles * kTile + Image::kBytes);
    const int q = at.key_head * kDim, k = (p.k_heads + at.key_head) * kDim;
    const int v = (2 * p.k_heads + at.head) * kDim + at.first_row;
    copy_box(to + L::kK, qkv, k, row, 0, 0, barrier);
    copy_box(to + L::kK + kTile, qkv, k + 64, row, 0, 0, barrier);
    copy_box(to + L::kV, qkv, v, row, 0, 0, barrier);
    if (kHalves == 2) copy_box(to + L::kV + kTile, qkv, v + 64, row, 0, 0, barrier);
    copy_bytes_in(to + L::kImage, image_of(p, pass, at.place + i, at.head), Image::kBytes, barrier);
    copy_box(to + L::kQ, qkv, q, row, 0, 0, barrier);
    copy_box(to + L::kQ + kTile, qkv, q + 64, row, 0, 0, barrier);
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
}

// Places of the requests before `request`; by whole warps.
__device__ int places_before(const GDNParams& p, const Pass& pass, int request) {
  int sum = 0;
  for (int r = threadIdx.x % 32; r < request; r += 32) sum += places(p, pass, r);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}
#endif  // HR_BUILD_SM90A

// A reader beside two carriers is a whole warpgroup, so that they can have its registers.
template <int kHalves>
constexpr int kThreads = kHalves == 2 ? 3 * kGroupThreads : kGroupThreads + 32;

template <int kHalves>
__global__ void __launch_bounds__(kThreads<kHalves>, 1)
    carry_states(const GDNParams p, const Pass pass, const __grid_constant__ Maps maps) {
#ifdef HR_BUILD_SM90A
  extern __shared__ char memory[];
  using L = Layout<kHalves>;
  wait_for_previous();
  let_next_start();
  const int request = blockIdx.y;
  const KeySpan span = p.batch.spans[request];
  if (!p.has(span)) return;
  Walk walk(p, request, span.q_len);
  walk.skip(p, pass.first);
  if (walk.done == span.q_len) return;
  const uint32_t shared = (shared_address(memory) + 1023) / 1024 * 1024;
  const int head = kHalves == 2 ? blockIdx.x : blockIdx.x / 2;
  const Place at{request,
                 head,
                 head / (p.v_heads / p.k_heads),
                 kHalves == 2 ? 0 : static_cast<int>(blockIdx.x) % 2 * 64,
                 places_before(p, pass, request),
                 shared,
                 memory + (shared - shared_address(memory)),
                 span,
                 walk};
  const uint32_t full = shared + L::kBarriers, empty = full + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, kGroupThreads * kHalves);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  if (group == kHalves) {
    if constexpr (kHalves == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread == 0) read_chunks<kHalves>(p, pass, at, maps.qkv, full, empty);
  } else {
    // Together at most the registers of the launch, 3 x 168: more would wait for ever.
    if constexpr (kHalves == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Carrier<kHalves>{p, pass, at, maps.out, group, thread, thread / 32, thread % 32}.run(full, empty);
  }
#endif
}

template <int kHalves>
void launch(const GDNParams& p, const Pass& pass, const Maps& maps, const Stream& stream) {
  constexpr int kBytes = Layout<kHalves>::kBytes;
  static_assert(kBytes <= 227 * 1024);
  check_cuda(cudaFuncSetAttribute(carry_states<kHalves>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "setting the shared memory of gated_delta_rule");
  EarlyLaunch early(dim3(static_cast<unsigned>(p.v_heads * (2 / kHalves)), static_cast<unsigned>(p.requests)),
                    kThreads<kHalves>, kBytes, stream);
  check_cuda(cudaLaunchKernelEx(&early.config, carry_states<kHalves>, p, pass, maps),
             "launching gated_delta_rule, states");
}

}  // namespace

void gdn::gdn_carry_sm90(const GDNParams& p, const Pass& pass, const Maps& maps, const Stream& stream) {
  if (halves_apart(p, stream)) {
    launch<1>(p, pass, maps, stream);
  } else {
    launch<2>(p, pass, maps, stream);
  }
}

}  // namespace headrace::cuda
