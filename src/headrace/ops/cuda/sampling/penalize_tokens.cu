// One thread per new token, which sets its bit; then one thread per 32-bit word of a row's token-occurrence bitmap.
#include "headrace/ops/penalize_tokens.h"

#include "headrace/core/error.h"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/stream.h"
#include "headrace/ops/penalty.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;

struct Params {
  float* logits;
  int64_t stride, words;  // words per text
  int vocab, added;
  uint32_t* seen;
  const int32_t *new_ids, *new_texts, *texts;
  const float* penalties;
};

__global__ void __launch_bounds__(kThreads) note(const __grid_constant__ Params p) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= p.added) return;
  const int id = p.new_ids[i];
  if (id >= 0 && id < p.vocab) atomicOr(p.seen + p.new_texts[i] * p.words + id / 32, 1u << id % 32);
}

__global__ void __launch_bounds__(kThreads) penalize(const __grid_constant__ Params p) {
  const int word = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), row = static_cast<int>(blockIdx.y);
  const int text = p.texts[row];
  if (text < 0 || word * 32 >= p.vocab) return;
  uint32_t bits = p.seen[text * p.words + word];
  const float penalty = p.penalties[row];
  float* logits = p.logits + row * p.stride + word * 32;
  for (; bits != 0; bits &= bits - 1) {
    float& logit = logits[__ffs(static_cast<int>(bits)) - 1];
    logit = penalized(logit, penalty);
  }
}

}  // namespace

void penalize_tokens(const PenalizeTokensArgs& a, const OpContext& context) {
  check(a);
  constexpr int64_t kMostRows = 65535;  // limit of a grid's y dimension
  HR_REQUIRE(a.logits.dim(0) <= kMostRows, ErrorCode::kInvalidArgument, "penalize_tokens: ", a.logits.dim(0),
             " rows, expected at most ", kMostRows);
  const auto rows = static_cast<unsigned>(a.logits.dim(0));
  const Params p{.logits = static_cast<float*>(a.logits.data()),
                 .stride = a.logits.stride(0),
                 .words = a.seen.dim(1),
                 .vocab = a.vocab,
                 .added = a.new_ids ? static_cast<int>(a.new_ids.numel()) : 0,
                 .seen = static_cast<uint32_t*>(a.seen.data()),
                 .new_ids = static_cast<const int32_t*>(a.new_ids.data()),
                 .new_texts = static_cast<const int32_t*>(a.new_texts.data()),
                 .texts = static_cast<const int32_t*>(a.texts.data()),
                 .penalties = static_cast<const float*>(a.penalties.data())};
  const auto blocks = [](int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); };
  const Stream& stream = stream_of(context);
  if (p.added > 0) note<<<blocks(p.added), kThreads, 0, stream.handle>>>(p);
  if (rows > 0) penalize<<<dim3(blocks(a.words_of(a.vocab)), rows), kThreads, 0, stream.handle>>>(p);
  check_launch("penalize_tokens");
}

}  // namespace headrace::cuda
