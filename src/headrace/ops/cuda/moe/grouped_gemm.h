// Grouped GEMM: sorted rows, each tile with the weights of its own expert.
#pragma once
#include "headrace/ops/activation.h"
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/moe/expert_groups.h"
#include "headrace/ops/cuda/moe/moe_plan.h"

namespace headrace::cuda {

// One grouped GEMM. The pointers are to device memory and not owned.
struct GroupedGemm {
  ExpertGroups groups;
  Rows x;  // row order[i] / k for place i, or row i itself when k is 0
  int32_t k = 0;
  const int64_t* addresses;  // [experts, 3]: device addresses of gate, up, down
  DType weight_type;
  Activation activation = Activation::kSilu;
  enum class Projection : uint8_t {
    kGateUp,  // y[i] = act(x gate^T) * (x up^T)
    kDown,    // y[order[i]] = x down^T
  } projection = Projection::kGateUp;
  int32_t in = 0, out = 0;
  int32_t first = 0;  // kDown on sm_90: the channel that y begins with; `out` counts from there
  Rows y;
};

// WGMMA (sm_90): bfloat16 or float16, K (`in`) and N (`out`) multiples of 64. A sum is one chain of k16 MMAs in
// ascending k whatever the tile, so its order depends on K alone. Returns true if the kernel takes the call.
bool grouped_sm90_supports(const GroupedGemm& gemm, const Stream& stream);
void grouped_gemm_sm90(const GroupedGemm& gemm, const Stream& stream);
// mma.sync: bfloat16 or float16, K a multiple of 8. The order of a sum depends on K alone.
bool grouped_supports(const GroupedGemm& gemm);
void grouped_gemm(const GroupedGemm& gemm, const Stream& stream);
// SIMT: any dtypes, slow; adds over K sequentially.
void simt_grouped_gemm(const GroupedGemm& gemm, const Stream& stream);

}  // namespace headrace::cuda
