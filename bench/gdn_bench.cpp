// Gated DeltaNet on the CPU: one JSON line per case. Arguments: the kernel set (default: the best), the threads
// (default: all cores).
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "headrace/base/parallel.h"
#include "headrace/kernels/cpu/dispatch.h"
#include "measured_limits.h"

namespace headrace::bench {
namespace {

constexpr int32_t kKeyHeads = 16, kValueHeads = 32, kDim = 128, kWidth = 4;
constexpr int32_t kChannels = 2 * kKeyHeads * kDim + kValueHeads * kDim;

struct Run {
  const OpSet& ops;
  OpContext context;
};

// Cheap numbers in [-1, 1), the same in every run.
Tensor filled(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  uint32_t state = 1;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    set_element(tensor, i, static_cast<double>(state >> 8) / (1 << 23) - 1);
  }
  return tensor;
}

void print(const Run& run, const char* name, double seconds, double bytes, double flops, double share) {
  std::printf(
      "{\"name\": \"%s\", \"set\": \"%s\", \"threads\": %d, \"median_s\": %.3e, \"bytes\": %.0f, \"flops\": %.0f, "
      "\"share_of_limit\": %.3f}\n",
      name, std::string(run.ops.name).c_str(), run.context.threads, seconds, bytes, flops, share);
  std::fflush(stdout);
}

// The inputs of `num_requests` requests of `tokens` tokens.
struct Inputs {
  Inputs(DType dtype, int32_t num_requests, int32_t tokens)
      : qkv(filled(dtype, {num_requests * tokens, kChannels})),
        a(filled(dtype, {num_requests * tokens, kValueHeads})),
        a_log(filled(DType::kF32, {kValueHeads})),
        out(dtype, {num_requests * tokens, kValueHeads, kDim}) {
    for (int32_t r = 0; r < num_requests; ++r) {
      spans.push_back({.q_off = r * tokens, .q_len = tokens});
      slots.push_back({.read = r, .write = r});
    }
  }
  GatedDeltaRuleArgs args(const TensorView& state) const {
    return {.qkv = qkv,
            .a = a,
            .b = a,
            .a_log = a_log,
            .dt_bias = a_log,
            .state = state,
            .num_k_heads = kKeyHeads,
            .spans = spans,
            .slots = slots,
            .out = out};
  }

  Tensor qkv, a, a_log, out;
  std::vector<KeySpan> spans;
  std::vector<StateSlots> slots;
};

// Batch 8, the layers' states in rotation: 384 MiB, more than any cache.
void decode(const Run& run, double read_write) {
  constexpr int32_t kBatch = 8, kLayers = 24;
  const Tensor states = Tensor::zeros(DType::kF32, {kLayers, kBatch, kValueHeads, kDim, kDim});
  const Inputs in(DType::kBF16, kBatch, 1);
  const double seconds = median_seconds(9, [&] {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      run.ops.gated_delta_rule(in.args(states.view().select(layer)), run.context);
    }
  });
  const double bytes = 2.0 * static_cast<double>(states.bytes());
  print(run, "gdn_decode_batch8", seconds / kLayers, bytes / kLayers, 0, bytes / seconds / read_write);
}

void prefill(const Run& run, double matrix) {
  constexpr int32_t kTokens = 4096;
  const Tensor state = Tensor::zeros(DType::kF32, {1, kValueHeads, kDim, kDim});
  const Inputs in(DType::kBF16, 1, kTokens);
  const double seconds = median_seconds(5, [&] { run.ops.gated_delta_rule(in.args(state), run.context); });
  const double flops = 10.5e6 * kTokens / kGDNChunk * kValueHeads;
  print(run, "gdn_prefill_4k", seconds, static_cast<double>(in.qkv.bytes() + in.out.bytes()), flops,
        flops / seconds / matrix);
}

void convolution(const Run& run, int32_t num_requests, int32_t tokens, const char* name, double read_write) {
  const Inputs in(DType::kBF16, num_requests, tokens);
  const Tensor weight = filled(DType::kBF16, {kChannels, kWidth}), out(DType::kBF16, in.qkv.shape());
  const Tensor state = Tensor::zeros(DType::kBF16, {num_requests, kChannels, kWidth - 1});
  const CausalConv1dArgs args = {
      .x = in.qkv, .weight = weight, .state = state, .spans = in.spans, .slots = in.slots, .out = out};
  const double seconds = median_seconds(9, [&] { run.ops.causal_conv1d(args, run.context); });
  const double bytes = static_cast<double>(in.qkv.bytes() + out.bytes() + 2 * state.bytes() + weight.bytes());
  print(run, name, seconds, bytes, 0, bytes / seconds / read_write);
}

void run_all(const Run& run) {
  const double read_write = read_write_bandwidth(run.context.threads), matrix = matrix_rate();
  std::printf("{\"name\": \"limits\", \"read_write_bytes_per_s\": %.3e, \"matrix_flops_per_s\": %.3e}\n", read_write,
              matrix);
  decode(run, read_write);
  prefill(run, matrix);
  convolution(run, 8, 1, "conv_decode_batch8", read_write);
  convolution(run, 1, 4096, "conv_prefill_4k", read_write);
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  const std::span<char*> arguments(argv, static_cast<size_t>(argc));
  const headrace::OpSet& ops =
      argc > 1 ? headrace::cpu::select_kernel_set(arguments[1]) : headrace::cpu::select_kernel_set();
  const int threads = argc > 2 ? std::atoi(arguments[2]) : headrace::available_cores();
  headrace::bench::run_all({.ops = ops, .context = {.threads = threads}});
}
