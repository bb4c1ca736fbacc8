// Scales of an int8 pool, as kernels take them.
#pragma once

namespace headrace::cpu {

// [page, kv head, slot]; strides in elements. Null for pools of other types.
struct TokenScales {
  float* data = nullptr;
  long page_stride = 0, head_stride = 0, slot_stride = 0;
};

}  // namespace headrace::cpu
