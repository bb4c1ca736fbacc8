// The chunked gated delta rule on Hopper's tensor cores: bfloat16 inputs, heads of 128 x 128, chunks of 64 tokens.
//
// With G the running sum of log decays of a chunk and E(t, j) = exp(G_t - G_j), all exponents <= 0, and rq, rk the
// factors that give q and k length one:
//   A = beta_t E(t, j) rk_t rk_j k_t.k_j for j < t;  T = (I + A)^-1;  P = E(t, j) rq_t rk_j q_t.k_j for j <= t
//   N = T (beta_t v_t - beta_t exp(G_t) rk_t S k_t);  o_t = exp(G_t) rq_t S q_t + sum_j P(t, j) N_j
//   S = exp(G_C) S + sum_j exp(G_C - G_j) rk_j N_j k_j^T
// A block takes one value head of one request, or half of its value dimensions. Its first warpgroup, the preparer,
// reads ahead (cp.async), and computes what needs no state: gates, factors, T and P of the next chunk. The others, a
// warpgroup for 64 value dimensions, carry the state through the chunks. They work on transposes, so that a warpgroup's
// state [64, 128] stays in registers as the accumulator of its update and, rounded to bfloat16, as the left operand of
// the products with k and q; N and the right-hand side pass from one product to the next in the same way, and raw q, k,
// T and P are right operands from shared memory. No value dimension ever meets another.
// Source: Yang et al. 2024, Gated Delta Networks; ratios of decays as in kernels/cpu/gdn_chunk.h.
#include "headrace/kernels/cuda/gated_delta_rule.cuh"
#include "headrace/kernels/cuda/gdn_gate.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HR_BUILD_SM90A 1
#include "headrace/kernels/cuda/wgmma.cuh"
#endif

namespace headrace::cuda {
namespace {

constexpr int kDim = 128, kChunk = 64, kStages = 3, kGroupThreads = 128;
constexpr int kTile = kChunk * 128;  // bytes of 64 rows of 64 bfloat16

// Shared memory of a block with kHalves warpgroups that carry state.
template <int kHalves>
struct Layout {
  // Of one stage: k and q in halves of 64 columns, v, T and P.
  static constexpr int kK = 0, kQ = 2 * kTile, kV = 4 * kTile, kT = kV + kHalves * kTile, kP = kT + kTile;
  static constexpr int kStage = kP + kTile;
  static constexpr int kScales = kStages * kStage;                   // [stages][64] float4
  static constexpr int kDiagonal = kScales + kStages * kChunk * 16;  // four 16 x 16 float blocks of -A, transposed
  static constexpr int kRows = kDiagonal + 4 * 1024;                 // [stages] Rows of a chunk
  static constexpr int kRowsBytes = 4 * kChunk * 4;
  static constexpr int kOutput = kRows + kStages * kRowsBytes;            // [halves][64][kOutputPitch]
  static constexpr int kOutputPitch = 144;                                // bytes: no two of 8 rows share a bank
  static constexpr int kEnd = kOutput + kHalves * kChunk * kOutputPitch;  // [stages] exp(G_C), then barriers
  static constexpr int kBytes = kEnd + 16 + 2 * kStages * 8 + 1024;       // the base is rounded up to 1024
};

// Where chunks begin and end: every 64 tokens from the request's first, and at each snapshot.
struct Walk {
  int done = 0, tokens, snapshot, request;

  __device__ Walk(const GDNParams& p, int r, int length) : tokens(length), snapshot(p.first_snapshot(r)), request(r) {}
  // Tokens of the chunk that starts at `done`; 0 after the last.
  __device__ int next(const GDNParams& p) {
    int length = min(kChunk, tokens - done);
    while (ends(p) && p.batch.snapshots[snapshot].num_tokens <= done) ++snapshot;
    if (ends(p)) length = min(length, p.batch.snapshots[snapshot].num_tokens - done);
    done += length;
    return length;
  }
  __device__ bool ends(const GDNParams& p) const {
    return snapshot < p.snapshots && p.batch.snapshots[snapshot].request == request;
  }
};

#ifdef HR_BUILD_SM90A
constexpr float kLog2e = 1.4426950408889634f;

struct Place {
  int request, head, key_head, first_row;  // first_row: value dimension of the block's first
  uint32_t shared;                         // address of the layout
  char* base;
  KeySpan span;
};

// 2^x, x <= 0.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Per token of a chunk, in shared memory.
struct TokenFactors {
  float g[kChunk];  // G log2(e)
  float beta[kChunk];
  float rk[kChunk], rq[kChunk];
};

// A warpgroup that computes T (kKeys), or reads ahead and computes gates, factors and P (kQueries), or both.
template <int kHalves, bool kKeys, bool kQueries>
struct Preparer {
  using L = Layout<kHalves>;
  static constexpr int kPrepareThreads = kKeys && kQueries ? kGroupThreads : 2 * kGroupThreads;
  const GDNParams& p;
  const Place& at;
  int thread, warp, lane;
  float a_log, dt_bias;

  __device__ float* floats(int offset) const { return reinterpret_cast<float*>(at.base + offset); }
  __device__ uint32_t stage(int s) const { return at.shared + s * L::kStage; }
  __device__ TokenFactors& tokens(int s) const {
    static_assert(sizeof(TokenFactors) == L::kRowsBytes);
    return *reinterpret_cast<TokenFactors*>(at.base + L::kRows + s * L::kRowsBytes);
  }

  // Rows [0, count) of a chunk's q, k and v; the others become zeros.
  __device__ void read_ahead(int s, int first, int count) const {
    const auto* const x = static_cast<const __nv_bfloat16*>(p.qkv.data);
    const int piece = thread % 16, row0 = thread / 16;
    const uint32_t to = stage(s) + piece / 8 * kTile + swizzled<8>(row0, piece % 8);
    const auto* const from = x + (at.span.q_off + first) * p.qkv.token_stride + piece * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = row0 + 8 * i;
      const bool inside = row < count;
      const auto* const source = from + (inside ? row : 0) * p.qkv.token_stride;
      copy16(to + L::kQ + i * 1024, source + at.key_head * kDim, inside);
      copy16(to + L::kK + i * 1024, source + (p.k_heads + at.key_head) * kDim, inside);
      if (kHalves == 2 || piece < 8) {
        copy16(to + L::kV + i * 1024, source + (2 * p.k_heads + at.head) * kDim + at.first_row, inside);
      }
    }
  }

  // Of tokens 2 lane and the next, as they are stored: nothing waits for them yet.
  struct RawGates {
    __nv_bfloat16 a[2], b[2];
  };
  __device__ RawGates read_gates(int first, int count) const {
    RawGates raw = {};
    if (warp != 0) return raw;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t token = at.span.q_off + first + 2 * lane + i;
      if (2 * lane + i >= count) continue;
      raw.a[i] = static_cast<const __nv_bfloat16*>(p.a.data)[p.a.at(token) + at.head];
      raw.b[i] = static_cast<const __nv_bfloat16*>(p.b.data)[p.b.at(token) + at.head];
    }
    return raw;
  }
  // By warp 0.
  __device__ void write_gates(int s, const RawGates& raw, int count) const {
    if (warp != 0) return;
    float g[2], beta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool inside = 2 * lane + i < count;
      g[i] = inside ? gdn_log_decay(__bfloat162float(raw.a[i]), a_log, dt_bias) * kLog2e : 0.0f;
      beta[i] = inside ? gdn_beta(__bfloat162float(raw.b[i])) : 0.0f;
    }
    float sum = g[0] + g[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += before;
    }
    const float before = __shfl_up_sync(0xffffffffu, sum, 1);
    reinterpret_cast<float2*>(tokens(s).g)[lane] = {(lane == 0 ? 0.0f : before) + g[0], sum};
    reinterpret_cast<float2*>(tokens(s).beta)[lane] = {beta[0], beta[1]};
  }
  // Threads 0..63: rk of row `thread`; 64..127: rq.
  __device__ void write_row_factors(int s) const {
    const int row = thread % kChunk, which = thread / kChunk;
    const char* const tile = at.base + s * L::kStage + (which == 0 ? L::kK : L::kQ);
    float sum[4] = {};
#pragma unroll 4
    for (int piece = 0; piece < 16; ++piece) {
      const uint4 x = *reinterpret_cast<const uint4*>(tile + piece / 8 * kTile + swizzled<8>(row, piece % 8));
      const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[i] = fmaf(low_bf16(pairs[i]), low_bf16(pairs[i]), sum[i]);
        sum[i] = fmaf(high_bf16(pairs[i]), high_bf16(pairs[i]), sum[i]);
      }
    }
    const float factor = gdn_unit_factor((sum[0] + sum[1]) + (sum[2] + sum[3]));
    if (which == 0) {
      tokens(s).rk[row] = factor;
    } else {
      tokens(s).rq[row] = factor * 0.08838834764831845f;  // 128^-0.5
    }
  }
  // What the carriers scale token `thread` with.
  __device__ void write_scales(int s) const {
    if (thread >= kChunk) return;
    const TokenFactors& t = tokens(s);
    const float g = t.g[thread], beta = t.beta[thread], decay = power_of_two(g), last = t.g[kChunk - 1];
    reinterpret_cast<float4*>(at.base + L::kScales)[s * kChunk + thread] = {
        beta, -beta * decay * t.rk[thread], decay * t.rq[thread], power_of_two(last - g) * t.rk[thread]};
    if (thread == 0) floats(L::kEnd)[s] = power_of_two(last);
  }

  // x = rows k^T of the chunk, of k or q; not waited for.
  __device__ void start_product(uint32_t rows, uint32_t k, float (&x)[8][4]) const {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t column = i / 4 * kTile + i % 4 * 32;
      const uint64_t left = wgmma_operand(rows + column, 1024, 16), right = wgmma_operand(k + column, 1024, 16);
      if (i == 0) {
        wgmma_ss<kZeroFirst>(x, left, right);
      } else {
        wgmma_ss<kAccumulate>(x, left, right);
      }
    }
    wgmma_commit();
  }

  // How a warp's 16 rows of a product are weighed: element (t, j) with row[t] column[j] 2^(G_t - G_j), the power split
  // at the block's first token where j is before it.
  struct Weights {
    const float *g, *column;
    float first, row_g[2], row[2], row_far[2];

    __device__ Weights(const TokenFactors& t, int warp, int lane, float row0, float row1) : g(t.g), column(t.rk) {
      first = t.g[16 * warp];
      row_g[0] = t.g[16 * warp + lane / 4], row_g[1] = t.g[16 * warp + lane / 4 + 8];
      row[0] = row0, row[1] = row1;
      for (int i = 0; i < 2; ++i) row_far[i] = row[i] * power_of_two(row_g[i] - first);
    }
    // Of the 8 columns from `n` * 8, all before the rows' block.
    __device__ void far(int n, int lane, const float (&x)[4], float (&y)[4]) const {
      const float2 gs = reinterpret_cast<const float2*>(g)[4 * n + lane % 4];
      const float2 ks = reinterpret_cast<const float2*>(column)[4 * n + lane % 4];
      const float c[2] = {power_of_two(first - gs.x) * ks.x, power_of_two(first - gs.y) * ks.y};
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = x[i] * (row_far[i / 2] * c[i % 2]);
    }
    // Of the 8 columns from `n` * 8 in the rows' block; those with t - j < `nearest` are zeros.
    __device__ void near(int n, int lane, int nearest, const float (&x)[4], float (&y)[4]) const {
      const float2 gs = reinterpret_cast<const float2*>(g)[4 * n + lane % 4];
      const float2 ks = reinterpret_cast<const float2*>(column)[4 * n + lane % 4];
      const float gj[2] = {gs.x, gs.y}, c[2] = {ks.x, ks.y};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = lane / 4 + i / 2 * 8, j = n % 2 * 8 + 2 * (lane % 4) + i % 2;
        const float weighed = x[i] * (power_of_two(fminf(row_g[i / 2] - gj[i % 2], 0.0f)) * (row[i / 2] * c[i % 2]));
        y[i] = t - j < nearest ? 0.0f : weighed;
      }
    }
  };
  // The part of a product that lies on the diagonal, for the warp that has it.
  __device__ void take_diagonal(const float (&x)[8][4], float (&d)[2][4]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n < 2 || n / 2 == warp) d[n % 2][i] = x[n][i];
      }
    }
  }

  // -A on the diagonal to shared memory, left of it to `left`, as right operands of 16 rows.
  __device__ void weigh_keys(int s, const float (&kk)[8][4], uint32_t (&left)[6][2]) const {
    const TokenFactors& t = tokens(s);
    const int row = 16 * warp + lane / 4;
    const Weights w(t, warp, lane, t.beta[row] * t.rk[row], t.beta[row + 8] * t.rk[row + 8]);
    float d[2][4], y[4];
    take_diagonal(kk, d);
    float* const diagonal = floats(L::kDiagonal) + warp * 256;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      w.near(2 * warp + n, lane, 1, d[n], y);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        diagonal[(8 * n + 2 * (lane % 4) + i % 2) * 16 + lane / 4 + i / 2 * 8] = -y[i];
      }
    }
#pragma unroll
    for (int n = 0; n < 6; ++n) {
      if (n / 2 >= warp) break;
      w.far(n, lane, kk[n], y);
      left[n][0] = movmatrix(pack2<__nv_bfloat16>(y[0], y[1]));
      left[n][1] = movmatrix(pack2<__nv_bfloat16>(y[2], y[3]));
    }
  }
  // P to its tile.
  __device__ void weigh_queries(int s, const float (&qk)[8][4]) const {
    const TokenFactors& t = tokens(s);
    const int row = 16 * warp + lane / 4;
    const Weights w(t, warp, lane, t.rq[row], t.rq[row + 8]);
    float d[2][4], y[4];
    take_diagonal(qk, d);
    char* const tile = at.base + s * L::kStage + L::kP;
    const auto write = [&](int n, const float(&y)[4]) {
      *reinterpret_cast<uint32_t*>(tile + swizzled<8>(row, n) + 4 * (lane % 4)) = pack2<__nv_bfloat16>(y[0], y[1]);
      *reinterpret_cast<uint32_t*>(tile + swizzled<8>(row + 8, n) + 4 * (lane % 4)) = pack2<__nv_bfloat16>(y[2], y[3]);
    };
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      w.near(2 * warp + n, lane, 0, d[n], y);
      write(2 * warp + n, y);
    }
#pragma unroll
    for (int n = 0; n < 6; ++n) {
      if (n / 2 >= warp) break;
      w.far(n, lane, qk[n], y);
      write(n, y);
    }
  }
  // The diagonal block of T that is this warp's, by substitution in float32: a lane has one column.
  __device__ void invert_diagonal(int s) const {
    const float* const minus_a = floats(L::kDiagonal) + warp * 256;  // [column][row]
    const int column = lane % 16;
    float x[16];
#pragma unroll
    for (int t = 0; t < 16; ++t) x[t] = t == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < 15; ++j) {
#pragma unroll
      for (int t4 = (j + 1) / 4 * 4; t4 < 16; t4 += 4) {
        const float4 a = *reinterpret_cast<const float4*>(minus_a + j * 16 + t4);
        const float values[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (t4 + i > j) x[t4 + i] = fmaf(values[i], x[j], x[t4 + i]);
        }
      }
    }
    char* const tile = at.base + s * L::kStage + L::kT;
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      if (t / 8 == lane / 16) {
        *reinterpret_cast<__nv_bfloat16*>(tile + swizzled<8>(16 * warp + t, 2 * warp + column / 8) + column % 8 * 2) =
            __float2bfloat16_rn(x[t]);
      }
    }
  }
  // z = -T_ww A_w: what this warp's rows of T left of the diagonal are multiples of, as left operands.
  __device__ void multiply_left(int s, const uint32_t (&left)[6][2], uint32_t (&z)[3][4]) const {
    uint32_t t[4];
    load_tiles(t, stage(s) + L::kT + swizzled<8>(16 * warp + lane % 16, 2 * warp + lane / 16));
#pragma unroll
    for (int n = 0; n < 6; ++n) {
      if (n / 2 >= warp) break;
      float c[4] = {};
      mma16816<__nv_bfloat16>(c, t, left[n][0], left[n][1]);
      z[n / 2][n % 2 * 2] = pack2<__nv_bfloat16>(-c[0], -c[1]);
      z[n / 2][n % 2 * 2 + 1] = pack2<__nv_bfloat16>(-c[2], -c[3]);
    }
  }
  // Rows of T left of the diagonal: T_w = z T_{<w}, once the rows above are there.
  template <int kWarp>
  __device__ void substitute(int s, const uint32_t (&z)[3][4]) const {
    const uint32_t tile = stage(s) + L::kT;
#pragma unroll
    for (int block = 0; block < kWarp; ++block) {
      float c[2][4] = {};
#pragma unroll
      for (int k = block; k < kWarp; ++k) {
        uint32_t b[4];
        load_tiles_transposed(b, tile + swizzled<8>(16 * k + lane % 16, 2 * block + lane / 16));
        mma16816<__nv_bfloat16>(c[0], z[k], b[0], b[1]);
        mma16816<__nv_bfloat16>(c[1], z[k], b[2], b[3]);
      }
      char* const to = at.base + s * L::kStage + L::kT;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = i / 2, half = i % 2;
        *reinterpret_cast<uint32_t*>(to + swizzled<8>(16 * kWarp + lane / 4 + 8 * half, 2 * block + n) + lane % 4 * 4) =
            pack2<__nv_bfloat16>(c[n][2 * half], c[n][2 * half + 1]);
      }
    }
  }
  // Rows of T left of the diagonal, one block of 16 after the other.
  __device__ void substitute_all(int s, const uint32_t (&z)[3][4]) const {
    named_barrier(2, kGroupThreads);
    if (warp == 1) substitute<1>(s, z);
    named_barrier(2, kGroupThreads);
    if (warp == 2) substitute<2>(s, z);
    named_barrier(2, kGroupThreads);
    if (warp == 3) substitute<3>(s, z);
  }
  __device__ void barrier() const { named_barrier(1, kPrepareThreads); }

  // T, P and the scales of the chunk in stage s, and the gates of the next, tokens [first, first + count).
  __device__ void prepare(int s, int next_stage, int first, int count) const {
    const uint32_t q = stage(s) + L::kQ, k = stage(s) + L::kK;
    uint32_t left[6][2], z[3][4];
    float x[8][4];
    RawGates gates;
    start_product(kKeys ? k : q, k, x);
    if constexpr (kQueries) {
      gates = read_gates(first, count);
      write_row_factors(s);
    }
    barrier();
    if constexpr (kKeys) {
      wgmma_wait<0>();
      hold(x);
      weigh_keys(s, x, left);
      __syncwarp();
      if constexpr (kQueries) start_product(q, k, x);
      invert_diagonal(s);
      __syncwarp();
      multiply_left(s, left, z);
    }
    if constexpr (kQueries) {
      write_scales(s);
      write_gates(next_stage, gates, count);
      wgmma_wait<0>();
      hold(x);
      weigh_queries(s, x);
    }
    if constexpr (kKeys) substitute_all(s, z);
  }

  __device__ void run(uint32_t full, uint32_t empty) const {
    Walk walk(p, at.request, at.span.q_len), gates(walk), ahead(walk);
    if constexpr (kQueries) {
      for (int i = 0; i < 2; ++i) {
        const int first = ahead.done, count = ahead.next(p);
        if (count > 0) read_ahead(i, first, count);
        commit_copies();
      }
      const int count = gates.next(p);
      write_gates(0, read_gates(0, count), count);
    }
    for (int i = 0, s = 0; walk.next(p) > 0; ++i) {
      const int after = s == kStages - 1 ? 0 : s + 1;
      if constexpr (kQueries) wait_copies<1>();
      fence_for_wgmma();
      barrier();
      const int next_first = gates.done, next_count = kQueries ? gates.next(p) : 0;
      Preparer self = *this;
      // Addresses that do not change are not worth keeping where registers are few.
      if constexpr (kHalves == 2) asm volatile("" : "+r"(self.thread), "+r"(self.warp), "+r"(self.lane));
      self.prepare(s, after, next_first, next_count);
      fence_for_wgmma();
      barrier_arrive(full + 8 * s);
      if constexpr (kQueries) {
        const int first = ahead.done, length = ahead.next(p), to = s == 0 ? kStages - 1 : s - 1;
        if (length > 0) {
          if (i + 2 >= kStages) barrier_wait(empty + 8 * to, ((i + 2) / kStages - 1) & 1);
          read_ahead(to, first, length);
        }
        commit_copies();
      }
      s = after;
    }
  }
};

// Carries 64 value dimensions' state through the chunks.
template <int kHalves>
struct Carrier {
  using L = Layout<kHalves>;
  const GDNParams& p;
  const Place& at;
  int half, thread, warp, lane;

  __device__ uint32_t stage(int s) const { return at.shared + s * L::kStage; }
  // Row of the state that s[n][0..1] belong to; s[n][2..3] belong to the eighth after it.
  __device__ int row() const { return at.first_row + 64 * half + 16 * warp + lane / 4; }

  __device__ void load(int slot, float (&s)[16][4]) const {
    const float* const from = p.state_of(slot, at.head);
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 x = from == nullptr
                             ? float2{}
                             : *reinterpret_cast<const float2*>(from + (row() + 8 * i) * kDim + 8 * n + 2 * (lane % 4));
        s[n][2 * i] = x.x, s[n][2 * i + 1] = x.y;
      }
    }
  }
  __device__ void save(int slot, const float (&s)[16][4]) const {
    float* const to = p.state_of(slot, at.head);
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
      const uint64_t right = wgmma_operand(tiles + L::kT + k * 32, 1024, 16);
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
      wgmma_rs<kAccumulate, 0>(o, plain[k], wgmma_operand(tiles + L::kP + k * 32, 1024, 16));
    }
    wgmma_commit();
  }

  __device__ int outputs() const { return L::kOutput + half * kChunk * L::kOutputPitch; }
  // A chunk's outputs, turned from [dimension, token] to rows, wait in shared memory ..
  __device__ void keep_output(const float (&o)[8][4]) const {
    named_barrier(3 + half, kGroupThreads);  // the rows before are read
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      const int token = 8 * n + lane % 8 + lane / 16 * 8, column = 16 * warp + lane / 8 % 2 * 8;
      stmatrix_x4_trans(at.shared + outputs() + token * L::kOutputPitch + column * 2,
                        pack2<__nv_bfloat16>(o[n][0], o[n][1]), pack2<__nv_bfloat16>(o[n][2], o[n][3]),
                        pack2<__nv_bfloat16>(o[n + 1][0], o[n + 1][1]), pack2<__nv_bfloat16>(o[n + 1][2], o[n + 1][3]));
    }
  }
  // .. and are written while the tensor cores have work again.
  __device__ void write_output(int first, int count) const {
    named_barrier(3 + half, kGroupThreads);
    auto* const out = static_cast<__nv_bfloat16*>(p.out.data) + at.first_row + 64 * half + thread % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = thread / 8 + 16 * i;
      if (token >= count) continue;
      *reinterpret_cast<uint4*>(out + p.out.at(at.span.q_off + first + token, at.head)) =
          *reinterpret_cast<const uint4*>(at.base + outputs() + token * L::kOutputPitch + thread % 8 * 16);
    }
  }

  struct Chunk {
    uint32_t tiles;
    const float4* scales;
    float last;  // exp(G_C)
  };
  __device__ Chunk chunk(int s) const {
    return {stage(s), reinterpret_cast<const float4*>(at.base + L::kScales) + s * kChunk,
            reinterpret_cast<const float*>(at.base + L::kEnd)[s]};
  }
  // From x = S k^T to the chunk's outputs o and its last state s, both still being summed, s the earlier.
  __device__ void carry(const Chunk& c, const float (&x)[8][4], const uint32_t (&packed)[8][4], float (&s)[16][4],
                        float (&o)[8][4]) const {
    uint32_t r[4][4], plain[4][4], scaled[4][4];
    float n[8][4];
    right_hand_side(c.tiles, c.scales, x, r);
    start_solve(c.tiles, r, n);
    if constexpr (kHalves == 1) {
      start_state_product(c.tiles + L::kQ, packed, o);
      wgmma_wait<1>();
      hold(n);
    } else {  // r's registers are needed; the other carrier keeps the cores busy
      wgmma_wait<0>();
      hold(n);
      start_state_product(c.tiles + L::kQ, packed, o);
    }
    start_update(c.tiles, c.scales, c.last, n, s, plain, scaled);
    wgmma_wait<1>();
    hold(o);
    start_output(c.tiles, c.scales, plain, o);
  }

  __device__ void save_snapshots(int& snapshot, int done, const float (&s)[16][4]) const {
    for (; snapshot < p.snapshots && p.batch.snapshots[snapshot].request == at.request &&
           p.batch.snapshots[snapshot].num_tokens == done;
         ++snapshot) {
      save(p.batch.snapshots[snapshot].slot, s);
    }
  }

  // Alone on its multiprocessor's tensor cores: the outputs of a chunk are summed and written while the state meets the
  // next keys.
  __device__ void run_alone(uint32_t full, uint32_t empty, float (&s)[16][4]) const {
    Walk walk(p, at.request, at.span.q_len);
    int snapshot = walk.snapshot, now = 0, parity = 0, first = 0, count = walk.next(p);
    uint32_t packed[8][4];
    float x[8][4], o[8][4];
    barrier_wait(full, 0);
    pack_state(s, packed);
    start_state_product(stage(0) + L::kK, packed, x);
    wgmma_wait<0>();
    hold(x);
    while (count > 0) {
      carry(chunk(now), x, packed, s, o);
      const int before = now, next_first = walk.done, next_count = walk.next(p);
      if (++now == kStages) now = 0, parity ^= 1;
      if (next_count > 0) barrier_wait(full + 8 * now, parity);
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
      if (p.snapshots > 0) save_snapshots(snapshot, next_first, s);
      first = next_first, count = next_count;
    }
  }
  // Beside another carrier, which keeps the tensor cores busy meanwhile: fewer registers.
  __device__ void run_beside(uint32_t full, uint32_t empty, float (&s)[16][4]) const {
    Walk walk(p, at.request, at.span.q_len);
    int snapshot = walk.snapshot, now = 0, parity = 0, first = 0, count = 0;
    while (true) {
      const int start = walk.done, length = walk.next(p);
      if (length == 0) break;
      uint32_t packed[8][4];
      float x[8][4], o[8][4];
      Carrier self = *this;  // addresses that do not change are not worth keeping where registers are few
      asm volatile("" : "+r"(self.thread), "+r"(self.warp), "+r"(self.lane));
      barrier_wait(full + 8 * now, parity);
      pack_state(s, packed);
      self.start_state_product(stage(now) + L::kK, packed, x);
      if (count > 0) self.write_output(first, count);
      wgmma_wait<0>();
      hold(x);
      self.carry(chunk(now), x, packed, s, o);
      wgmma_wait<0>();
      hold(s);
      hold(o);
      barrier_arrive(empty + 8 * now);
      self.keep_output(o);
      if (p.snapshots > 0) save_snapshots(snapshot, walk.done, s);
      first = start, count = length;
      if (++now == kStages) now = 0, parity ^= 1;
    }
    write_output(first, count);
  }
  __device__ void run(uint32_t full, uint32_t empty) const {
    const StateSlots slots = p.batch.state_slots[at.request];
    float s[16][4];
    load(slots.read, s);
    if constexpr (kHalves == 1) {
      run_alone(full, empty, s);
    } else {
      run_beside(full, empty, s);
    }
    if (slots.write != kNoState) save(slots.write, s);
  }
};
#endif  // HR_BUILD_SM90A

// One warpgroup prepares chunks for two that carry state, or two for one.
template <int kHalves>
__global__ void __launch_bounds__(3 * kGroupThreads, 1) run_chunks(const GDNParams p) {
#ifdef HR_BUILD_SM90A
  extern __shared__ char memory[];
  using L = Layout<kHalves>;
  Place at;
  at.request = blockIdx.y;
  at.span = p.batch.spans[at.request];
  if (!p.has(at.span)) return;
  at.head = kHalves == 2 ? blockIdx.x : blockIdx.x / 2;
  at.first_row = kHalves == 2 ? 0 : blockIdx.x % 2 * 64;
  at.key_head = at.head / (p.v_heads / p.k_heads);
  at.shared = (shared_address(memory) + 1023) / 1024 * 1024;
  at.base = memory + (at.shared - shared_address(memory));
  const uint32_t full = at.shared + L::kEnd + 16, empty = full + 8 * kStages;
  // Right of the diagonal T and P stay zeros for ever.
  for (int i = threadIdx.x; i < kStages * 2 * kTile / 16; i += blockDim.x) {
    const int s = i / (2 * kTile / 16), within = i % (2 * kTile / 16);
    reinterpret_cast<uint4*>(at.base + s * L::kStage + L::kT)[within] = uint4{};
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(full + 8 * s, kGroupThreads * (3 - kHalves));
      barrier_init(empty + 8 * s, kGroupThreads * kHalves);
    }
  }
  fence_for_wgmma();
  __syncthreads();
  const int group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const float a_log = p.a_log[at.head], dt_bias = p.dt_bias[at.head];
  // Together at most the registers of the launch, 3 x 168: more would wait for ever.
  if constexpr (kHalves == 2) {
    if (group == 0) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
      Preparer<2, true, true>{p, at, thread, thread / 32, thread % 32, a_log, dt_bias}.run(full, empty);
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
      Carrier<2>{p, at, group - 1, thread, thread / 32, thread % 32}.run(full, empty);
    }
  } else {
    if (group == 0) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 128;");
      Preparer<1, false, true>{p, at, thread, thread / 32, thread % 32, a_log, dt_bias}.run(full, empty);
    } else if (group == 1) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 128;");
      Preparer<1, true, false>{p, at, thread, thread / 32, thread % 32, a_log, dt_bias}.run(full, empty);
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
      Carrier<1>{p, at, 0, thread, thread / 32, thread % 32}.run(full, empty);
    }
  }
#endif
}

template <int kHalves>
void launch(const GDNParams& p, cudaStream_t stream) {
  constexpr int kBytes = Layout<kHalves>::kBytes;
  static_assert(kBytes <= 227 * 1024);
  check_cuda(cudaFuncSetAttribute(run_chunks<kHalves>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "setting the shared memory of gated_delta_rule");
  const dim3 grid(static_cast<unsigned>(p.v_heads * (2 / kHalves)), static_cast<unsigned>(p.requests));
  run_chunks<kHalves><<<grid, 3 * kGroupThreads, kBytes, stream>>>(p);
  check_launch("gated_delta_rule in chunks");
}

}  // namespace

bool gdn_chunk_sm90_supports(const GatedDeltaRuleArgs& a, int arch) {
  const auto aligned = [](const TensorView& t) {
    return reinterpret_cast<uintptr_t>(t.data()) % 16 == 0 && t.stride(0) % 8 == 0;
  };
  return arch == 90 && a.qkv.dtype() == DType::kBF16 && a.out.dtype() == DType::kBF16 && a.head_k_dim() == kDim &&
         a.head_v_dim() == kDim && aligned(a.qkv) && aligned(a.out) && a.out.stride(1) % 8 == 0;
}

// Few heads: two blocks for each, so that more multiprocessors have one; the halves never meet, so no bit changes.
void gdn_chunk_sm90(const GDNParams& p, int num_sms, cudaStream_t stream) {
  if (p.requests * p.v_heads * 2 <= num_sms) {
    launch<1>(p, stream);
  } else {
    launch<2>(p, stream);
  }
}

}  // namespace headrace::cuda
