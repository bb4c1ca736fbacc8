// Which calls the tensor-core kernels take.
#include "headrace/kernels/cuda/paged_attention.h"

#include <algorithm>

#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {

// One of these for each head size and kind of pool, in a file of its own: they are slow to compile.
void attend_mma_64(const AttentionParams& p, const AttentionShape& shape, const Stream& stream);
void attend_mma_128(const AttentionParams& p, const AttentionShape& shape, const Stream& stream);
void attend_mma_256(const AttentionParams& p, const AttentionShape& shape, const Stream& stream);
void attend_mma_codes_64(const AttentionParams& p, const AttentionShape& shape, const Stream& stream);
void attend_mma_codes_128(const AttentionParams& p, const AttentionShape& shape, const Stream& stream);
void attend_mma_codes_256(const AttentionParams& p, const AttentionShape& shape, const Stream& stream);

namespace {

// 16-byte copies need rows that start on 16 bytes.
bool aligned(const PagedSide& side, DType type) {
  if (side.data == nullptr) return true;
  const int64_t chunk = 16 / size_of(side.type);
  return side.type == type && reinterpret_cast<uintptr_t>(side.data) % 16 == 0 && side.page_stride % chunk == 0 &&
         side.head_stride % chunk == 0 && side.slot_stride % chunk == 0;
}

}  // namespace

bool fits_mma(const AttentionParams& p) {
  if (p.q_type != DType::kBF16 && p.q_type != DType::kF16) return false;
  const bool codes = p.key_type == DType::kE4M3;
  for (const PagedSide* side : {&p.k, &p.v}) {
    if (!aligned(*side, codes ? DType::kE4M3 : p.q_type)) return false;
  }
  for (const PagedSide* side : {&p.k_new, &p.v_new}) {
    if (!aligned(*side, p.q_type)) return false;
  }
  const bool rows = reinterpret_cast<uintptr_t>(p.q) % 16 == 0 && p.q_token_stride % 8 == 0 && p.q_head_stride % 8 == 0;
  const bool out =
      reinterpret_cast<uintptr_t>(p.out) % 4 == 0 && p.out_token_stride % 2 == 0 && p.out_head_stride % 2 == 0;
  const int chunk = codes ? 16 : 8;
  return rows && out && p.head_dim % chunk == 0 && p.v_head_dim % chunk == 0 &&
         std::max(p.head_dim, p.v_head_dim) <= 256;
}

bool paged_attention_mma(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (!fits_mma(p)) return false;
  const int dim = std::max(p.head_dim, p.v_head_dim);
  const bool codes = p.key_type == DType::kE4M3;
  if (dim <= 64) {
    (codes ? attend_mma_codes_64 : attend_mma_64)(p, shape, stream);
  } else if (dim <= 128) {
    (codes ? attend_mma_codes_128 : attend_mma_128)(p, shape, stream);
  } else {
    (codes ? attend_mma_codes_256 : attend_mma_256)(p, shape, stream);
  }
  return true;
}

}  // namespace headrace::cuda
