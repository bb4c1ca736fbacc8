// Launch parameters shared by all CUDA attention kernels. Kernel files include this instead of the op's host headers.
#pragma once
#include <cstdint>

#include "headrace/batch/key_span.h"
#include "headrace/core/dtype_enum.h"
#include "headrace/ops/op_context.h"

namespace headrace::cuda {

struct Stream;

// One side (K or V) of the paged pool, or of the new keys. Strides are in elements. The memory is not owned.
struct PagedSide {
  const void* data = nullptr;
  DType type = DType::kF32;
  int64_t pages = 0;                                          // pages in the pool
  int64_t page_stride = 0, head_stride = 0, slot_stride = 0;  // new keys: page_stride is per token, slot_stride unused
};

// Parameters of one paged-attention call. Kernels read all lengths and mask kinds from `spans` on the device. Strides
// are in elements. The caller owns the device memory.
struct AttentionParams {
  const void* q = nullptr;
  void* out = nullptr;
  DType q_type = DType::kF32, key_type = DType::kF32;
  int64_t q_token_stride = 0, q_head_stride = 0, out_token_stride = 0, out_head_stride = 0;
  PagedSide k, v, k_new, v_new;  // k_new.data null: new keys are read from the pool
  const int32_t* page_table = nullptr;
  int64_t table_stride = 0;
  int page_size = 1, page_shift = 0;  // page_size is 1 << page_shift
  const KeySpan* spans = nullptr;
  float* lse = nullptr;
  int64_t lse_stride = 0;
  int requests = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  float scale = 1, cap = 0;  // scale includes k_scale, because K tiles hold the pool's values
  // FP8 pool: new keys and values are divided by these and rounded, exactly as stored ones
  float k_scale = 1, v_scale = 1;
  int window = kNoWindow;
  AttentionType type = AttentionType::kDecoder;
  bool encoder = false;
};

// Sizes that choose a call's kernel and launch. Rows are query rows packed as (token, query head of the GQA group).
struct AttentionShape {
  int min_rows = INT32_MAX, max_rows = 0;  // of a request: new tokens times heads of a GQA group
  int64_t requests = 0;                    // that have rows, approximately
  // Row tiles over all requests, for tiles of 16, 64, 128 and 192 rows.
  int64_t tiles16 = 0, tiles64 = 0, tiles128 = 0, tiles192 = 0;
  int max_keys = 0;   // upper bound per row, from the page table and the batch
  int seen_keys = 0;  // the most that a row sees, as far as the host knows; kernels stay correct for more
  Determinism determinism = Determinism::kFast;
};

// Element type of the pool. kFloats: the queries' type. kFp8: FP8 e4m3, copied as is and then dequantised: to half
// floats on Hopper, else to the queries' type.
enum class PoolElements : uint8_t { kFloats, kFp8 };

}  // namespace headrace::cuda
