// Computes the WY factors of one chunk and key head: one warpgroup, one or two value heads at a time. k k^T and q k^T
// stay in registers for all value heads. Each warp weights its 16 rows of both and inverts its block on the diagonal.
// It then computes one column of blocks of T, independently of the other warps.
#pragma once
#include "headrace/ops/cuda/arch/wgmma.cuh"
#include "headrace/ops/cuda/gdn/gdn_gate.cuh"
#include "headrace/ops/cuda/gdn/sm90/chunk.cuh"

namespace headrace::cuda::gdn {

// Gates per token of a chunk.
struct Gates {
  float g[kChunk];  // G log2(e)
  float beta[kChunk];
};
struct Factors {
  float rk[kChunk], rq[kChunk];
};

// Shared memory: k and q in halves of 64 columns, WY factors of two heads, gates, normalisation factors, an mbarrier.
// Once k k^T and q k^T are computed, the tiles of q are reused for the blocks of -A.
struct MakerLayout {
  static constexpr int kK = 0, kQ = 2 * kTile, kWYFactors = 4 * kTile, kGates = kWYFactors + 2 * WYFactors::kBytes;
  static constexpr int kFactors = kGates + 2 * static_cast<int>(sizeof(Gates));
  static constexpr int kBarrier = kFactors + static_cast<int>(sizeof(Factors)), kBytes = kBarrier + 16;
  // Per head: the blocks on the diagonal as float [column][row], 20 floats per column; then the six blocks of -A left
  // of them as bfloat16.
  static constexpr int kColumn = 20, kDiagonalBlock = 16 * kColumn * 4, kLeft = 2 * 4 * kDiagonalBlock;
  static constexpr int kLeftBlock = 512, kLeftBytes = 6 * kLeftBlock;
  static_assert(kLeft + 2 * kLeftBytes <= 2 * kTile);
};

constexpr float kLog2e = 1.4426950408889634f;

// Returns 2^x, x <= 0.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

struct WyFactors {
  using L = MakerLayout;
  const GDNParams& p;
  char* base;
  uint32_t shared;  // address of base
  int thread, warp, lane;

  __device__ Factors& factors() const { return *reinterpret_cast<Factors*>(base + L::kFactors); }
  __device__ Gates& gates(int i) const { return reinterpret_cast<Gates*>(base + L::kGates)[i]; }
  __device__ char* wy_factors(int i) const { return base + L::kWYFactors + i * WYFactors::kBytes; }
  static __device__ int diagonal(int head, int block) { return L::kQ + (4 * head + block) * L::kDiagonalBlock; }
  static __device__ int left(int head, int row, int column) {
    return L::kQ + L::kLeft + head * L::kLeftBytes + (row * (row - 1) / 2 + column) * L::kLeftBlock;
  }
  // Returns the lane's row address within a 16 x 16 block for load_tiles and transposed stmatrix.
  __device__ int tile_row() const { return in_rows_of_16(lane % 8 + lane / 16 * 8, lane / 8 % 2); }

  // Gate inputs of tokens [token, token + count), two per lane of a warp. Loaded early to hide the latency.
  struct GateInputs {
    __nv_bfloat16 a[2], b[2];
    float a_log, dt_bias;
  };
  __device__ GateInputs load_gates(int64_t token, int count, int head) const {
    GateInputs in;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t at = token + min(2 * lane + i, count - 1);
      in.a[i] = static_cast<const __nv_bfloat16*>(p.a.data)[p.a.at(at) + head];
      in.b[i] = static_cast<const __nv_bfloat16*>(p.b.data)[p.b.at(at) + head];
    }
    in.a_log = p.a_log[head], in.dt_bias = p.dt_bias[head];
    return in;
  }
  // Called by one warp. Tokens from `count` on get decay 1 and beta 0.
  __device__ void write_gates(Gates& to, const GateInputs& in, int count) const {
    float g[2], beta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool inside = 2 * lane + i < count;
      g[i] = inside ? gdn_log_decay(__bfloat162float(in.a[i]), in.a_log, in.dt_bias) * kLog2e : 0.0f;
      beta[i] = inside ? gdn_beta(__bfloat162float(in.b[i])) : 0.0f;
    }
    float sum = g[0] + g[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += before;
    }
    const float before = __shfl_up_sync(0xffffffffu, sum, 1);
    reinterpret_cast<float2*>(to.g)[lane] = {(lane == 0 ? 0.0f : before) + g[0], sum};
    reinterpret_cast<float2*>(to.beta)[lane] = {beta[0], beta[1]};
  }
  // Starts k k^T and q k^T asynchronously; does not wait.
  __device__ void start_products(float (&kk)[8][4], float (&qk)[8][4]) const {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t column = i / 4 * kTile + i % 4 * 32;
      const uint64_t k = wgmma_operand(shared + L::kK + column, 1024, 16);
      const uint64_t q = wgmma_operand(shared + L::kQ + column, 1024, 16);
      if (i == 0) {
        wgmma_ss<kZeroFirst>(kk, k, k);
        wgmma_ss<kZeroFirst>(qk, q, k);
      } else {
        wgmma_ss<kAccumulate>(kk, k, k);
        wgmma_ss<kAccumulate>(qk, q, k);
      }
    }
    wgmma_commit();
  }
  // Computes rq with two threads per row of q.
  __device__ void write_query_factors() const {
    const int row = thread / 2, half = thread % 2;
    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 x = *reinterpret_cast<const uint4*>(base + L::kQ + half * kTile + swizzled<8>(row, i ^ 4 * half));
      const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sum[j] = fmaf(low_bf16(pairs[j]), low_bf16(pairs[j]), sum[j]);
        sum[j] = fmaf(high_bf16(pairs[j]), high_bf16(pairs[j]), sum[j]);
      }
    }
    float all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    all += __shfl_xor_sync(0xffffffffu, all, 1);
    if (half == 0) factors().rq[row] = gdn_unit_factor(all) * 0.08838834764831845f;  // 128^-0.5
  }
  // Computes rk: the diagonal of k k^T holds the squared lengths of the keys.
  __device__ void write_key_factors(const float (&near)[2][4]) const {
    const int row = lane / 4;
    if (lane % 4 != row / 2) return;
    const bool odd = row % 2 != 0;  // a select, because indexing would move `near` to local memory
    factors().rk[16 * warp + row] = gdn_unit_factor(odd ? near[0][1] : near[0][0]);
    factors().rk[16 * warp + row + 8] = gdn_unit_factor(odd ? near[1][3] : near[1][2]);
  }
  // Copies the warp's block on the diagonal out of an accumulator.
  __device__ void copy_diagonal(const float (&x)[8][4], float (&near)[2][4]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n < 2 || n / 2 == warp) near[n % 2][i] = x[n][i];
      }
    }
  }

  // Writes the factors of token `token` of a head that the state pass uses.
  __device__ void write_scales(int head, int token) const {
    const Gates& t = gates(head);
    const float g = t.g[token], last = t.g[kChunk - 1], decay = power_of_two(g), rk = factors().rk[token];
    Scales& to = *reinterpret_cast<Scales*>(wy_factors(head) + WYFactors::kScales);
    to.value[token] = t.beta[token];
    to.state[token] = -t.beta[token] * decay * rk;
    to.query[token] = decay * factors().rq[token];
    to.update[token] = power_of_two(last - g) * rk;
    if (token == 0) *reinterpret_cast<float*>(wy_factors(head) + WYFactors::kLast) = power_of_two(last);
  }

  // Weights of a lane's rows of -A and P: element (t, j) is scaled by row[t] rk[j] 2^(G_t - G_j). For j left of the
  // warp's diagonal block, the power is split at the block's first token.
  struct Rows {
    float first, g[2], a[2], p[2];
  };
  __device__ Rows rows_of(int head) const {
    const Gates& t = gates(head);
    Rows r;
    r.first = t.g[16 * warp];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * warp + lane / 4 + 8 * i;
      r.g[i] = t.g[row], r.a[i] = -t.beta[row] * factors().rk[row], r.p[i] = factors().rq[row];
    }
    return r;
  }
  __device__ void write_query_block(char* triangle, int eighth, const float (&y)[4]) const {
    const int row = 16 * warp + lane / 4, column = 4 * (lane % 4);
    *reinterpret_cast<uint32_t*>(triangle + in_triangle(row, eighth) + column) = pack2<__nv_bfloat16>(y[0], y[1]);
    *reinterpret_cast<uint32_t*>(triangle + in_triangle(row + 8, eighth) + column) = pack2<__nv_bfloat16>(y[2], y[3]);
  }
  // Writes the block on the diagonal: -A as float to shared memory, P to the WY factors.
  __device__ void weigh_near(int head, const Rows& r, const float (&kk)[2][4], const float (&qk)[2][4]) const {
    auto* const to = reinterpret_cast<float*>(base + diagonal(head, warp));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int column = 2 * (lane % 4) + 8 * n;
      const float2 gs = *reinterpret_cast<const float2*>(gates(head).g + 16 * warp + column);
      const float2 ks = *reinterpret_cast<const float2*>(factors().rk + 16 * warp + column);
      const float gj[2] = {gs.x, gs.y}, kj[2] = {ks.x, ks.y};
      float y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = lane / 4 + i / 2 * 8, j = column + i % 2;
        const float weight = power_of_two(fminf(r.g[i / 2] - gj[i % 2], 0.0f)) * kj[i % 2];
        y[i] = t >= j ? qk[n][i] * (weight * r.p[i / 2]) : 0.0f;
        to[j * L::kColumn + t] = t > j ? kk[n][i] * (weight * r.a[i / 2]) : 0.0f;
      }
      write_query_block(wy_factors(head) + WYFactors::kP, 2 * warp + n, y);
    }
  }
  // Writes the blocks left of the diagonal, with weights split at the warp's first token.
  __device__ void weigh_far(int head, const Rows& r, const float (&kk)[8][4], const float (&qk)[8][4]) const {
    float a[2], b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float decay = power_of_two(r.g[i] - r.first);
      a[i] = r.a[i] * decay, b[i] = r.p[i] * decay;
    }
#pragma unroll
    for (int n = 0; n < 6; ++n) {
      if (n / 2 >= warp) break;
      const float2 gs = *reinterpret_cast<const float2*>(gates(head).g + 8 * n + 2 * (lane % 4));
      const float2 ks = *reinterpret_cast<const float2*>(factors().rk + 8 * n + 2 * (lane % 4));
      const float c[2] = {power_of_two(r.first - gs.x) * ks.x, power_of_two(r.first - gs.y) * ks.y};
      float x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = kk[n][i] * c[i % 2] * a[i / 2];
        y[i] = qk[n][i] * c[i % 2] * b[i / 2];
      }
      char* const to = base + left(head, warp, n / 2) + 4 * (lane % 4);
      *reinterpret_cast<uint32_t*>(to + in_rows_of_16(lane / 4, n % 2)) = pack2<__nv_bfloat16>(x[0], x[1]);
      *reinterpret_cast<uint32_t*>(to + in_rows_of_16(lane / 4 + 8, n % 2)) = pack2<__nv_bfloat16>(x[2], x[3]);
      write_query_block(wy_factors(head) + WYFactors::kP, n, y);
    }
  }

  // Inverts the warp's blocks of T on the diagonal by forward substitution in float32. A lane has one column of a head.
  template <int kHeads>
  __device__ void invert_diagonal() const {
    const int head = kHeads == 2 ? lane / 16 : 0, column = lane % 16;
    const auto* const minus_a = reinterpret_cast<const float*>(base + diagonal(head, warp));  // [column][row]
    float x[16];
#pragma unroll
    for (int t = 0; t < 16; ++t) x[t] = t == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < 15; ++j) {
#pragma unroll
      for (int t4 = (j + 1) / 4 * 4; t4 < 16; t4 += 4) {
        const float4 a = *reinterpret_cast<const float4*>(minus_a + j * L::kColumn + t4);
        const float values[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (t4 + i > j) x[t4 + i] = fmaf(values[i], x[j], x[t4 + i]);
        }
      }
    }
    if (kHeads == 1 && lane >= 16) return;
    char* const to = wy_factors(head) + WYFactors::kT + column % 8 * 2;
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      *reinterpret_cast<__nv_bfloat16*>(to + in_triangle(16 * warp + t, 2 * warp + column / 8)) =
          __float2bfloat16_rn(x[t]);
    }
  }
  // Returns the shared-memory address of a block of T in the WY factors.
  __device__ uint32_t block_of_t(int head, int row, int column) const {
    return shared + L::kWYFactors + head * WYFactors::kBytes + WYFactors::kT + Triangle::strip(column) +
           512 * (row - column);
  }

  // Replaces the warp's blocks -A_w by Z = -T_ww A_w, from which its rows of T left of the diagonal follow. This needs
  // no rows above, and its inputs do not cancel yet.
  __device__ void multiply_left(int head) const {
    const int named = in_rows_of_16(lane % 16, lane / 16);
    uint32_t t[4];
    load_tiles(t, block_of_t(head, warp, warp) + named);
#pragma unroll
    for (int block = 0; block < 3; ++block) {
      if (block >= warp) break;
      uint32_t b[4];
      float z[2][4] = {};
      load_tiles_transposed(b, shared + left(head, warp, block) + named);
      mma_m16n8k16<__nv_bfloat16>(z[0], t, b[0], b[1]);
      mma_m16n8k16<__nv_bfloat16>(z[1], t, b[2], b[3]);
      __syncwarp();
      char* const to = base + left(head, warp, block) + 4 * (lane % 4);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        *reinterpret_cast<uint32_t*>(to + in_rows_of_16(lane / 4, n)) = pack2<__nv_bfloat16>(z[n][0], z[n][1]);
        *reinterpret_cast<uint32_t*>(to + in_rows_of_16(lane / 4 + 8, n)) = pack2<__nv_bfloat16>(z[n][2], z[n][3]);
      }
    }
  }

  // Computes the blocks of T below the diagonal in one column of blocks, transposed in registers: T_i = sum_j Z_ij T_j
  // over the rows from the diagonal to i.
  __device__ void substitute_column(int head, int column) const {
    uint32_t y[4][4];
    load_tiles_transposed(y[0], block_of_t(head, column, column) + tile_row());
#pragma unroll
    for (int e = 1; e < 4; ++e) {
      const int row = column + e;
      if (row > 3) break;
      float t[2][4] = {};
#pragma unroll
      for (int d = 0; d < e; ++d) {
        uint32_t z[4];
        load_tiles(z, shared + left(head, row, column + d) + tile_row());
        mma_m16n8k16<__nv_bfloat16>(t[0], y[d], z[0], z[1]);
        mma_m16n8k16<__nv_bfloat16>(t[1], y[d], z[2], z[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) y[e][i] = pack2<__nv_bfloat16>(t[i / 2][i % 2 * 2], t[i / 2][i % 2 * 2 + 1]);
      stmatrix_x4_trans(block_of_t(head, row, column) + tile_row(), y[e][0], y[e][1], y[e][2], y[e][3]);
    }
  }

  // Scales the rows of k for W: for the first head into the tiles of q, for the second in place.
  template <int kHeads>
  __device__ void scale_keys() const {
#pragma unroll
    for (int i = thread; i < 2 * kTile / 16; i += kGroupThreads) {
      uint4& from = reinterpret_cast<uint4*>(base + L::kK)[i];
      const uint4 x = from;
      const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        const float c = reinterpret_cast<const Scales*>(wy_factors(head) + WYFactors::kScales)->state[i / 8 % kChunk];
        uint32_t y[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) y[j] = pack2<__nv_bfloat16>(low_bf16(pairs[j]) * c, high_bf16(pairs[j]) * c);
        (head == 0 ? reinterpret_cast<uint4*>(base + L::kQ)[i] : from) = uint4{y[0], y[1], y[2], y[3]};
      }
    }
  }
  // Computes W of a head from its scaled keys.
  __device__ void multiply_keys(int head, int keys, float (&w)[16][4]) const {
    uint32_t t[4][4];  // the warp's rows of T, zero right of the diagonal
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) t[s][i] = 0;
      if (s <= warp) load_tiles(t[s], block_of_t(head, warp, s) + in_rows_of_16(lane % 16, lane / 16));
    }
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint64_t k = wgmma_operand(shared + keys + s * 2048, 1024, kTile);
      if (s == 0) {
        wgmma_rs<kZeroFirst, 1>(w, t[s], k);
      } else {
        wgmma_rs<kAccumulate, 1>(w, t[s], k);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(w);
  }
  // Writes W to the two tiles at `to`.
  __device__ void write_keys(int to, const float (&w)[16][4]) const {
    const int row = 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      char* const tile = base + to + n / 8 * kTile + 4 * (lane % 4);
      *reinterpret_cast<uint32_t*>(tile + swizzled<8>(row, n % 8)) = pack2<__nv_bfloat16>(w[n][0], w[n][1]);
      *reinterpret_cast<uint32_t*>(tile + swizzled<8>(row + 8, n % 8)) = pack2<__nv_bfloat16>(w[n][2], w[n][3]);
    }
  }
};

}  // namespace headrace::cuda::gdn
