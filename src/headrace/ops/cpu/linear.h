// CPU kernel of linear.
#pragma once
#include "headrace/ops/cpu/float_type.h"
#include "headrace/ops/cpu/isa.h"
#include "headrace/ops/linear.h"

namespace headrace::cpu {

struct LinearParams {
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;  // null: none
  void* y = nullptr;
  long rows = 0, in = 0, out = 0;
  long x_stride = 0, weight_stride = 0, y_stride = 0;
  FloatType x_type = FloatType::kF32, weight_type = FloatType::kF32, bias_type = FloatType::kF32;
  FloatType y_type = FloatType::kF32;
  // kOneOrder: the order of a row's sums does not depend on the number of rows.
  enum class Sums : unsigned char { kOneOrder, kAnyOrder } sums = Sums::kOneOrder;
  int threads = 1;
};

LinearParams params_of(const LinearArgs& args, const OpContext& context);  // args must be checked

HR_DECLARE_PER_ISA(void linear(const LinearParams& params))

}  // namespace headrace::cpu
