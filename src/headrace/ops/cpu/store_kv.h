// CPU kernel of store_kv.
#pragma once
#include "headrace/ops/cpu/float_type.h"
#include "headrace/ops/cpu/isa.h"
#include "headrace/ops/cpu/token_scales.h"
#include "headrace/ops/store_kv.h"

namespace headrace::cpu {

// One pool array and its new rows; strides in elements.
struct StoreRows {
  const void* from = nullptr;
  void* pool = nullptr;
  long from_token_stride = 0, from_head_stride = 0;
  long page_stride = 0, head_stride = 0, slot_stride = 0;
  long dim = 0;
  float scale = 1;  // of an FP8 pool
  TokenScales token_scales = {};
};

struct StoreKVParams {
  StoreRows k, v;
  const long* slots = nullptr;
  long num_tokens = 0, num_heads = 0, page_size = 0;
  FloatType from_type = FloatType::kF32, pool_type = FloatType::kF32;
  int threads = 1;
};

StoreKVParams params_of(const StoreKVArgs& args, const OpContext& context);  // args must be checked

HR_DECLARE_PER_ISA(void store_kv(const StoreKVParams& params))

}  // namespace headrace::cpu
