// State pass over one chunk (chunk_state.cu). A consumer warpgroup handles 64 value dimensions and works on transposes.
// Its state [64, 128] stays in registers as the accumulator of the update and, rounded to bfloat16, as the A operand of
// the GEMMs with q and k or W. N and the right-hand side are also passed from GEMM to GEMM in registers. q, k, W, T and
// P are B operands in shared memory. Value dimensions are independent of each other.
#pragma once
#include "headrace/ops/cuda/arch/wgmma.cuh"
#include "headrace/ops/cuda/gdn/sm90/chunk.cuh"

namespace headrace::cuda::gdn {

constexpr int kStages = 3;

// Shared memory of a CTA with kHalves consumer warpgroups. A stage holds k and q in halves of 64 columns, v, and T and
// P as four strips of 16 columns and 64 rows. The zeros above the diagonals are written once. With kHalves = 1 a stage
// also holds W, in halves like k.
template <int kHalves>
struct Layout {
  static constexpr int kTiles = 4 + kHalves;  // tiles of the op's own tensors
  static constexpr int kK = 0, kQ = 2 * kTile, kV = 4 * kTile, kT = kTiles * kTile, kP = kT + kTile, kW = kP + kTile;
  static constexpr int kStage = kHalves == 1 ? kW + 2 * kTile : kW;
  static constexpr int kOutput = kStages * kStage;                          // [halves] output tiles of 64 tokens
  static constexpr int kScales = kOutput + kHalves * kTile;                 // [stages] tail of the WY factors
  static constexpr int kUnread = kHalves == 1 ? sizeof(Scales::state) : 0;  // bytes of the scales that are not copied
  static constexpr int kScalesEach = WYFactors::kBytes - WYFactors::kScales - kUnread;
  static constexpr int kCounts = kScales + kStages * kScalesEach;  // [stages] tokens of the chunk; 0: no more chunks
  static constexpr int kBarriers = kCounts + 16;                   // full, then empty
  static constexpr int kBytes = kBarriers + 2 * kStages * 8;
  // Bytes copied per stage.
  static constexpr int kStageBytes = (kTiles + (kHalves == 1 ? 2 : 0)) * kTile + WYFactors::kBytes - kUnread;
};

struct Place {
  int request, head, key_head, first_row;  // first_row: first value dimension of the CTA
  int place;                               // place of the request's first chunk in the pass
  uint32_t shared;                         // shared-memory address of the layout
  char* base;
  KeySpan span;
  Walk walk;  // positioned at the first chunk of the pass
};

// Chunk operations of a warpgroup with the state of 64 value dimensions.
template <int kHalves>
struct ChunkState {
  using L = Layout<kHalves>;
  const GDNParams& p;
  const Pass& pass;
  const Place& at;
  const CUtensorMap& out;
  int half, thread, warp, lane;

  __device__ uint32_t stage(int s) const { return at.shared + s * L::kStage; }
  // Returns the base of a stage's WGMMA operand descriptors (wgmma.cuh).
  __device__ uint32_t operands(int s) const { return (at.shared >> 4) + s * (L::kStage >> 4); }
  // Returns the state row of s[n][0..1]; s[n][2..3] belong to the row 8 below.
  __device__ int row() const { return at.first_row + 64 * half + 16 * warp + lane / 4; }

  // Loads the per-token factors of an accumulator: the lane has two tokens of each group of eight. Called before a GEMM
  // is waited for, to hide the latency.
  __device__ void load_pairs(const float (&x)[kChunk], float2 (&pairs)[8]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) pairs[n] = reinterpret_cast<const float2*>(x)[4 * n + lane % 4];
  }

  // Loads a head's state [128, 128]; null loads zeros.
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
  // Starts x = S rows^T for k or q, or x += S rows^T for W.
  template <int kFirst = kZeroFirst>
  __device__ void start_state_product(uint32_t operands, int rows, const uint32_t (&packed)[8][4],
                                      float (&x)[8][4]) const {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint64_t right = wgmma_operand_after(operands, rows + k / 4 * kTile + k % 4 * 32, 1024, 16);
      if (k == 0) {
        wgmma_rs<kFirst, 0>(x, packed[k], right);
      } else {
        wgmma_rs<kAccumulate, 0>(x, packed[k], right);
      }
    }
    wgmma_commit();
  }

  // Loads v^T as A operands, K = tokens.
  __device__ void load_values(uint32_t tiles, uint32_t (&v)[4][4]) const {
    const uint32_t values = tiles + L::kV + half * kTile;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      load_tiles_transposed(v[k], values + swizzled<8>(16 * k + lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
    }
  }
  // Computes y = beta v.
  __device__ void scale_values(const float2 (&scales)[8], const uint32_t (&v)[4][4], float (&y)[8][4]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t pair = v[n / 2][n % 2 * 2 + i];
        y[n][2 * i] = low_bf16(pair) * scales[n].x, y[n][2 * i + 1] = high_bf16(pair) * scales[n].y;
      }
    }
  }
  // Packs y as A operands, K = tokens.
  __device__ void pack_tokens(const float (&y)[8][4], uint32_t (&r)[4][4]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) r[n / 2][n % 2 * 2 + i] = pack2<__nv_bfloat16>(y[n][2 * i], y[n][2 * i + 1]);
    }
  }
  // Completes the right-hand side r = beta v - beta exp(G) rk x; y holds beta v.
  __device__ void right_hand_side(const float2 (&scales)[8], const float (&x)[8][4], float (&y)[8][4],
                                  uint32_t (&r)[4][4]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) y[n][i] = fmaf(i % 2 == 0 ? scales[n].x : scales[n].y, x[n][i], y[n][i]);
    }
    pack_tokens(y, r);
  }
  // Starts n = r T^T.
  __device__ void start_solve(uint32_t operands, const uint32_t (&r)[4][4], float (&n)[8][4]) const {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t right = wgmma_operand_of_16_after(operands, L::kT + k * 2048);
      if (k == 0) {
        wgmma_rs<kZeroFirst, 0>(n, r[k], right);
      } else {
        wgmma_rs<kAccumulate, 0>(n, r[k], right);
      }
    }
    wgmma_commit();
  }

  // Packs n as A operands, unscaled and scaled for the state update.
  __device__ void pack_n(const float2 (&scales)[8], const float (&n)[8][4], uint32_t (&plain)[4][4],
                         uint32_t (&scaled)[4][4]) const {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const float2 a = scales[m];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scaled[m / 2][m % 2 * 2 + i] = pack2<__nv_bfloat16>(n[m][2 * i] * a.x, n[m][2 * i + 1] * a.y);
        plain[m / 2][m % 2 * 2 + i] = pack2<__nv_bfloat16>(n[m][2 * i], n[m][2 * i + 1]);
      }
    }
  }
  __device__ void decay_state(float last, float (&s)[16][4]) const {
#pragma unroll
    for (int m = 0; m < 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][i] *= last;
    }
  }
  // Starts S += (scaled n) k.
  __device__ void start_update(uint32_t operands, const uint32_t (&scaled)[4][4], float (&s)[16][4]) const {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_rs<kAccumulate, 1>(s, scaled[k], wgmma_operand_after(operands, L::kK + k * 2048, 1024, kTile));
    }
    wgmma_commit();
  }
  // Starts o = exp(G) rq o + n P^T.
  __device__ void start_output(uint32_t operands, const float2 (&scales)[8], const uint32_t (&plain)[4][4],
                               float (&o)[8][4]) const {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const float2 a = scales[m];
#pragma unroll
      for (int i = 0; i < 2; ++i) o[m][2 * i] *= a.x, o[m][2 * i + 1] *= a.y;
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_rs<kAccumulate, 0>(o, plain[k], wgmma_operand_of_16_after(operands, L::kP + k * 2048));
    }
    wgmma_commit();
  }

  __device__ int outputs() const { return L::kOutput + half * kTile; }
  // Transposes a chunk's outputs from [dimension, token] to rows in shared memory.
  __device__ void keep_output(const float (&o)[8][4]) const {
    if (thread == 0) wait_bytes_out();
    named_barrier(2 + half, kGroupThreads);  // the previous chunk's rows have been read
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      const int token = 8 * n + lane % 8 + lane / 16 * 8;
      stmatrix_x4_trans(at.shared + outputs() + swizzled<8>(token, 2 * warp + lane / 8 % 2),
                        pack2<__nv_bfloat16>(o[n][0], o[n][1]), pack2<__nv_bfloat16>(o[n][2], o[n][3]),
                        pack2<__nv_bfloat16>(o[n + 1][0], o[n + 1][1]), pack2<__nv_bfloat16>(o[n + 1][2], o[n + 1][3]));
    }
    fence_for_wgmma();
  }
  // Writes the outputs to global memory while the tensor cores work on the next chunk. Full chunks use a TMA store.
  __device__ void write_output(int first, int count) const {
    named_barrier(2 + half, kGroupThreads);
    const int token0 = at.span.q_off + first, column = at.first_row + 64 * half;
    if (count == kChunk) {
      if (thread == 0) tma_store(out, column, at.head, token0, 0, at.shared + outputs());
      return;
    }
    auto* const to = static_cast<__nv_bfloat16*>(p.out.data) + column + thread % 8 * 8;
    for (int token = thread / 8; token < count; token += kGroupThreads / 8) {
      *reinterpret_cast<uint4*>(to + p.out.at(token0 + token, at.head)) =
          *reinterpret_cast<const uint4*>(at.base + outputs() + swizzled<8>(token, thread % 8));
    }
  }

  struct Chunk {
    uint32_t operands;
    const Scales& scales;
    float last;  // exp(G_C)
  };
  __device__ Chunk chunk(int s) const {
    const char* const scales = at.base + L::kScales + s * L::kScalesEach - L::kUnread;
    return {operands(s), *reinterpret_cast<const Scales*>(scales),
            *reinterpret_cast<const float*>(scales + sizeof(Scales))};
  }
  __device__ float* between() const { return pass.states + (int64_t{at.request} * p.v_heads + at.head) * kDim * kDim; }
  // Loads the state at the start of the pass.
  __device__ void load_first(float (&s)[16][4]) const {
    load(at.walk.done > 0 ? between() : p.state_of(p.batch.state_slots[at.request].read, at.head), s);
  }
  // Saves the state after token `done`: to the request's slot at its end, else for the next pass.
  __device__ void save_last(int done, const float (&s)[16][4]) const {
    const int slot = p.batch.state_slots[at.request].write;
    if (done < at.span.q_len) {
      save(between(), s);
    } else if (slot != kNoState) {
      save(p.state_of(slot, at.head), s);
    }
  }
  __device__ void save_snapshots(int& snapshot, int done, const float (&s)[16][4]) const {
    for (; snapshot < p.snapshots && p.batch.snapshots[snapshot].request == at.request &&
           p.batch.snapshots[snapshot].num_tokens == done;
         ++snapshot) {
      save(p.state_of(p.batch.snapshots[snapshot].slot, at.head), s);
    }
  }

  // Waits for a stage and returns its tokens. Zeros the rows past the chunk, which may hold NaN.
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
};

}  // namespace headrace::cuda::gdn
