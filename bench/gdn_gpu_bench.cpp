// Gated DeltaNet on a GPU: one JSON line per case, timed in CUDA graphs over buffers in rotation that no cache holds.
// Argument: a part of the cases' names (default: all). "limit_s" is the time of the bytes at the measured copy rate.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/exit_status.h"
#include "bench/random_inputs.h"
#include "headrace/batch/attn_metadata.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"

namespace headrace::bench {
namespace {

constexpr int32_t kKeyHeads = 16, kValueHeads = 32, kDim = 128, kWidth = 4;
constexpr int32_t kChannels = 2 * kKeyHeads * kDim + kValueHeads * kDim;
constexpr int64_t kRotation = int64_t{256} << 20;  // bytes that one round over the buffers touches at least

struct Machine {
  const std::unique_ptr<DeviceRuntime> device = cuda_module().make_runtime(0);
  DeviceRuntime& runtime = *device;
  const OpSet& ops = cuda_module().ops("cuda");
  OpContext context{.stream = runtime.stream()};
  double copy_rate = 0;  // bytes read and written, per second
};

// Median seconds of one of the `calls` in a graph of all of them.
double seconds_in_graph(const Machine& m, int calls, const std::function<void(int)>& call) {
  for (int i = 0; i < calls; ++i) call(i);
  m.runtime.synchronize();
  m.runtime.begin_capture();
  for (int i = 0; i < calls; ++i) call(i);
  const std::unique_ptr<DeviceGraph> graph = m.runtime.end_capture();
  graph->launch();
  m.runtime.synchronize();
  std::vector<double> seconds;
  for (int repeat = 0; repeat < 9; ++repeat) {
    constexpr int kLaunches = 4;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kLaunches; ++i) graph->launch();
    m.runtime.synchronize();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    seconds.push_back(passed.count() / (kLaunches * calls));
  }
  std::nth_element(seconds.begin(), seconds.begin() + 4, seconds.end());
  return seconds[4];
}

Tensor filled(const Machine& m, DType dtype, const Shape& shape, double deviation = 1, double mean = 0,
              uint64_t seed = 1) {
  return copied_to(m.runtime, normal_values(dtype, shape, mean, deviation, seed));
}

template <class T>
Tensor array_of(const Machine& m, const std::vector<T>& values) {
  Tensor memory(DType::kU8, {static_cast<int64_t>(values.size() * sizeof(T))}, m.runtime);
  m.runtime.copy_to_device(memory.data(), values.data(), values.size() * sizeof(T));
  return memory;
}

// Requests of equal length, and the pools' slots: call i works on slots [i * requests, (i + 1) * requests).
struct Batch {
  Batch(const Machine& m, int32_t requests, int32_t tokens) {
    for (int32_t r = 0; r < requests; ++r) {
      spans.push_back({.q_off = r * tokens, .q_len = tokens});
      slots.push_back({.read = r, .write = r});
    }
    device_spans = array_of(m, spans), device_slots = array_of(m, slots);
    on_device = {.spans = static_cast<const KeySpan*>(device_spans.data()),
                 .state_slots = static_cast<const StateSlots*>(device_slots.data())};
  }
  std::vector<KeySpan> spans;
  std::vector<StateSlots> slots;
  Tensor device_spans, device_slots;
  DeviceMetadata on_device;
};

void print(const Machine& m, const std::string& name, double seconds, double bytes, double flops) {
  std::printf(
      "{\"name\": \"%s\", \"set\": \"%s\", \"median_s\": %.3e, \"bytes\": %.4e, \"flops\": %.4e, \"limit_s\": %.3e, "
      "\"share_of_limit\": %.3f}\n",
      name.c_str(), std::string(m.ops.name).c_str(), seconds, bytes, flops, bytes / m.copy_rate,
      bytes / m.copy_rate / seconds);
  std::fflush(stdout);
}

void measure_copy(Machine& m) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const Tensor from(DType::kU8, {kBytes}, m.runtime), to(DType::kU8, {kBytes}, m.runtime);
  m.runtime.fill_zero(from.data(), kBytes);
  const double seconds = seconds_in_graph(m, 4, [&](int) { m.runtime.copy_on_device(to.data(), from.data(), kBytes); });
  m.copy_rate = 2.0 * static_cast<double>(kBytes) / seconds;
  std::printf("{\"name\": \"copy\", \"bytes_per_s\": %.4e}\n", m.copy_rate);
}

// The step from the convolution to the gated norm, or op by op.
void decode(const Machine& m, int32_t requests, bool fused) {
  const int64_t state_bytes = int64_t{requests} * kValueHeads * kDim * kDim * 4;
  const int calls = static_cast<int>(std::max<int64_t>(4, kRotation / state_bytes));
  const Batch batch(m, requests, 1);
  const Tensor states = filled(m, DType::kF32, {calls, requests, kValueHeads, kDim, kDim}, 0.1);
  const Tensor conv_states = filled(m, DType::kBF16, {calls, requests, kChannels, kWidth - 1});
  const Tensor x = filled(m, DType::kBF16, {requests, kChannels}), mixed = filled(m, DType::kBF16, x.shape());
  const Tensor conv_weight = filled(m, DType::kBF16, {kChannels, kWidth}), weight = filled(m, DType::kF32, {kDim});
  const Tensor a = filled(m, DType::kBF16, {requests, kValueHeads}), b = filled(m, DType::kBF16, a.shape(), 1, 0, 2);
  const Tensor a_log = filled(m, DType::kF32, {kValueHeads}), dt_bias = filled(m, DType::kF32, {kValueHeads}, 1, -6);
  const Tensor gate = filled(m, DType::kBF16, {requests, kValueHeads, kDim});
  const Tensor out(DType::kBF16, gate.shape(), m.runtime);
  const double seconds = seconds_in_graph(m, calls, [&](int i) {
    const TensorView state = states.view().select(i), conv_state = conv_states.view().select(i);
    if (fused) {
      m.ops.gdn_step({.x = x,
                      .conv_weight = conv_weight,
                      .conv_state = conv_state,
                      .a = a,
                      .b = b,
                      .a_log = a_log,
                      .dt_bias = dt_bias,
                      .state = state,
                      .num_k_heads = kKeyHeads,
                      .spans = batch.spans,
                      .slots = batch.slots,
                      .on_device = &batch.on_device,
                      .norm = {.gate = gate, .weight = weight},
                      .out = out},
                     m.context);
      return;
    }
    m.ops.causal_conv1d({.x = x,
                         .weight = conv_weight,
                         .state = conv_state,
                         .spans = batch.spans,
                         .slots = batch.slots,
                         .on_device = &batch.on_device,
                         .out = mixed},
                        m.context);
    m.ops.gated_delta_rule({.qkv = mixed,
                            .a = a,
                            .b = b,
                            .a_log = a_log,
                            .dt_bias = dt_bias,
                            .state = state,
                            .num_k_heads = kKeyHeads,
                            .spans = batch.spans,
                            .slots = batch.slots,
                            .on_device = &batch.on_device,
                            .out = out},
                           m.context);
    m.ops.rms_norm({.x = out, .weight = weight, .gate = gate, .out = out}, m.context);
  });
  const int64_t conv_bytes = conv_states.bytes() / calls;
  const auto bytes = static_cast<double>(2 * state_bytes + 2 * conv_bytes + x.bytes() + 2 * out.bytes());
  print(m, std::string(fused ? "gdn_decode_fused" : "gdn_decode_apart") + "_batch" + std::to_string(requests), seconds,
        bytes, 0);
}

// A tensor's elements in host memory.
template <class T>
std::vector<T> fetched(const Machine& m, const Tensor& x) {
  std::vector<T> host(static_cast<size_t>(x.numel()));
  m.runtime.copy_to_host(host.data(), x.data(), host.size() * sizeof(T));
  m.runtime.synchronize();
  return host;
}

// Root mean square of the difference over that of `want`, of every seventh element.
template <class T>
double difference(const std::vector<T>& got, const std::vector<T>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); i += 7) {
    const double g = static_cast<float>(got[i]), w = static_cast<float>(want[i]);
    error += (g - w) * (g - w), size += w * w;
  }
  return std::sqrt(error / size);
}

struct Prefill {
  Prefill(const Machine& machine, int32_t requests, int32_t tokens, int32_t value_heads)
      : m(machine),
        batch(m, requests, tokens),
        qkv(filled(m, DType::kBF16, {requests * tokens, (2 * kKeyHeads + value_heads) * kDim})),
        a(filled(m, DType::kBF16, {requests * tokens, value_heads})),
        b(filled(m, DType::kBF16, a.shape(), 1, 0, 2)),
        a_log(filled(m, DType::kF32, {value_heads})),
        dt_bias(filled(m, DType::kF32, {value_heads}, 1, -6)),  // a token keeps about 0.99 of the state
        state(filled(m, DType::kF32, {requests, value_heads, kDim, kDim}, 0.1)),
        out(DType::kBF16, {requests * tokens, value_heads, kDim}, m.runtime) {}

  void run(Determinism determinism) const {
    OpContext context = m.context;
    context.determinism = determinism;
    m.ops.gated_delta_rule({.qkv = qkv,
                            .a = a,
                            .b = b,
                            .a_log = a_log,
                            .dt_bias = dt_bias,
                            .state = state,
                            .num_k_heads = kKeyHeads,
                            .spans = batch.spans,
                            .slots = batch.slots,
                            .on_device = &batch.on_device,
                            .out = out},
                           context);
  }
  double bytes() const { return static_cast<double>(qkv.bytes() + out.bytes() + 2 * a.bytes() + 2 * state.bytes()); }
  const Machine& m;
  Batch batch;
  Tensor qkv, a, b, a_log, dt_bias, state, out;
};

// Token by token, as strict mode does it.
void prefill_strict(const Machine& m, int32_t requests, int32_t tokens, int32_t value_heads) {
  const Prefill work(m, requests, tokens, value_heads);
  const double seconds = seconds_in_graph(m, 2, [&](int) { work.run(Determinism::kStrict); });
  const double flops = 6.0 * kDim * kDim * requests * tokens * value_heads;
  print(m, str("gdn_prefill_strict_", requests, "x", tokens, "_heads", value_heads), seconds, work.bytes(), flops);
}

void prefill(const Machine& m, int32_t requests, int32_t tokens) {
  const Prefill work(m, requests, tokens, kValueHeads);
  const double seconds = seconds_in_graph(m, 2, [&](int) { work.run(Determinism::kFast); });
  const int64_t chunks_each = (tokens + kGDNChunk - 1) / kGDNChunk;
  const auto chunks = static_cast<double>(requests * chunks_each * kValueHeads);
  const std::string lengths = str(requests, "x", tokens);
  print(m, "gdn_prefill_" + lengths, seconds, work.bytes(), 10.5e6 * chunks);
  const Prefill fast(m, requests, tokens, kValueHeads), strict(m, requests, tokens, kValueHeads);
  fast.run(Determinism::kFast);
  strict.run(Determinism::kStrict);
  std::printf("{\"name\": \"gdn_prefill_%s\", \"out_from_strict\": %.2e, \"state_from_strict\": %.2e}\n",
              lengths.c_str(), difference(fetched<BF16>(m, fast.out), fetched<BF16>(m, strict.out)),
              difference(fetched<float>(m, fast.state), fetched<float>(m, strict.state)));
}

void convolution(const Machine& m, int32_t requests, int32_t tokens) {
  const Batch batch(m, requests, tokens);
  const Tensor x = filled(m, DType::kBF16, {requests * tokens, kChannels});
  const Tensor weight = filled(m, DType::kBF16, {kChannels, kWidth});
  const Tensor state = filled(m, DType::kBF16, {requests, kChannels, kWidth - 1});
  const Tensor out(DType::kBF16, x.shape(), m.runtime);
  const double seconds = seconds_in_graph(m, 2, [&](int) {
    m.ops.causal_conv1d({.x = x,
                         .weight = weight,
                         .state = state,
                         .spans = batch.spans,
                         .slots = batch.slots,
                         .on_device = &batch.on_device,
                         .out = out},
                        m.context);
  });
  print(m, str("conv_prefill_", requests, "x", tokens), seconds, static_cast<double>(x.bytes() + out.bytes()), 0);
}

void run_all(const std::string& wanted) {
  Machine m;
  measure_copy(m);
  const auto run = [&](const std::string& name, const std::function<void()>& work) {
    if (name.find(wanted) != std::string::npos) work();
  };
  for (const int32_t requests : {1, 8, 16, 32, 64}) {
    run(str("decode batch", requests), [&] { decode(m, requests, true); });
  }
  for (const int32_t requests : {64, 1}) run("decode apart", [&] { decode(m, requests, false); });
  run("prefill 1x32768", [&] { prefill(m, 1, 32768); });
  run("prefill 16x2048", [&] { prefill(m, 16, 2048); });
  run("prefill 8x4096", [&] { prefill(m, 8, 4096); });
  run("prefill strict 1x2048", [&] { prefill_strict(m, 1, 2048, 16); });
  run("prefill strict 1x16384", [&] { prefill_strict(m, 1, 16384, 16); });
  run("prefill strict 1x16384 grouped", [&] { prefill_strict(m, 1, 16384, kValueHeads); });
  run("prefill strict 8x4096", [&] { prefill_strict(m, 8, 4096, kValueHeads); });
  run("convolution", [&] { convolution(m, 1, 32768); });
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  return headrace::app::guarded([&] {
    headrace::bench::run_all(argc > 1 ? argv[1] : "");
    return 0;
  });
}
