// Chunked gated delta rule on Hopper, host side: supported calls, and the passes in which the two kernels run.
#include <algorithm>
#include <iterator>

#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/tensor_map.h"
#include "headrace/ops/cuda/gdn/gdn_plan.h"
#include "headrace/ops/cuda/gdn/sm90/chunk.cuh"

namespace headrace::cuda {
namespace {

using namespace gdn;

constexpr int kMaxGroup = 8;  // value heads per key head

// Creates a TMA descriptor with boxes of 64 tokens x 64 dimensions of a head; rows past the end read as zeros. For qkv
// all channels count as one head. Throws Error kCuda if the driver rejects it.
CUtensorMap map_of(const char* name, const TensorView& x) {
  CUtensorMap map{};
  const bool heads = x.rank() == 3;
  const auto token = static_cast<cuuint64_t>(x.stride(0)) * 2, all = token * static_cast<cuuint64_t>(x.dim(0));
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(x.dim(x.rank() - 1)),
                               static_cast<cuuint64_t>(heads ? x.dim(1) : x.dim(0)),
                               static_cast<cuuint64_t>(heads ? x.dim(0) : 1), 1};
  const cuuint64_t strides[3] = {heads ? static_cast<cuuint64_t>(x.stride(1)) * 2 : token, heads ? token : all, all};
  const cuuint32_t box[4] = {64, heads ? 1U : kChunk, heads ? kChunk : 1U, 1}, steps[4] = {1, 1, 1, 1};
  const CUresult status = tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, x.data(), sizes, strides, box,
                                               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HR_REQUIRE(status == CUDA_SUCCESS, ErrorCode::kCuda, "cuda gated_delta_rule: no tensor map for ", name, " of shape ",
             x.shape(), ": driver error ", static_cast<int>(status));
  return map;
}

int64_t chunks_of(const KeySpan& span) { return (span.q_len + kChunk - 1) / kChunk; }

// Returns the bytes of a place.
int64_t chunk_bytes(const GDNParams& p, const Stream& stream) {
  return int64_t{p.v_heads} * (WYFactors::kBytes + (halves_apart(p, stream) ? kKeysBytes : 0));
}
// Returns the places that fit in scratch memory beside `states` states of all heads.
int64_t room(const GDNParams& p, const Stream& stream, int64_t states) {
  const int64_t state_bytes = states * p.v_heads * kDim * kDim * 4;
  return (static_cast<int64_t>(stream.scratch_bytes) - state_bytes) / chunk_bytes(p, stream);
}

GDNChunks chunks_of(const GatedDeltaRuleArgs& a, const GDNParams& p, const Stream& stream) {
  const auto requests = std::ssize(a.spans), snapshots = std::ssize(a.snapshots);
  int64_t longest = 0;
  for (const KeySpan& span : a.spans) longest = std::max(longest, chunks_of(span) + snapshots);
  return {.requests = requests,
          .heads = p.v_heads,
          .longest = longest,
          .needed = (a.qkv.dim(0) + kChunk - 1) / kChunk + requests + snapshots,  // upper bound
          .room = room(p, stream, 0),
          .room_for_passes = room(p, stream, requests),
          .num_sms = stream.num_sms,
          .lengths_known = a.on_device->most_rows == 0};
}

}  // namespace

bool gdn_chunk_sm90_supports(const GatedDeltaRuleArgs& a, const Stream& stream) {
  const auto aligned = [](const TensorView& t) {
    return reinterpret_cast<uintptr_t>(t.data()) % 16 == 0 && t.stride(0) % 8 == 0;
  };
  return stream.arch == 90 && a.qkv.dtype() == DType::kBF16 && a.out.dtype() == DType::kBF16 &&
         a.head_k_dim() == kDim && a.head_v_dim() == kDim && aligned(a.qkv) && aligned(a.out) &&
         a.out.stride(1) % 8 == 0 && a.num_v_heads() / a.num_k_heads <= kMaxGroup &&
         GDNPasses::serve(chunks_of(a, params_of(a), stream));
}

void gdn_chunk_sm90(const GatedDeltaRuleArgs& a, const GDNParams& p, const Stream& stream) {
  const Maps maps{.qkv = map_of("qkv", a.qkv), .out = map_of("out", a.out)};
  const GDNChunks chunks = chunks_of(a, p, stream);
  const GDNPasses passes(chunks);
  char* const wy_factors = static_cast<char*>(stream.scratch);
  const auto run = [&](Pass pass, int64_t needed, Start start) {
    if (halves_apart(p, stream)) pass.keys = pass.wy_factors + passes.places() * p.v_heads * WYFactors::kBytes;
    gdn_chunk_wy_sm90(p, pass, maps, static_cast<int>(needed), start, stream);
    gdn_chunk_state_sm90(p, pass, maps, stream);
  };
  if (passes.is_one()) {
    const Pass all{.wy_factors = wy_factors, .keys = nullptr, .states = nullptr, .first = 0, .count = INT32_MAX};
    return run(all, chunks.needed, Start::kAfterAll);
  }
  const int64_t buffer_bytes = passes.places() * chunk_bytes(p, stream);
  auto* const states = reinterpret_cast<float*>(wy_factors + passes.num_buffers() * buffer_bytes);
  for (GDNPass pass = passes.first(); !passes.behind(pass); pass = passes.after(pass)) {
    int64_t needed = 0;
    for (const KeySpan& span : a.spans) {
      needed += std::clamp<int64_t>(chunks_of(span) + std::ssize(a.snapshots) - pass.first, 0, pass.count);
    }
    run({.wy_factors = wy_factors + pass.buffer * buffer_bytes,
         .keys = nullptr,
         .states = states,
         .first = static_cast<int>(pass.first),
         .count = static_cast<int>(pass.count)},
        needed, passes.overlap() && pass.first > 0 ? Start::kDuringPassBefore : Start::kAfterAll);
  }
}

}  // namespace headrace::cuda
