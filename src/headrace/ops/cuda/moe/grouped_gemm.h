// Products of sorted rows, each tile with the weights of its own expert.
#pragma once
#include "headrace/ops/activation.h"
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/moe/expert_groups.h"
#include "headrace/ops/cuda/moe/moe_plan.h"

namespace headrace::cuda {

struct GroupedGemm {
  ExpertGroups groups;
  Rows x;  // row order[i] / k for place i, or row i itself when k is 0
  int32_t k = 0;
  const int64_t* addresses;  // [experts, 3]: gate, up, down
  DType weight_type;
  Activation activation = Activation::kSilu;
  enum class Of : uint8_t {
    kGateUp,  // y[i] = act(x gate^T) * (x up^T)
    kDown,    // y[order[i]] = x down^T
  } of = Of::kGateUp;
  int32_t in = 0, out = 0;
  int32_t first = 0;  // of down, in the Hopper kernel: the channel that y begins with, of out from there on
  Rows y;
};

// On sm_90, bfloat16 or float16, `in` and `out` multiples of 64. The order of a sum depends on `in` alone: a chain of
// k16 products in ascending k, whatever the tile.
bool grouped_sm90_supports(const GroupedGemm& product, const Stream& stream);
void grouped_gemm_sm90(const GroupedGemm& product, const Stream& stream);
// bfloat16 or float16, `in` a multiple of 8. The order of a sum depends on `in` alone.
bool grouped_supports(const GroupedGemm& product);
void grouped_gemm(const GroupedGemm& product, const Stream& stream);
// Any dtypes, slowly; the sum over `in` is sequential.
void simt_grouped_gemm(const GroupedGemm& product, const Stream& stream);

}  // namespace headrace::cuda
