#include <algorithm>
#include <span>

#include "headrace/batch/attn_metadata.h"
#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/arch/request_tiles.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/limits.h"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kTokens = 64, kChannels = 128;  // per CTA

struct Params {
  Rows x, out;
  const void* weight;
  void* state;
  DType weight_type, state_type;
  bool weight_in_pieces;  // weights have x's dtype, dense taps and 16-byte alignment: Vec8 loads
  int64_t weight_stride, slot_stride, channel_stride;
  int channels, kernel, requests, snapshots;
  DeviceMetadata batch;

  // Returns raw input `t` of channel c, counted from the request's first token; t < 0 reads the state.
  __device__ float input(const KeySpan& span, int read, int c, int t) const {
    if (t >= 0) return x.get(span.q_off + t, 0, c);
    if (read == kNoState) return 0;
    return load(state, state_type, read * slot_stride + c * channel_stride + kernel - 1 + t);
  }
  // Saves the inputs before token `tokens` to state `slot`. Reads all of them first: `read` and `slot` may be equal.
  __device__ void save(const KeySpan& span, int read, int slot, int c, int tokens) const {
    float kept[kMostConvWidth - 1];
    for (int j = 0; j < kernel - 1; ++j) kept[j] = input(span, read, c, tokens - (kernel - 1) + j);
    for (int j = 0; j < kernel - 1; ++j) store(state, state_type, slot * slot_stride + c * channel_stride + j, kept[j]);
  }
};

__global__ void convolve(Params p) {
  const TilePlace place = locate_tile(p.batch.spans, p.requests, kTokens, blockIdx.x);
  const int c = blockIdx.y * kChannels + threadIdx.x;
  if (place.request < 0 || c >= p.channels) return;
  const KeySpan span = p.batch.spans[place.request];
  const int read = p.batch.state_slots[place.request].read;
  const int begin = place.tile * kTokens, end = min(begin + kTokens, span.q_len);
  for (int t = begin; t < end; ++t) {
    float sum = 0;
    for (int j = 0; j < p.kernel; ++j) {
      sum = fmaf(load(p.weight, p.weight_type, c * p.weight_stride + j), p.input(span, read, c, t - (p.kernel - 1) + j),
                 sum);
    }
    p.out.set(span.q_off + t, 0, c, silu(sum));
  }
}

// Variant for 4 taps and 16-bit inputs: a thread handles eight channels and reads every input once.
constexpr int kTaps = 4;

template <class T>
__device__ inline void load_weights(const Params& p, int c, float (&weight)[kTaps][kVec8]) {
  if (p.weight_in_pieces) {
    constexpr int kOfPiece = kVec8 / kTaps;  // channels
#pragma unroll
    for (int q = 0; q < kTaps; ++q) {
      const Vec8<T> piece = Vec8<T>::load_constant(static_cast<const T*>(p.weight) + c * kTaps + q * kVec8);
#pragma unroll
      for (int i = 0; i < kVec8; ++i) weight[i % kTaps][q * kOfPiece + i / kTaps] = piece.v[i];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) weight[j][i] = load(p.weight, p.weight_type, (c + i) * p.weight_stride + j);
  }
}

// Loads the inputs before the tile's first token, oldest first.
template <class T>
__device__ inline void load_past(const Params& p, const KeySpan& span, int read, int c, int begin,
                                 float (&past)[kTaps - 1][kVec8]) {
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j) {
    const int t = begin - (kTaps - 1) + j;
    if (begin > 0) {
      const Vec8<T> piece = Vec8<T>::load(row_of<T>(p.x, span.q_off + t) + c);
#pragma unroll
      for (int i = 0; i < kVec8; ++i) past[j][i] = piece.v[i];
    } else {
#pragma unroll
      for (int i = 0; i < kVec8; ++i) past[j][i] = p.input(span, read, c + i, t);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kChannels) convolve_pieces(Params p) {
  const TilePlace place = locate_tile(p.batch.spans, p.requests, kTokens, blockIdx.x);
  const int c = (blockIdx.y * kChannels + threadIdx.x) * kVec8;
  if (place.request < 0 || c >= p.channels) return;
  const KeySpan span = p.batch.spans[place.request];
  const int read = p.batch.state_slots[place.request].read;
  const int begin = place.tile * kTokens, end = min(begin + kTokens, span.q_len);
  float weight[kTaps][kVec8], past[kTaps - 1][kVec8];
  load_weights<T>(p, c, weight);
  load_past<T>(p, span, read, c, begin, past);
  constexpr int kAhead = 4;
  for (int first = begin; first < end; first += kAhead) {
    Vec8<T> x[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (first + u < end) x[u] = Vec8<T>::load(row_of<T>(p.x, span.q_off + first + u) + c);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (first + u >= end) break;
      Vec8<T> y;
#pragma unroll
      for (int i = 0; i < kVec8; ++i) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kTaps - 1; ++j) sum = fmaf(weight[j][i], past[j][i], sum);
        y.v[i] = quick_silu(fmaf(weight[kTaps - 1][i], x[u].v[i], sum));
        past[0][i] = past[1][i], past[1][i] = past[2][i], past[2][i] = x[u].v[i];
      }
      y.store(row_of<T>(p.out, span.q_off + first + u) + c);
    }
  }
}

bool takes_pieces(const CausalConv1dArgs& a) {
  return a.weight.dim(1) == kTaps && a.x.dtype() == a.out.dtype() && size_of(a.x.dtype()) == 2 && is_vec8(a.x) &&
         is_vec8(a.out);
}

// Runs after convolve, because a request's first tile reads the state that this kernel overwrites.
__global__ void save_states(Params p) {
  const int request = blockIdx.x, c = blockIdx.y * kChannels + threadIdx.x;
  if (c >= p.channels) return;
  const KeySpan span = p.batch.spans[request];
  if (span.q_len == 0) return;
  const StateSlots slots = p.batch.state_slots[request];
  for (int s = 0; s < p.snapshots; ++s) {
    const StateSnapshot snapshot = p.batch.snapshots[s];
    if (snapshot.request == request) p.save(span, slots.read, snapshot.slot, c, snapshot.num_tokens);
  }
  if (slots.write != kNoState) p.save(span, slots.read, slots.write, c, span.q_len);
}

// Returns the number of tiles of `tile` tokens, the counterpart of locate_tile on the host. In a graph that serves any
// split of its `tokens`, it assumes that each request's last tile is partial.
int64_t tiles_of(std::span<const KeySpan> spans, int64_t tokens, int64_t tile, const DeviceMetadata& on_device) {
  const auto requests = static_cast<int64_t>(spans.size());
  if (on_device.most_rows > 0) return tokens / tile + std::min(requests, tokens);
  int64_t tiles = 0;
  for (const KeySpan& s : spans) tiles += (s.q_len + tile - 1) / tile;
  return tiles;
}

}  // namespace

void causal_conv1d(const CausalConv1dArgs& a, const OpContext& context) {
  check(a);
  if (a.x.numel() == 0) return;
  HR_REQUIRE(a.weight.dim(1) <= kMostConvWidth, ErrorCode::kUnsupported, "causal_conv1d: kernel width ",
             a.weight.dim(1), " is not built; built are 1 to ", kMostConvWidth);
  const Stream& stream = stream_of(context);
  const Params params{.x = Rows(a.x),
                      .out = Rows(a.out),
                      .weight = a.weight.data(),
                      .state = a.state.data(),
                      .weight_type = a.weight.dtype(),
                      .state_type = a.state.dtype(),
                      .weight_in_pieces = a.weight.dtype() == a.x.dtype() && a.weight.stride(0) == kTaps &&
                                          reinterpret_cast<uintptr_t>(a.weight.data()) % 16 == 0,
                      .weight_stride = a.weight.stride(0),
                      .slot_stride = a.state.stride(0),
                      .channel_stride = a.state.stride(1),
                      .channels = static_cast<int>(a.x.dim(1)),
                      .kernel = static_cast<int>(a.weight.dim(1)),
                      .requests = static_cast<int>(a.spans.size()),
                      .snapshots = static_cast<int>(a.snapshots.size()),
                      .batch = *a.on_device};
  const auto blocks = static_cast<unsigned>((params.channels + kChannels - 1) / kChannels);
  const auto tiles = static_cast<unsigned>(tiles_of(a.spans, a.x.dim(0), kTokens, *a.on_device));
  if (takes_pieces(a)) {
    const dim3 grid(tiles, (blocks + kVec8 - 1) / kVec8);
    if (a.x.dtype() == DType::kBF16) {
      convolve_pieces<__nv_bfloat16><<<grid, kChannels, 0, stream.handle>>>(params);
    } else {
      convolve_pieces<__half><<<grid, kChannels, 0, stream.handle>>>(params);
    }
  } else {
    convolve<<<dim3(tiles, blocks), kChannels, 0, stream.handle>>>(params);
  }
  save_states<<<dim3(static_cast<unsigned>(a.spans.size()), blocks), kChannels, 0, stream.handle>>>(params);
  check_launch("causal_conv1d");
}

}  // namespace headrace::cuda
