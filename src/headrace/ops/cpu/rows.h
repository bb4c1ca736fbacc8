// CPU kernels of row-wise ops: rms_norm, rotary_embedding, pointwise, embedding.
#pragma once
#include "headrace/ops/cpu/float_type.h"
#include "headrace/ops/cpu/isa.h"
#include "headrace/ops/embedding.h"
#include "headrace/ops/pointwise.h"
#include "headrace/ops/rms_norm.h"
#include "headrace/ops/rotary_embedding.h"

namespace headrace::cpu {

// [tokens, heads, dim] with strides in elements; the last dimension is contiguous.
struct Rows {
  void* data = nullptr;
  long token_stride = 0, head_stride = 0;
  FloatType type = FloatType::kF32;
};

struct RMSNormParams {
  Rows x, gate, out;  // gate.data null: none
  const void* weight = nullptr;
  FloatType weight_type = FloatType::kF32;
  long tokens = 0, heads = 0, dim = 0;
  float eps = 0, weight_offset = 0;
  int threads = 1;
};

struct RotaryEmbeddingParams {
  Rows x;
  const int* positions = nullptr;
  const float* inv_freq = nullptr;
  long tokens = 0, heads = 0, half = 0;
  float magnitude = 1;
  int threads = 1;
  bool has_axes = false;
  RotarySections sections;  // used if positions have axes
  long axis_stride = 0;     // stride between the axes of positions
};

struct PointwiseParams {
  PointwiseKind kind = PointwiseKind::kAdd;
  Rows x, y, out;
  long tokens = 0, dim = 0, x_dim = 0;  // x_dim 1: one factor per row
  int threads = 1;
};

struct EmbeddingParams {
  Rows table, out;
  const int* ids = nullptr;
  long tokens = 0, dim = 0;
  int threads = 1;
};

// args must be checked.
RMSNormParams params_of(const RMSNormArgs& args, const OpContext& context);
RotaryEmbeddingParams params_of(const RotaryEmbeddingArgs& args, const OpContext& context);
PointwiseParams params_of(const PointwiseArgs& args, const OpContext& context);
EmbeddingParams params_of(const EmbeddingArgs& args, const OpContext& context);

HR_DECLARE_PER_ISA(void rms_norm(const RMSNormParams& params))
HR_DECLARE_PER_ISA(void rotary_embedding(const RotaryEmbeddingParams& params))
HR_DECLARE_PER_ISA(void pointwise(const PointwiseParams& params))
HR_DECLARE_PER_ISA(void embedding(const EmbeddingParams& params))

}  // namespace headrace::cpu
