// A warp reads 32 words of a mask, one per lane. It then takes word after word, one lane per bit, so that its stores
// are to consecutive logits.
#include "headrace/ops/mask_tokens.h"

#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kAllBits = 0xffffffffu;

struct Params {
  float* logits;
  int64_t stride, words;  // words: from one mask to the next
  int vocab, blocks;      // blocks: CTAs per mask
  const int32_t* rows;
  const uint32_t* bits;
};

// Returns a word of a mask; bits of ids from `vocab` on are 1.
__device__ inline uint32_t word_of(const Params& p, int mask, int word) {
  const int ids = p.vocab - word * 32;
  if (ids <= 0) return kAllBits;
  const uint32_t bits = p.bits[mask * p.words + word];
  return ids < 32 ? bits | kAllBits << ids : bits;
}

__global__ void __launch_bounds__(kThreads) forbid(const __grid_constant__ Params p) {
  pdl_launch_dependents();
  pdl_wait();
  const int mask = static_cast<int>(blockIdx.x) / p.blocks, lane = threadIdx.x % 32;
  const int word = static_cast<int>(blockIdx.x) % p.blocks * kThreads + static_cast<int>(threadIdx.x);
  const uint32_t own = word_of(p, mask, word);
  float* logits = p.logits + p.rows[mask] * p.stride + (word - lane) * 32 + lane;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const uint32_t bits = __shfl_sync(kAllBits, own, i);
    if ((bits >> lane & 1) == 0) logits[i * 32] = -INFINITY;
  }
}

}  // namespace

void mask_tokens(const MaskTokensArgs& a, const OpContext& context) {
  check(a);
  const int64_t masks = a.rows.numel();
  if (masks == 0) return;
  const Params p{.logits = static_cast<float*>(a.logits.data()),
                 .stride = a.logits.stride(0),
                 .words = a.bits.dim(1),
                 .vocab = a.vocab,
                 .blocks = static_cast<int>((a.words_of(a.vocab) + kThreads - 1) / kThreads),
                 .rows = static_cast<const int32_t*>(a.rows.data()),
                 .bits = static_cast<const uint32_t*>(a.bits.data())};
  launch_pdl(stream_of(context), forbid, dim3(static_cast<unsigned>(masks * p.blocks)), dim3(kThreads), 0, p,
             "mask_tokens", {.share = SharedShare::kAll});  // as token_confidence, which follows
}

}  // namespace headrace::cuda
