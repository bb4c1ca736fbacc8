// What every CUDA attention kernel is launched with. Kernels read no more of the host's headers than this.
#pragma once
#include <cstdint>

#include "headrace/batch/attention_type.h"
#include "headrace/core/dtype_enum.h"
#include "headrace/ops/op_context.h"

namespace headrace::cuda {

struct Stream;

// One side of the paged pool, or of the new keys.
struct PagedSide {
  const void* data = nullptr;
  DType type = DType::kF32;
  int64_t pages = 0;                                          // of the pool
  int64_t page_stride = 0, head_stride = 0, slot_stride = 0;  // new rows: page_stride is a token's, slot_stride unused
};

// All lengths and kinds are read from `spans` on the device.
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
  float scale = 1, cap = 0;        // scale: times k_scale, since tiles hold what the pool does
  float k_scale = 1, v_scale = 1;  // of a pool of FP8: new rows are divided by them and rounded, as stored ones were
  int window = kNoWindow;
  AttentionType type = AttentionType::kDecoder;
  bool encoder = false;
};

// How many query rows, packed as (token, head of the group), a block takes; and into how many parts a row's keys may be
// cut, each by a block of its own.
struct AttentionShape {
  int min_rows = INT32_MAX, max_rows = 0;  // of a request: new tokens times heads of a group
  int64_t requests = 0;                    // that have rows, about
  // Blocks over all requests, by rows of a block.
  int64_t tiles16 = 0, tiles64 = 0, tiles128 = 0, tiles192 = 0;
  int max_keys = 0;   // that the page table and the batch allow a row
  int seen_keys = 0;  // that a row sees at most, as far as the host knows: what is chosen by it is right for more, too
  Determinism determinism = Determinism::kFast;
};

// What the pool holds: numbers of the queries' type, or codes of FP8, which are copied as they are and unpacked:
// to half floats on Hopper, else to the queries' type.
enum class PoolElements : uint8_t { kFloats, kCodes };

}  // namespace headrace::cuda
