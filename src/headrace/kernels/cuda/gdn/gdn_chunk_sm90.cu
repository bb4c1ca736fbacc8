// The chunked gated delta rule on Hopper: which calls it takes, and the passes in which its two kernels run.
#include <algorithm>

#include "headrace/base/error.h"
#include "headrace/kernels/cuda/gdn/gdn_chunk_sm90.cuh"
#include "headrace/kernels/cuda/primitives/tensor_map.h"

namespace headrace::cuda {
namespace {

using namespace gdn;

constexpr int kMaxGroup = 8;  // value heads of a key head
// Chunks of a request in a pass, where passes overlap: few in the first, whose images nothing hides, then as many more
// as images can be made of during the pass before, since the start of each pass costs microseconds.
constexpr int64_t kFirstChunks = 32, kMostChunks = 128;
int64_t grown(int64_t chunks) { return chunks * 8 / 5; }

// Boxes of 64 tokens and 64 dimensions of a head; rows after the last are zeros. Of qkv all channels are one head.
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

// What a place of a pass takes.
int64_t place_bytes(const GDNParams& p, const Stream& stream) {
  return int64_t{p.v_heads} * (Image::kBytes + (halves_apart(p, stream) ? kKeysBytes : 0));
}
// Places for chunks in scratch memory that also holds `states` states of all heads.
int64_t room(const GDNParams& p, const Stream& stream, int64_t states) {
  const int64_t state_bytes = states * p.v_heads * kDim * kDim * 4;
  return (static_cast<int64_t>(stream.scratch_bytes) - state_bytes) / place_bytes(p, stream);
}

// No lengths need more places.
int64_t places_of_any(const GatedDeltaRuleArgs& a) {
  return (a.qkv.dim(0) + kChunk - 1) / kChunk + static_cast<int64_t>(a.spans.size() + a.snapshots.size());
}

}  // namespace

bool gdn_chunk_sm90_supports(const GatedDeltaRuleArgs& a, const Stream& stream) {
  const auto aligned = [](const TensorView& t) {
    return reinterpret_cast<uintptr_t>(t.data()) % 16 == 0 && t.stride(0) % 8 == 0;
  };
  const auto requests = static_cast<int64_t>(a.spans.size());
  const bool lengths_known = a.on_device->most_rows == 0;  // passes are cut by them
  return stream.arch == 90 && a.qkv.dtype() == DType::kBF16 && a.out.dtype() == DType::kBF16 &&
         a.head_k_dim() == kDim && a.head_v_dim() == kDim && aligned(a.qkv) && aligned(a.out) &&
         a.out.stride(1) % 8 == 0 && a.num_v_heads() / a.num_k_heads <= kMaxGroup &&
         (places_of_any(a) <= room(params_of(a), stream, 0) ||
          (lengths_known && room(params_of(a), stream, requests) >= 2 * requests));
}

// One pass where the images of all chunks have room: then a captured graph serves any lengths with the same sum. More,
// as the lengths of this call need, where they have not, and where a few long requests leave multiprocessors on which
// images can be made meanwhile.
void gdn_chunk_sm90(const GatedDeltaRuleArgs& a, const GDNParams& p, const Stream& stream) {
  const auto requests = static_cast<int64_t>(a.spans.size()), snapshots = static_cast<int64_t>(a.snapshots.size());
  const Maps maps{.qkv = map_of("qkv", a.qkv), .out = map_of("out", a.out)};
  int64_t longest = 0;
  for (const KeySpan& span : a.spans) longest = std::max(longest, chunks_of(span) + snapshots);
  Pass pass{
      .images = static_cast<char*>(stream.scratch), .keys = nullptr, .states = nullptr, .first = 0, .count = INT32_MAX};
  int64_t needed = places_of_any(a);
  const int64_t left = stream.num_sms - 2 * requests * p.v_heads;  // multiprocessors without a half of a head
  const bool overlaps = 8 * left >= stream.num_sms && longest >= 4 * kFirstChunks &&
                        room(p, stream, requests) >= 2 * requests && a.on_device->most_rows == 0;
  if (needed <= room(p, stream, 0) && !overlaps) {
    if (halves_apart(p, stream)) pass.keys = pass.images + needed * p.v_heads * Image::kBytes;
    gdn_prepare_sm90(p, pass, maps, static_cast<int>(needed), Start::kAfterAll, stream);
    gdn_carry_sm90(p, pass, maps, stream);
    return;
  }
  const int64_t buffers = overlaps ? 2 : 1, places = room(p, stream, requests) / buffers;
  const int64_t most = overlaps ? std::min(kMostChunks, places / requests) : places / requests;
  const int64_t passes = (longest + most - 1) / most, buffer_bytes = places * place_bytes(p, stream);
  int64_t count = overlaps ? std::min(kFirstChunks, most) : (longest + passes - 1) / passes;
  char* const images = pass.images;
  pass.states = reinterpret_cast<float*>(images + buffers * buffer_bytes);
  for (int64_t i = 0; pass.first < longest; pass.first += pass.count, ++i) {
    pass.count = static_cast<int>(std::min(count, longest - pass.first));
    if (overlaps) count = std::min(most, grown(count));
    needed = 0;
    for (const KeySpan& span : a.spans) {
      needed += std::clamp<int64_t>(chunks_of(span) + snapshots - pass.first, 0, pass.count);
    }
    pass.images = images + i % buffers * buffer_bytes;
    if (halves_apart(p, stream)) pass.keys = pass.images + places * p.v_heads * Image::kBytes;
    const Start start = overlaps && i > 0 ? Start::kDuringPassBefore : Start::kAfterAll;
    gdn_prepare_sm90(p, pass, maps, static_cast<int>(needed), start, stream);
    gdn_carry_sm90(p, pass, maps, stream);
  }
}

}  // namespace headrace::cuda
