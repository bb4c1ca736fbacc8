// Host side of the sm_90 grouped GEMM: which calls it takes, and the TMA descriptor of the weights.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/tensor_map.h"
#include "headrace/ops/cuda/moe/sm90/grouped_gemm.cuh"

namespace headrace::cuda {
namespace grouped {

CUtensorMap map_of_weights(const GroupedGemm& p) {
  CUtensorMap map{};
  const auto row = static_cast<cuuint64_t>(p.in) * 2;
  const auto rows = static_cast<cuuint64_t>(p.first) + static_cast<cuuint64_t>(p.out);
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(p.in), rows, kNearSteps, kFarSteps};
  const cuuint64_t strides[3] = {row, kNearStep, kFarStep};
  const cuuint32_t box[4] = {kDepth, kBlockRows, 1, 1}, steps[4] = {1, 1, 1, 1};
  const CUresult status = tensor_map_encoder()(
      &map, p.weight_type == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
      reinterpret_cast<void*>(kFirstAddress), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HR_REQUIRE(status == CUDA_SUCCESS, ErrorCode::kCuda, "cuda expert_mlp: no tensor map for experts of ", p.out, " x ",
             p.in, ": driver error ", static_cast<int>(status));
  return map;
}

extern template void multiply_of<__nv_bfloat16>(const GroupedGemm& gemm, const Stream& stream);
extern template void multiply_of<__half>(const GroupedGemm& gemm, const Stream& stream);

}  // namespace grouped

bool grouped_sm90_supports(const GroupedGemm& p, const Stream& stream) {
  return stream.arch == 90 && grouped_supports(p) && p.in % grouped::kDepth == 0 && p.out % grouped::kDepth == 0;
}

void grouped_gemm_sm90(const GroupedGemm& p, const Stream& stream) {
  p.x.type == DType::kBF16 ? grouped::multiply_of<__nv_bfloat16>(p, stream) : grouped::multiply_of<__half>(p, stream);
}

}  // namespace headrace::cuda
