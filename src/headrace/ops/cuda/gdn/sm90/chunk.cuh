// Definitions shared by the two kernels of the chunked gated delta rule on Hopper: heads of 128 x 128, chunks of 64
// tokens.
//
// G is the running sum of log decays in a chunk, and E(t, j) = exp(G_t - G_j); all exponents are <= 0. rq and rk are
// the factors that normalise q and k to length one:
//   A = beta_t E(t, j) rk_t rk_j k_t.k_j for j < t;  T = (I + A)^-1;  P = E(t, j) rq_t rk_j q_t.k_j for j <= t
//   N = T (beta_t v_t - beta_t exp(G_t) rk_t S k_t);  o_t = exp(G_t) rq_t S q_t + sum_j P(t, j) N_j
//   S = exp(G_C) S + sum_j exp(G_C - G_j) rk_j N_j k_j^T
// T, P and the factors of the last two lines do not depend on the state. A first kernel (chunk_wy.cu) computes them for
// all chunks in parallel and stores them in scratch memory as the chunk's WY factors (`WYFactors`). The state pass
// (chunk_state.cu) then carries the state of each head of each request through its chunks.
// Source: Yang et al. 2024, Gated Delta Networks; ratios of decays as in ops/cpu/gdn_chunk.h.
#pragma once
#include <cuda.h>

#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/gdn/gated_delta_rule.cuh"

namespace headrace::cuda {

namespace gdn {

constexpr int kDim = 128, kChunk = 64, kGroupThreads = 128;
constexpr int kTile = kChunk * 128;  // bytes of 64 rows of 64 bfloat16, 128-byte swizzle

// Lower triangle of 64 x 64 bfloat16 in blocks of 16 x 16. The blocks of a 16-column strip are adjacent, from the
// diagonal down. Rows have 32 bytes and the 32-byte swizzle, so a strip is a WGMMA operand.
struct Triangle {
  static constexpr int kBytes = 10 * 512, kStrips = 4;
  static __host__ __device__ constexpr int strip(int s) { return s * 2048 - 256 * s * (s - 1); }
  static __host__ __device__ constexpr int strip_bytes(int s) { return 2048 - 512 * s; }
};
// Returns the byte offset of 8 columns, the `half` (0 or 1) of a row of 16 bfloat16 with the 32-byte swizzle.
__device__ inline int in_rows_of_16(int row, int half) { return row * 32 + ((half ^ row >> 2) & 1) * 16; }
// Returns the byte offset of columns [8 eighth, 8 eighth + 8) of a row, in or left of the block on the diagonal.
__device__ inline int in_triangle(int row, int eighth) {
  const int s = eighth / 2;
  return Triangle::strip(s) - 512 * s + in_rows_of_16(row, eighth % 2);
}

// WY factors of a chunk and value head: T, P, the factors of each token, exp(G_C).
struct WYFactors {
  static constexpr int kT = 0, kP = Triangle::kBytes, kScales = 2 * Triangle::kBytes;
  static constexpr int kLast = static_cast<int>(kScales + sizeof(float) * 4 * kChunk);
  static constexpr int kBytes = kLast + 128;
};
struct Scales {
  float state[kChunk];   // -beta exp(G) rk: factor of S k, and in W
  float value[kChunk];   // beta: factor of v
  float query[kChunk];   // exp(G) rq: factor of S q
  float update[kChunk];  // exp(G_C - G) rk: factor of N
};

// Bytes of W = -T diag(beta exp(G) rk) K [64, 128], in halves of 64 columns with the 128-byte swizzle. With W, N = T
// (beta v) + W S has one GEMM less between two states. Used if each half of a head has its own CTA.
constexpr int kKeysBytes = 2 * kTile;

// Chunks [first, first + count) of every request: one launch of each kernel.
struct Pass {
  char* wy_factors;  // WY factors of the requests' chunks in order; all heads of a chunk are adjacent
  char* keys;        // W in the same order; null if the state pass does not use it
  float* states;     // [requests, heads, 128, 128] states between passes
  int first, count;
};

// Iterates over a request's chunks. A chunk ends every 64 tokens and at each snapshot.
struct Walk {
  int done = 0, tokens, snapshot, request;

  __device__ Walk(const GDNParams& p, int r, int length)
      : tokens(length), snapshot(p.snapshots > 0 ? p.first_snapshot(r) : 0), request(r) {}
  // Returns the tokens of the chunk that starts at `done`, and moves to the next chunk; returns 0 after the last.
  __device__ int next(const GDNParams& p) {
    int length = min(kChunk, tokens - done);
    while (ends(p) && p.batch.snapshots[snapshot].num_tokens <= done) ++snapshot;
    if (ends(p)) length = min(length, p.batch.snapshots[snapshot].num_tokens - done);
    done += length;
    return length;
  }
  __device__ void skip(const GDNParams& p, int chunks) {
    if (!ends(p)) {
      done = static_cast<int>(min(static_cast<int64_t>(tokens), int64_t{kChunk} * chunks));
      return;
    }
    for (int i = 0; i < chunks; ++i) next(p);
  }
  __device__ bool ends(const GDNParams& p) const {
    return snapshot < p.snapshots && p.batch.snapshots[snapshot].request == request;
  }
};

// Returns the places of a request in a pass: an upper bound on its chunks there.
__device__ inline int places(const GDNParams& p, const Pass& pass, int request) {
  const KeySpan span = p.batch.spans[request];
  if (!p.has(span)) return 0;
  int chunks = (span.q_len + kChunk - 1) / kChunk;
  if (p.snapshots > 0) chunks += p.first_snapshot(request + 1) - p.first_snapshot(request);
  return min(max(chunks - pass.first, 0), pass.count);
}

__device__ inline char* wy_factors_of(const GDNParams& p, const Pass& pass, int place, int head) {
  return pass.wy_factors + (int64_t{place} * p.v_heads + head) * WYFactors::kBytes;
}

__device__ inline char* keys_of(const GDNParams& p, const Pass& pass, int place, int head) {
  return pass.keys + (int64_t{place} * p.v_heads + head) * kKeysBytes;
}

// Launch configuration with programmatic dependent launch (pdl.cuh).
struct EarlyLaunch {
  EarlyLaunch(dim3 grid, int threads, int shared_bytes, const Stream& stream) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream.handle;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  EarlyLaunch(const EarlyLaunch&) = delete;
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config{};
};

// Returns true if each head gets two CTAs, because there are few heads for the SMs. The halves are independent, so the
// bits do not change.
inline bool halves_apart(const GDNParams& p, const Stream& stream) {
  return p.requests * p.v_heads * 2 <= stream.num_sms;
}

// TMA descriptors of the op's tensors.
struct Maps {
  CUtensorMap qkv, out;
};

// kDuringPassBefore: the WY factors of a pass are computed on idle SMs during the previous state pass. Two consecutive
// passes therefore use different buffers, and this kernel completes only after the previous state pass.
enum class Start : uint8_t { kAfterAll, kDuringPassBefore };
// Launch the two kernels of a pass. `places`: at least the sum of the requests' places.
void gdn_chunk_wy_sm90(const GDNParams& params, const Pass& pass, const Maps& maps, int places, Start start,
                       const Stream& stream);
void gdn_chunk_state_sm90(const GDNParams& params, const Pass& pass, const Maps& maps, const Stream& stream);

}  // namespace gdn
}  // namespace headrace::cuda
