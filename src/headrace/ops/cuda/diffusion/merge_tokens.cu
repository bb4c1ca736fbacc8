// Soft embeddings of merged tokens: one CTA per row. Sums are double, as on the CPU, but in another order.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;

struct Params {
  const uint8_t* mask;
  const int64_t* ids;  // [tokens, k]
  const float* probs;  // [tokens, k]
  const float* residual;
  int64_t k, hidden, mask_token_id;
  bool keep_length;  // keep the summands' total length: TokenMerge::Length::kOfParts
  Rows table, x;
};

// Returns the sum over the CTA, in every thread.
__device__ double block_sum(double x) {
  __shared__ double of_warp[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  __syncthreads();  // the previous sums have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += of_warp[w];
  return sum;
}

// Returns summand j of a row at dimension d; the last one is the mask token's.
__device__ inline double part_of(const Params& p, int64_t token, int64_t j, int64_t d) {
  const int64_t at = token * p.k + j;
  const float weight = j < p.k ? p.probs[at] : p.residual[token];
  const int64_t id = j < p.k ? p.ids[at] : p.mask_token_id;
  return static_cast<double>(weight) * static_cast<double>(p.table.get(id, 0, d));
}

__device__ inline double blended(const Params& p, int64_t token, int64_t d) {
  double sum = 0;
  for (int64_t j = 0; j <= p.k; ++j) sum += part_of(p, token, j, d);
  return sum;
}

// Returns the factor that gives the sum the total length of its summands.
__device__ double scale_of(const Params& p, int64_t token) {
  double parts = 0, length = 0;
  for (int64_t j = 0; j <= p.k; ++j) {
    double squares = 0;
    for (int64_t d = threadIdx.x; d < p.hidden; d += kThreads) {
      const double part = part_of(p, token, j, d);
      squares += part * part;
    }
    parts += sqrt(block_sum(squares));
  }
  for (int64_t d = threadIdx.x; d < p.hidden; d += kThreads) {
    const double sum = blended(p, token, d);
    length += sum * sum;
  }
  return parts / fmax(sqrt(block_sum(length)), 1e-12);
}

__global__ void __launch_bounds__(kThreads) blend(const __grid_constant__ Params p) {
  const int64_t token = blockIdx.x;
  if (p.mask[token] == 0) return;
  const double scale = p.keep_length ? scale_of(p, token) : 1;
  for (int64_t d = threadIdx.x; d < p.hidden; d += kThreads) {
    p.x.set(token, 0, d, static_cast<float>(blended(p, token, d) * scale));
  }
}

}  // namespace

void merge_tokens(const MergeTokensArgs& a, const OpContext& context) {
  check(a);
  if (a.x.numel() == 0) return;
  const TokenMerge& m = a.merge;
  HR_REQUIRE(m.ids.is_contiguous() && m.probs.is_contiguous(), ErrorCode::kInvalidArgument,
             "token merge: ids and probs are expected to be dense");
  const Params p{.mask = static_cast<const uint8_t*>(m.mask.data()),
                 .ids = static_cast<const int64_t*>(m.ids.data()),
                 .probs = static_cast<const float*>(m.probs.data()),
                 .residual = static_cast<const float*>(m.residual.data()),
                 .k = m.ids.dim(1),
                 .hidden = a.x.dim(1),
                 .mask_token_id = m.mask_token_id,
                 .keep_length = m.length != TokenMerge::Length::kAsSummed,
                 .table = Rows(a.table),
                 .x = Rows(a.x)};
  blend<<<static_cast<unsigned>(a.x.dim(0)), kThreads, 0, stream_of(context).handle>>>(p);
  check_launch("token merge");
}

}  // namespace headrace::cuda
