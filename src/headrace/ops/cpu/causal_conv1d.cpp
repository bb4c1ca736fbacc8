// Vectors run over channels. A task is one request and one block of channels, with weights and history as float32 on
// its stack. The last `width` inputs are kept in a ring buffer of rows, so that each is converted once.
#include "headrace/ops/cpu/causal_conv1d.h"

#include "headrace/core/parallel.h"
#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu::HR_ISA {
namespace {

constexpr long kChannelBlock = 256;
typedef float Rows[kMaxConvWidth][kChannelBlock];

// One request's channels [c0, c0 + n).
struct Block {
  Rows weight;   // [width, n]
  Rows history;  // [width - 1, n], oldest first
  long request, c0, n;
};

void load_block(const CausalConv1dParams& p, Block& b) {
  for (long j = 0; j < p.width; ++j) {
    for (long c = 0; c < b.n; ++c) {
      b.weight[j][c] = load_float(p.weight, (b.c0 + c) * p.weight_stride + j * p.weight_tap_stride, p.weight_type);
    }
  }
  const long old = p.width - 1, slot = p.slots[b.request].read;
  float dense[kMaxConvWidth * kChannelBlock] = {};
  if (slot != kNoState) load_row(dense, p.state, slot * p.slot_stride + b.c0 * old, b.n * old, p.state_type);
  for (long j = 0; j < old; ++j) {
    for (long c = 0; c < b.n; ++c) b.history[j][c] = dense[c * old + j];
  }
}

// Writes the width - 1 inputs before token `tokens` to `slot`.
void save_state(const CausalConv1dParams& p, const Block& b, long slot, long tokens) {
  const long old = p.width - 1;
  float dense[kMaxConvWidth * kChannelBlock];
  for (long j = 0; j < old; ++j) {
    const long t = tokens + j - old;  // index of an input of this call; negative: in the history
    float row[kChannelBlock];
    if (t >= 0) load_row(row, p.x, (p.spans[b.request].q_off + t) * p.x_stride + b.c0, b.n, p.x_type);
    const float* const from = t >= 0 ? row : b.history[tokens + j];
    for (long c = 0; c < b.n; ++c) dense[c * old + j] = from[c];
  }
  store_row(p.state, slot * p.slot_stride + b.c0 * old, dense, b.n * old, p.state_type);
}

// kWidth is the number of taps; 0: p.width.
template <int kWidth>
void convolve(const CausalConv1dParams& p, const Block& b) {
  const KeySpan& span = p.spans[b.request];
  const long width = kWidth != 0 ? kWidth : p.width;
  Rows ring;
  float* rows[kMaxConvWidth];  // oldest first
  for (long j = 0; j < width; ++j) rows[j] = ring[j];
  for (long j = 0; j + 1 < width; ++j) {
    for (long c = 0; c < b.n; ++c) ring[j + 1][c] = b.history[j][c];
  }
  float out[kChannelBlock];
  for (long t = 0; t < span.q_len; ++t) {
    float* const oldest = rows[0];
    for (long j = 0; j + 1 < width; ++j) rows[j] = rows[j + 1];
    rows[width - 1] = oldest;
    load_row(oldest, p.x, (span.q_off + t) * p.x_stride + b.c0, b.n, p.x_type);
    for (long c = 0; c < b.n; c += kLanes) {
      Vec y = load(b.weight[0] + c) * load(rows[0] + c);
      for (long j = 1; j < width; ++j) y += load(b.weight[j] + c) * load(rows[j] + c);
      store(out + c, y / (1.0f + exp(-y)));
    }
    store_row(p.out, (span.q_off + t) * p.out_stride + b.c0, out, b.n, p.out_type);
  }
}

void run_block(void* context, long task) {
  const auto& p = *static_cast<const CausalConv1dParams*>(context);
  const long blocks = (p.channels + kChannelBlock - 1) / kChannelBlock;
  Block b;
  b.request = task / blocks;
  b.c0 = task % blocks * kChannelBlock;
  b.n = p.channels - b.c0 < kChannelBlock ? p.channels - b.c0 : kChannelBlock;
  const KeySpan& span = p.spans[b.request];
  if (span.q_len == 0) return;
  load_block(p, b);
  p.width == 4 ? convolve<4>(p, b) : convolve<0>(p, b);
  for (long i = 0; i < p.num_snapshots; ++i) {
    const StateSnapshot& s = p.snapshots[i];
    if (s.request == b.request) save_state(p, b, s.slot, s.num_tokens);
  }
  if (p.slots[b.request].write != kNoState) save_state(p, b, p.slots[b.request].write, span.q_len);
}

}  // namespace

void causal_conv1d(const CausalConv1dParams& params) {
  const long blocks = (params.channels + kChannelBlock - 1) / kChannelBlock;
  headrace::parallel_for(params.threads, params.num_requests * blocks, run_block,
                         const_cast<CausalConv1dParams*>(&params));
}

}  // namespace headrace::cpu::HR_ISA
