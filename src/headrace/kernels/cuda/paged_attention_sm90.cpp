// Which calls the Hopper kernels take, and what they are launched with.
#include <cuda.h>

#include <algorithm>

#include "headrace/kernels/cuda/attention_sm90.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kLeastPage = 8;  // slots: the swizzle repeats after 8 rows

// A copy needs a base and strides of 16 bytes.
bool copies(const PagedSide& side, DType type) {
  return side.data != nullptr && side.type == type && reinterpret_cast<uintptr_t>(side.data) % 16 == 0 &&
         side.page_stride % 8 == 0 && side.head_stride % 8 == 0 && side.slot_stride % 8 == 0;
}

bool fits(const AttentionParams& p, const Stream& stream) {
  if (stream.arch != 90 || (p.q_type != DType::kBF16 && p.q_type != DType::kF16)) return false;
  if (!copies(p.k, p.q_type) || !copies(p.v, p.q_type)) return false;
  if (p.k_new.data != nullptr && (!copies(p.k_new, p.q_type) || !copies(p.v_new, p.q_type))) return false;
  const bool rows = reinterpret_cast<uintptr_t>(p.q) % 16 == 0 && p.q_token_stride % 8 == 0 && p.q_head_stride % 8 == 0;
  const bool out =
      reinterpret_cast<uintptr_t>(p.out) % 4 == 0 && p.out_token_stride % 2 == 0 && p.out_head_stride % 2 == 0;
  return rows && out && p.page_size >= kLeastPage && p.head_dim % 8 == 0 && p.v_head_dim % 8 == 0 &&
         std::max(p.head_dim, p.v_head_dim) <= 256 && p.scale > 0;
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encoder() {
  static const EncodeTiled encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
               "finding cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTiled>(function);
  }();
  return encode;
}

CUtensorMap map_of(const AttentionParams& p, const PagedSide& side, int dim, int tile_keys) {
  CUtensorMap map{};
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(p.page_size),
                               static_cast<cuuint64_t>(p.kv_heads), static_cast<cuuint64_t>(side.pages)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(side.slot_stride) * 2,
                                 static_cast<cuuint64_t>(side.head_stride) * 2,
                                 static_cast<cuuint64_t>(side.page_stride) * 2};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(std::min(p.page_size, tile_keys)), 1, 1},
                   steps[4] = {1, 1, 1, 1};
  const CUresult status =
      encoder()(&map, p.q_type == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
                const_cast<void*>(side.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HR_REQUIRE(status == CUDA_SUCCESS, ErrorCode::kCuda, "cuda paged_attention: no tensor map for a pool of ", side.pages,
             " pages of ", p.page_size, " slots of ", dim, ": driver error ", static_cast<int>(status));
  return map;
}

// Keys are cut where there are few tiles of rows, or requests of unlike length.
PartPlan plan_of(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  PartPlan plan{.arrived = stream.counters + 2, .queue = stream.counters};
  const bool tall = shape.max_rows > 64;
  const int64_t tiles = tall ? shape.tiles128 : shape.tiles64, blocks = tiles * p.kv_heads;
  const int64_t counters = blocks * (tall ? 2 : 1);
  if (shape.determinism == Determinism::kStrict || blocks >= 8 * stream.num_sms || counters > Stream::kCounters - 2)
    return plan;
  const int64_t rows = int64_t{p.tokens} * p.heads, row_bytes = (p.v_head_dim + 2) * int64_t{sizeof(float)};
  const int64_t fits = static_cast<int64_t>(stream.scratch_bytes) / (rows * row_bytes);
  plan.max_parts = static_cast<int>(std::clamp<int64_t>(fits, 1, 128));
  plan.states = static_cast<float2*>(stream.scratch);
  plan.values = reinterpret_cast<float*>(plan.states + rows * plan.max_parts);
  return plan;
}

}  // namespace

bool paged_attention_sm90(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (!fits(p, stream)) return false;
  const int dim = std::max(p.head_dim, p.v_head_dim), tile_keys = dim > 128 ? 64 : 128;
  const KVMaps maps{.k = map_of(p, p.k, p.head_dim, tile_keys), .v = map_of(p, p.v, p.v_head_dim, tile_keys)};
  const PartPlan plan = plan_of(p, shape, stream);
  const auto attend = dim <= 64 ? attend_sm90_64 : dim <= 128 ? attend_sm90_128 : attend_sm90_256;
  attend(maps, p, plan, shape.max_rows, stream);
  return true;
}

}  // namespace headrace::cuda
