// What the two kernels of the chunked gated delta rule on Hopper share: heads of 128 x 128, chunks of 64 tokens.
//
// With G the running sum of log decays of a chunk and E(t, j) = exp(G_t - G_j), all exponents <= 0, and rq, rk the
// factors that give q and k length one:
//   A = beta_t E(t, j) rk_t rk_j k_t.k_j for j < t;  T = (I + A)^-1;  P = E(t, j) rq_t rk_j q_t.k_j for j <= t
//   N = T (beta_t v_t - beta_t exp(G_t) rk_t S k_t);  o_t = exp(G_t) rq_t S q_t + sum_j P(t, j) N_j
//   S = exp(G_C) S + sum_j exp(G_C - G_j) rk_j N_j k_j^T
// What needs no state, T, P and the factors of the last two lines, is computed for all chunks at once
// (gdn_chunk_wy_sm90.cu) and kept as an image in scratch memory; then a block for each head of each request carries the
// state from chunk to chunk (gdn_chunk_state_sm90.cu).
// Source: Yang et al. 2024, Gated Delta Networks; ratios of decays as in kernels/cpu/gdn_chunk.h.
#pragma once
#include <cuda.h>

#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/gdn/gated_delta_rule.cuh"

namespace headrace::cuda {

namespace gdn {

constexpr int kDim = 128, kChunk = 64, kGroupThreads = 128;
constexpr int kTile = kChunk * 128;  // bytes of 64 rows of 64 bfloat16, swizzled in 128 bytes

// A lower triangle of 64 x 64 bfloat16 in blocks of 16 x 16, all columns of a 16 together from the diagonal down; rows
// of 32 bytes, swizzled, so that a strip of columns is an operand of a product.
struct Triangle {
  static constexpr int kBytes = 10 * 512, kStrips = 4;
  static __host__ __device__ constexpr int strip(int s) { return s * 2048 - 256 * s * (s - 1); }
  static __host__ __device__ constexpr int strip_bytes(int s) { return 2048 - 512 * s; }
};
// Where the 8 columns `half` (0 or 1) of a row begin in rows of 16 bfloat16 with the 32-byte swizzle.
__device__ inline int in_rows_of_16(int row, int half) { return row * 32 + ((half ^ row >> 2) & 1) * 16; }
// Where columns [8 eighth, 8 eighth + 8) of a row are, at or left of the diagonal's block.
__device__ inline int in_triangle(int row, int eighth) {
  const int s = eighth / 2;
  return Triangle::strip(s) - 512 * s + in_rows_of_16(row, eighth % 2);
}

// What is known of a chunk before its state is: T and P, factors of each token, exp(G_C).
struct Image {
  static constexpr int kT = 0, kP = Triangle::kBytes, kScales = 2 * Triangle::kBytes;
  static constexpr int kLast = static_cast<int>(kScales + sizeof(float) * 4 * kChunk);
  static constexpr int kBytes = kLast + 128;
};
struct Scales {
  float state[kChunk];   // -beta exp(G) rk: of S k, and in W
  float value[kChunk];   // beta: of v
  float query[kChunk];   // exp(G) rq: of S q
  float update[kChunk];  // exp(G_C - G) rk: of N
};

// W = -T diag(beta exp(G) rk) K [64, 128], in halves of 64 columns with the 128-byte swizzle: N = T (beta v) + W S,
// which is one product less from a state to the next where a half of a head has a block of its own.
constexpr int kKeysBytes = 2 * kTile;

// Chunks [first, first + count) of every request, in one launch of both kernels.
struct Pass {
  char* images;   // of the requests' chunks, one after the other, all heads of a chunk together
  char* keys;     // W in the same order; null where the carriers do without
  float* states;  // [requests, heads, 128, 128] between passes
  int first, count;
};

// Where chunks begin and end: every 64 tokens from the request's first, and at each snapshot.
struct Walk {
  int done = 0, tokens, snapshot, request;

  __device__ Walk(const GDNParams& p, int r, int length)
      : tokens(length), snapshot(p.snapshots > 0 ? p.first_snapshot(r) : 0), request(r) {}
  // Tokens of the chunk that starts at `done`; 0 after the last.
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

// Places for chunks of a request in a pass: no fewer than it has.
__device__ inline int places(const GDNParams& p, const Pass& pass, int request) {
  const KeySpan span = p.batch.spans[request];
  if (!p.has(span)) return 0;
  int chunks = (span.q_len + kChunk - 1) / kChunk;
  if (p.snapshots > 0) chunks += p.first_snapshot(request + 1) - p.first_snapshot(request);
  return min(max(chunks - pass.first, 0), pass.count);
}

__device__ inline char* wy_factor_of(const GDNParams& p, const Pass& pass, int place, int head) {
  return pass.images + (int64_t{place} * p.v_heads + head) * Image::kBytes;
}

__device__ inline char* keys_of(const GDNParams& p, const Pass& pass, int place, int head) {
  return pass.keys + (int64_t{place} * p.v_heads + head) * kKeysBytes;
}

// A launch that may begin before the kernel ahead of it has ended (launch.cuh).
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

// Few heads: two blocks for each, so that more multiprocessors have one; the halves never meet, so no bit changes.
inline bool halves_apart(const GDNParams& p, const Stream& stream) {
  return p.requests * p.v_heads * 2 <= stream.num_sms;
}

// The copy engine's views of the op's tensors.
struct Maps {
  CUtensorMap qkv, out;
};

// Where there are several passes, the images of a pass are made while states are carried through the pass before, on
// the multiprocessors that this leaves: so neighbouring passes have images of their own, and the images of a pass are
// complete only when the pass before is.
enum class Start : uint8_t { kAfterAll, kDuringPassBefore };
void gdn_chunk_wy_sm90(const GDNParams& params, const Pass& pass, const Maps& maps, int places, Start start,
                       const Stream& stream);
void gdn_chunk_state_sm90(const GDNParams& params, const Pass& pass, const Maps& maps, const Stream& stream);

}  // namespace gdn
}  // namespace headrace::cuda
