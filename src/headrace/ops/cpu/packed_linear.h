// CPU kernel of a GEMM with quantised weights and int8 activations.
#pragma once
#include "headrace/core/packed_matrix.h"
#include "headrace/ops/cpu/float_type.h"
#include "headrace/ops/cpu/isa.h"
#include "headrace/ops/linear.h"

namespace headrace::cpu {

struct PackedLinearParams {
  BlockFormat format = BlockFormat::kQ8_0;
  const unsigned char* weight = nullptr;  // PackedMatrix::data
  const void* x = nullptr;
  const void* bias = nullptr;  // null: none
  void* y = nullptr;
  long rows = 0, in = 0, out = 0;
  long x_stride = 0, y_stride = 0;
  const int* column_order = nullptr;  // of PackedMatrix
  long column_unit = 0;
  FloatType x_type = FloatType::kF32, bias_type = FloatType::kF32, y_type = FloatType::kF32;
  int threads = 1;
};

PackedLinearParams packed_params_of(const LinearArgs& args, const OpContext& context);  // args must be checked

// y = x W^T + bias. Each row of x is rounded to int8 in groups of 32 columns: code = round(x 127 / amax), ties to even,
// scale = amax / 127, in float32. A group whose amax is below 2^-100 counts as zeros; one with a NaN or an infinity
// makes the whole row of y NaN. Products of codes are summed as integers per group of 32 columns, and an element of y
// is one chain of fused multiply-adds over the groups in ascending order:
//   32-blocks   y += sum (d scale), then y += least (scale sum_x)
//   256-blocks  s += (sum of step codes) scale and m += min_step (scale sum_x) over eight groups, each from 0, then
//               y += d s, y -= dmin m
// where sum_x is the sum of a group's codes of x, and products in parentheses are rounded. The bits are the same on
// every instruction set, with any number of threads, and for a row alone or in a batch.
HR_DECLARE_PER_ISA(void packed_linear(const PackedLinearParams& params))

}  // namespace headrace::cpu
