// The chunked gated delta rule on Hopper, first part: the images of chunks. A block of one warpgroup takes a chunk of a
// key head and makes the images of its value heads; four blocks share a multiprocessor and hide each other's waits.
#include "headrace/kernels/cuda/gdn_chunk_sm90.cuh"
#include "headrace/kernels/cuda/gdn_gate.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HR_BUILD_SM90A 1
#include "headrace/kernels/cuda/wgmma.cuh"
#endif

namespace headrace::cuda {
namespace {

using namespace gdn;

constexpr int kBlocks = 4;  // of a multiprocessor

// Per token of a chunk.
struct Gates {
  float g[kChunk];  // G log2(e)
  float beta[kChunk];
};
struct Factors {
  float rk[kChunk], rq[kChunk];
};

// Shared memory: k and q in halves of 64 columns, an image, four 16 x 16 float blocks of -A transposed, the factors, a
// barrier, the gates of each value head.
struct Layout {
  static constexpr int kK = 0, kQ = 2 * kTile, kImage = 4 * kTile, kDiagonal = kImage + Image::kBytes;
  static constexpr int kFactors = kDiagonal + 4 * 1024, kBarrier = kFactors + static_cast<int>(sizeof(Factors));
  static constexpr int kGates = kBarrier + 16;
  static int bytes(int group) { return kGates + group * static_cast<int>(sizeof(Gates)) + 1024; }  // base rounded up
};

#ifdef HR_BUILD_SM90A
constexpr float kLog2e = 1.4426950408889634f;

// 2^x, x <= 0.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

struct Preparer {
  using L = Layout;
  const GDNParams& p;
  char* base;
  uint32_t shared;  // address of base
  int thread, warp, lane;

  __device__ float* floats(int offset) const { return reinterpret_cast<float*>(base + offset); }
  __device__ Factors& factors() const { return *reinterpret_cast<Factors*>(base + L::kFactors); }
  __device__ Gates& gates(int i) const { return reinterpret_cast<Gates*>(base + L::kGates)[i]; }

  // Of tokens [token, token + count), by one warp; the others' neither decay nor write.
  __device__ void write_gates(Gates& to, int64_t token, int count, int head) const {
    float g[2], beta[2];
    __nv_bfloat16 a[2], b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t at = token + min(2 * lane + i, count - 1);
      a[i] = static_cast<const __nv_bfloat16*>(p.a.data)[p.a.at(at) + head];
      b[i] = static_cast<const __nv_bfloat16*>(p.b.data)[p.b.at(at) + head];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool inside = 2 * lane + i < count;
      g[i] = inside ? gdn_log_decay(__bfloat162float(a[i]), p.a_log[head], p.dt_bias[head]) * kLog2e : 0.0f;
      beta[i] = inside ? gdn_beta(__bfloat162float(b[i])) : 0.0f;
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
  // Threads 0..63: rk of row `thread`; 64..127: rq.
  __device__ void write_row_factors() const {
    const int row = thread % kChunk, which = thread / kChunk;
    const char* const tile = base + (which == 0 ? L::kK : L::kQ);
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
      factors().rk[row] = factor;
    } else {
      factors().rq[row] = factor * 0.08838834764831845f;  // 128^-0.5
    }
  }
  // What the carriers scale token `thread` with.
  __device__ void write_scales(const Gates& t) const {
    const float last = t.g[kChunk - 1];
    if (thread == 0) floats(L::kImage + Image::kLast)[0] = power_of_two(last);
    if (thread >= kChunk) return;
    const Factors& f = factors();
    const float g = t.g[thread], beta = t.beta[thread], decay = power_of_two(g);
    reinterpret_cast<float4*>(base + L::kImage + Image::kScales)[thread] = {
        beta, -beta * decay * f.rk[thread], decay * f.rq[thread], power_of_two(last - g) * f.rk[thread]};
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

    __device__ Weights(const Gates& t, const float* rk, int warp, int lane, float row0, float row1)
        : g(t.g), column(rk) {
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
  __device__ void weigh_keys(const Gates& gates, const float (&kk)[8][4], uint32_t (&left)[6][2]) const {
    const Factors& f = factors();
    const int row = 16 * warp + lane / 4;
    const Weights w(gates, f.rk, warp, lane, gates.beta[row] * f.rk[row], gates.beta[row + 8] * f.rk[row + 8]);
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
  __device__ void weigh_queries(const Gates& gates, const float (&qk)[8][4]) const {
    const Factors& f = factors();
    const int row = 16 * warp + lane / 4;
    const Weights w(gates, f.rk, warp, lane, f.rq[row], f.rq[row + 8]);
    float d[2][4], y[4];
    take_diagonal(qk, d);
    char* const tile = base + L::kImage + Image::kP;
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
  __device__ void invert_diagonal() const {
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
    char* const tile = base + L::kImage + Image::kT;
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      if (t / 8 == lane / 16) {
        *reinterpret_cast<__nv_bfloat16*>(tile + swizzled<8>(16 * warp + t, 2 * warp + column / 8) + column % 8 * 2) =
            __float2bfloat16_rn(x[t]);
      }
    }
  }
  // z = -T_ww A_w: what this warp's rows of T left of the diagonal are multiples of, as left operands.
  __device__ void multiply_left(const uint32_t (&left)[6][2], uint32_t (&z)[3][4]) const {
    uint32_t t[4];
    load_tiles(t, shared + L::kImage + Image::kT + swizzled<8>(16 * warp + lane % 16, 2 * warp + lane / 16));
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
  __device__ void substitute(const uint32_t (&z)[3][4]) const {
    const uint32_t tile = shared + L::kImage + Image::kT;
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
      char* const to = base + L::kImage + Image::kT;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = i / 2, half = i % 2;
        *reinterpret_cast<uint32_t*>(to + swizzled<8>(16 * kWarp + lane / 4 + 8 * half, 2 * block + n) + lane % 4 * 4) =
            pack2<__nv_bfloat16>(c[n][2 * half], c[n][2 * half + 1]);
      }
    }
  }
  // Rows of T left of the diagonal, one block of 16 after the other.
  __device__ void substitute_all(const uint32_t (&z)[3][4]) const {
    __syncthreads();
    if (warp == 1) substitute<1>(z);
    __syncthreads();
    if (warp == 2) substitute<2>(z);
    __syncthreads();
    if (warp == 3) substitute<3>(z);
  }
  // T, P and the scales of one value head.
  __device__ void prepare(const Gates& gates) const {
    const uint32_t q = shared + L::kQ, k = shared + L::kK;
    uint32_t left[6][2], z[3][4];
    float x[8][4];
    start_product(k, k, x);
    write_scales(gates);
    wgmma_wait<0>();
    hold(x);
    weigh_keys(gates, x, left);
    __syncwarp();
    start_product(q, k, x);
    invert_diagonal();
    __syncwarp();
    multiply_left(left, z);
    wgmma_wait<0>();
    hold(x);
    weigh_queries(gates, x);
    substitute_all(z);
  }
};

// The request of place `place` of the pass, and which of the request's it is; -1 after the last. By whole warps.
__device__ int2 locate(const GDNParams& p, const Pass& pass, int place) {
  const int lane = threadIdx.x % 32;
  for (int r0 = 0; r0 < p.requests; r0 += 32) {
    const int mine = r0 + lane < p.requests ? places(p, pass, r0 + lane) : 0;
    int upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, upto, step);
      if (lane >= step) upto += before;
    }
    const unsigned after = __ballot_sync(0xffffffffu, upto > place);
    if (after != 0) {
      const int found = __ffs(static_cast<int>(after)) - 1;
      return {r0 + found, place - __shfl_sync(0xffffffffu, upto - mine, found)};
    }
    place -= __shfl_sync(0xffffffffu, upto, 31);
  }
  return {-1, 0};
}

// The images of one chunk and key head.
__device__ void make_images_of(const GDNParams& p, const Pass& pass, const CUtensorMap& qkv, char* memory) {
  using L = Layout;
  const int place = blockIdx.y, key_head = blockIdx.x, group = p.v_heads / p.k_heads;
  const int2 at = locate(p, pass, place);
  if (at.x < 0) return;
  const KeySpan span = p.batch.spans[at.x];
  Walk walk(p, at.x, span.q_len);
  walk.skip(p, pass.first + at.y);
  const int first = walk.done, count = walk.next(p);
  if (count == 0) return;
  const int thread = threadIdx.x;
  const uint32_t shared = (shared_address(memory) + 1023) / 1024 * 1024, barrier = shared + L::kBarrier;
  const Preparer preparer{p, memory + (shared - shared_address(memory)), shared, thread, thread / 32, thread % 32};
  if (thread == 0) {
    barrier_init(barrier, 1);
    fence_barrier_init();
    barrier_expect(barrier, 4 * kTile);
    for (int half = 0; half < 2; ++half) {
      copy_box(shared + L::kK + half * kTile, qkv, (p.k_heads + key_head) * kDim + 64 * half, span.q_off + first, 0, 0,
               barrier);
      copy_box(shared + L::kQ + half * kTile, qkv, key_head * kDim + 64 * half, span.q_off + first, 0, 0, barrier);
    }
  }
  // Right of the diagonal T and P stay zeros.
  for (int i = thread; i < 2 * kTile / 16; i += kGroupThreads) {
    reinterpret_cast<uint4*>(preparer.base + L::kImage)[i] = uint4{};
  }
  for (int i = preparer.warp; i < group; i += kGroupThreads / 32) {
    preparer.write_gates(preparer.gates(i), span.q_off + first, count, key_head * group + i);
  }
  __syncthreads();
  barrier_wait(barrier, 0);
  clear_rows(preparer.base, 4, count, thread, kGroupThreads);
  fence_for_wgmma();
  __syncthreads();
  preparer.write_row_factors();
  for (int i = 0; i < group; ++i) {
    if (i > 0 && thread == 0) wait_bytes_out();
    __syncthreads();
    Preparer self = preparer;  // addresses that do not change are not worth keeping where registers are few
    asm volatile("" : "+r"(self.thread), "+r"(self.warp), "+r"(self.lane));
    self.prepare(self.gates(i));
    fence_for_wgmma();
    __syncthreads();
    if (thread == 0) {
      copy_bytes_out(image_of(p, pass, place, key_head * group + i), shared + L::kImage, Image::kBytes);
    }
  }
  if (thread == 0) wait_bytes_out();
}
#endif  // HR_BUILD_SM90A

__global__ void __launch_bounds__(kGroupThreads, kBlocks)
    make_images(const GDNParams p, const Pass pass, const __grid_constant__ CUtensorMap qkv) {
#ifdef HR_BUILD_SM90A
  extern __shared__ char memory[];
  make_images_of(p, pass, qkv, memory);
  if (blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1) wait_for_previous();  // see Start
#endif
}

}  // namespace

// `places`: at least as many as all requests have.
void gdn::gdn_prepare_sm90(const GDNParams& p, const Pass& pass, const Maps& maps, int places, Start start,
                           const Stream& stream) {
  const int bytes = Layout::bytes(p.v_heads / p.k_heads);
  check_cuda(cudaFuncSetAttribute(make_images, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "setting the shared memory of gated_delta_rule");
  EarlyLaunch launch(dim3(static_cast<unsigned>(p.k_heads), static_cast<unsigned>(places)), kGroupThreads, bytes,
                     stream);
  if (start == Start::kAfterAll) launch.config.numAttrs = 0;
  check_cuda(cudaLaunchKernelEx(&launch.config, make_images, p, pass, maps.qkv), "launching gated_delta_rule, images");
}

}  // namespace headrace::cuda
