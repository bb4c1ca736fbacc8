#include "bench/gdn_bench.h"

#include <utility>
#include <vector>

#include "bench/limit_beside.h"
#include "bench/measured_limits.h"
#include "bench/random_inputs.h"

namespace headrace::bench {
namespace {

constexpr int32_t kKeyHeads = 16, kValueHeads = 32, kStateDim = 128, kWidth = 4;
constexpr int32_t kChannels = 2 * kKeyHeads * kStateDim + kValueHeads * kStateDim;

// The inputs of `num_requests` requests of `tokens` tokens, once per layer in rotation.
struct Inputs {
  Inputs(int32_t num_layers, int32_t num_requests, int32_t tokens)
      : qkv(normal_values(DType::kBF16, {num_layers, num_requests * tokens, kChannels})),
        a(normal_values(DType::kBF16, {num_requests * tokens, kValueHeads})),
        b(normal_values(DType::kBF16, a.shape(), 0, 1, 2)),
        a_log(normal_values(DType::kF32, {kValueHeads})),
        dt_bias(normal_values(DType::kF32, {kValueHeads}, -6)),  // a token keeps about 0.99 of the state
        out(DType::kBF16, {num_requests * tokens, kValueHeads, kStateDim}) {
    for (int32_t r = 0; r < num_requests; ++r) {
      spans.push_back({.q_off = r * tokens, .q_len = tokens});
      slots.push_back({.read = r, .write = r});
    }
  }
  GatedDeltaRuleArgs args(int64_t layer, const TensorView& state) const {
    return {.qkv = qkv.view().select(layer),
            .a = a,
            .b = b,
            .a_log = a_log,
            .dt_bias = dt_bias,
            .state = state,
            .num_k_heads = kKeyHeads,
            .spans = spans,
            .slots = slots,
            .out = out};
  }

  Tensor qkv, a, b, a_log, dt_bias, out;
  std::vector<KeySpan> spans;
  std::vector<StateSlots> slots;
};

// Batch 8; the states of 24 layers are 384 MiB.
Result gdn_decode(const BenchContext& context) {
  constexpr int32_t kBatch = 8, kLayers = 24;
  const Tensor states = Tensor::zeros(DType::kF32, {kLayers, kBatch, kValueHeads, kStateDim, kStateDim});
  const Inputs in(1, kBatch, 1);
  const double seconds = median_seconds(9, [&] {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      context.ops.gated_delta_rule(in.args(0, states.view().select(layer)), context.op);
    }
  });
  return {.name = "gdn decode batch 8 16/32 heads 128x128 fp32 state",
          .median_s = seconds / kLayers,
          .bytes = 2.0 * static_cast<double>(states.bytes()) / kLayers,
          .limit = Result::Limit::kReadWrite};
}

Result gdn_prefill(const BenchContext& context) {
  constexpr int32_t kTokens = 4096, kLayers = 4;  // 256 MiB of inputs
  const Tensor state = Tensor::zeros(DType::kF32, {1, kValueHeads, kStateDim, kStateDim});
  const Inputs in(kLayers, 1, kTokens);
  int64_t layer = 0;
  const double seconds = median_seconds(5, [&] {
    layer = (layer + 1) % kLayers;
    context.ops.gated_delta_rule(in.args(layer, state), context.op);
  });
  return {.name = "gdn prefill 4k 16/32 heads 128x128 bf16",
          .median_s = seconds,
          .bytes = static_cast<double>(in.qkv.bytes()) / kLayers + static_cast<double>(in.out.bytes()),
          .flops = 10.5e6 * kTokens / kGDNChunk * kValueHeads,
          .limit = Result::Limit::kMatrix};
}

// Layers in rotation over at least 256 MiB of inputs, outputs and states.
Result convolution(const BenchContext& context, int32_t num_requests, int32_t tokens) {
  constexpr int64_t kRotation = int64_t{256} << 20;
  const int64_t channels = int64_t{num_requests} * kChannels;
  const int64_t layer_bytes = 2 * channels * (int64_t{2} * tokens + kWidth - 1);
  const auto layers = static_cast<int32_t>(kRotation / layer_bytes + 1);
  const Inputs in(layers, num_requests, tokens);
  const Tensor weight = normal_values(DType::kBF16, {kChannels, kWidth}), out(DType::kBF16, in.qkv.shape());
  const Tensor state = Tensor::zeros(DType::kBF16, {layers, num_requests, kChannels, kWidth - 1});
  const double seconds = median_seconds(5, [&] {
    for (int64_t layer = 0; layer < layers; ++layer) {
      context.ops.causal_conv1d({.x = in.qkv.view().select(layer),
                                 .weight = weight,
                                 .state = state.view().select(layer),
                                 .spans = in.spans,
                                 .slots = in.slots,
                                 .out = out.view().select(layer)},
                                context.op);
    }
  });
  return {.name = tokens == 1 ? "causal conv decode batch 8 8192 channels bf16"
                              : "causal conv prefill 4k 8192 channels bf16",
          .median_s = seconds / layers,
          .bytes = static_cast<double>(in.qkv.bytes() + out.bytes() + 2 * state.bytes()) / layers,
          .limit = Result::Limit::kReadWrite};
}

}  // namespace

void run_gdn_bench(const BenchContext& context, const Report& report) {
  const int threads = context.op.threads;
  LimitBeside read_write([threads] { return read_write_bandwidth(threads); });
  report(read_write.counted(gdn_decode(context)));
  report(read_write.counted(convolution(context, 8, 1)));
  report(read_write.counted(convolution(context, 1, 4096)));
  LimitBeside matrix([threads] { return matrix_rate(threads); });
  report(matrix.counted(gdn_prefill(context)));
}

}  // namespace headrace::bench
