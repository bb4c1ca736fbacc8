// Products as decoding and prefill have them, on device 0, as a share of what the device copies or multiplies. Each
// time is that of one op within a graph of several over different weights, so that none is found in a cache.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/exit_status.h"
#include "headrace/core/device_runtime.h"
#include "headrace/core/tensor.h"
#include "headrace/ops/cuda_module.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kRotation = int64_t{512} << 20;  // bytes of weights, ten times the cache
constexpr int kRuns = 15;

struct Bench {
  const std::unique_ptr<DeviceRuntime> device = cuda_module().make_runtime(0);
  DeviceRuntime& runtime = *device;
  const OpSet& ops = cuda_module().ops("cuda");
  std::string_view leave_out = {};  // kernel families, as OpContext has them

  OpContext context(Determinism determinism = Determinism::kFast) const {
    return {.determinism = determinism, .stream = runtime.stream(), .leave_out = leave_out};
  }
  Tensor make(DType type, const Shape& shape) const { return Tensor(type, shape, runtime); }
  // Values between -0.05 and 0.05, which begin again after 64 MiB: zeros run faster than real data.
  Tensor random(const Shape& shape) const {
    Tensor on_device(DType::kBF16, shape, runtime);
    Tensor host(DType::kBF16, {std::min(on_device.numel(), int64_t{32} << 20)});
    uint64_t z = 1;
    auto* to = host.data_as<BF16>();
    for (int64_t i = 0; i < host.numel(); ++i) {
      z = z * 6364136223846793005u + 1442695040888963407u;
      to[i] = BF16(static_cast<float>(static_cast<int32_t>(z >> 40) - (1 << 23)) * (0.05f / (1 << 23)));
    }
    const Tensor values = copied_to(runtime, std::move(host));
    for (int64_t at = 0; at < on_device.bytes(); at += values.bytes()) {
      runtime.copy_on_device(static_cast<char*>(on_device.data()) + at, values.data(),
                             std::min(values.bytes(), on_device.bytes() - at));
    }
    runtime.synchronize();
    return on_device;
  }
  // Median seconds of one call of f(i), i < count.
  template <class F>
  double time(int count, const F& f) const {
    f(0);
    runtime.synchronize();
    runtime.begin_capture();
    for (int i = 0; i < count; ++i) f(i);
    const auto graph = runtime.end_capture();
    std::vector<double> times;
    for (int r = 0; r < kRuns + 2; ++r) {
      runtime.synchronize();
      const auto start = Clock::now();
      graph->launch();
      runtime.synchronize();
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count() / count);
    }
    std::sort(times.begin() + 2, times.end());
    return times[2 + kRuns / 2];
  }
};

enum class Normed : uint8_t { kNo, kYes };

void bench_products(const Bench& b, const char* name, int64_t out, int64_t in, int64_t rows, double copy,
                    FusedLinearArgs::Combine combine, Determinism determinism, Normed normed = Normed::kYes) {
  const int64_t weights = combine == FusedLinearArgs::Combine::kSiluMul ? 2 : 1, bytes = weights * out * in * 2;
  const auto copies = static_cast<int>(std::clamp<int64_t>(kRotation / bytes, 3, rows > 1024 ? 3 : 60));
  const Tensor w = b.random({copies * weights * out, in}), x = b.random({rows, in}), norm = b.random({in});
  const Tensor y = b.make(DType::kBF16, {rows, out});
  const OpContext context = b.context(determinism);
  const double seconds = b.time(copies, [&](int i) {
    const TensorView first = w.view().slice(i * weights * out, (i * weights + 1) * out);
    FusedLinearArgs args{.x = x, .num_products = static_cast<int>(weights), .combine = combine};
    if (normed == Normed::kYes) args.norm_weight = norm;
    args.products[0] = {.weight = first, .bias = {}, .y = y};
    if (weights == 2) args.products[1].weight = w.view().slice((i * 2 + 1) * out, (i * 2 + 2) * out);
    b.ops.fused_linear(args, context);
  });
  const double flops = 2.0 * static_cast<double>(weights * rows * out * in),
               rate = static_cast<double>(bytes) / seconds;
  std::printf("%-34s rows %5ld  %9.2f us  %7.3f TB/s (%.2f of copy)  %7.1f TFLOP/s\n", name, static_cast<long>(rows),
              seconds * 1e6, rate / 1e12, rate / copy, flops / seconds / 1e12);
}

// silu(gate) * up of one pair of weights after another, for each number of rows, in both modes.
void bench_gate_up(const Bench& b, const char* name, int64_t out, int64_t in, std::span<const int64_t> counts) {
  constexpr int kCopies = 3;
  const Tensor w = b.random({kCopies * 2 * out, in}), all = b.random({counts.back(), in});
  const Tensor results = b.make(DType::kBF16, {counts.back(), out});
  for (const int64_t rows : counts) {
    double seconds[2];
    for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
      const TensorView x = all.view().slice(0, rows), y = results.view().slice(0, rows);
      const OpContext context = b.context(determinism);
      seconds[determinism == Determinism::kStrict] = b.time(kCopies, [&](int i) {
        const auto part = [&](int64_t at) { return w.view().slice((i * 2 + at) * out, (i * 2 + at + 1) * out); };
        b.ops.fused_linear({.x = x,
                            .products = {{{part(0), {}, y}, {part(1), {}, {}}}},
                            .num_products = 2,
                            .combine = FusedLinearArgs::Combine::kSiluMul},
                           context);
      });
    }
    const double tera = 4e-12 * static_cast<double>(rows * out * in);
    std::printf("%-26s rows %5ld  fast %8.2f us %6.1f TFLOP/s  strict %8.2f us %6.1f TFLOP/s\n", name,
                static_cast<long>(rows), seconds[0] * 1e6, tera / seconds[0], seconds[1] * 1e6, tera / seconds[1]);
  }
}

struct LayerShape {
  int64_t hidden, heads, inner, next;  // next: rows of all projections of the next layer together
};

// A decoder layer's products, from behind its attention to before the next one's, for each number of rows; every step
// reads what the last wrote.
void bench_layer(const Bench& b, const char* name, const LayerShape& l, std::span<const int64_t> counts, double copy,
                 Determinism determinism = Determinism::kFast) {
  const int64_t bytes = 2 * l.hidden * (l.heads + 3 * l.inner + l.next);
  const auto copies = static_cast<int>(std::clamp<int64_t>(kRotation / bytes, 3, 12));
  const Tensor out = b.random({copies * l.hidden, l.heads}), gate_up = b.random({copies * 2 * l.inner, l.hidden});
  const Tensor down = b.random({copies * l.hidden, l.inner}), next = b.random({copies * l.next, l.hidden});
  const Tensor norm = b.random({l.hidden});
  const OpContext context = b.context(determinism);
  for (const int64_t rows : counts) {
    const Tensor a = b.random({rows, l.heads}), x = b.random({rows, l.hidden});
    const Tensor inner = b.make(DType::kBF16, {rows, l.inner}), y = b.make(DType::kBF16, {rows, l.next});
    const double seconds = b.time(copies, [&](int i) {
      const auto part = [i](const Tensor& w, int64_t of, int64_t at = 0, int64_t parts = 1) {
        return w.view().slice((i * parts + at) * of, (i * parts + at + 1) * of);
      };
      const std::array calls = {
          FusedLinearArgs{.x = a, .products = {{{part(out, l.hidden), {}, x}}}, .residual = x},
          FusedLinearArgs{
              .x = x,
              .norm_weight = norm,
              .products = {{{part(gate_up, l.inner, 0, 2), {}, inner}, {part(gate_up, l.inner, 1, 2), {}, {}}}},
              .num_products = 2,
              .combine = FusedLinearArgs::Combine::kSiluMul},
          FusedLinearArgs{.x = inner, .products = {{{part(down, l.hidden), {}, x}}}, .residual = x},
          FusedLinearArgs{.x = x, .norm_weight = norm, .products = {{{part(next, l.next), {}, y}}}}};
      b.ops.gemm_sequence(calls, context);
    });
    const double rate = static_cast<double>(bytes) / seconds;
    std::printf("%-34s rows %5ld  %9.2f us  %7.3f TB/s (%.2f of copy)\n", name, static_cast<long>(rows), seconds * 1e6,
                rate / 1e12, rate / copy);
  }
}

void bench_layers(const Bench& b, std::span<const int64_t> counts, double copy,
                  Determinism determinism = Determinism::kFast) {
  if (determinism == Determinism::kStrict) std::printf("strict mode\n");
  bench_layer(b, "layer of Qwen3.5-0.8B (GDN)", {1024, 2048, 3584, 8224}, counts, copy, determinism);
  bench_layer(b, "layer of SDAR-4B", {2560, 4096, 9728, 6144}, counts, copy, determinism);
}

struct ProductShape {
  const char* name;
  int64_t out, in;
  FusedLinearArgs::Combine combine = FusedLinearArgs::Combine::kNone;
  DType result = DType::kBF16;
};

// One product without its norm, for each number of rows.
void bench_narrow(const Bench& b, const ProductShape& p, std::span<const int64_t> counts, double copy,
                  Determinism determinism = Determinism::kFast) {
  const int64_t weights = p.combine == FusedLinearArgs::Combine::kSiluMul ? 2 : 1, bytes = weights * p.out * p.in * 2;
  const auto copies = static_cast<int>(std::clamp<int64_t>(kRotation / bytes, 2, 40));
  const Tensor w = b.random({copies * weights * p.out, p.in}), all = b.random({counts.back(), p.in});
  const Tensor results = b.make(p.result, {counts.back(), p.out});
  const OpContext context = b.context(determinism);
  for (const int64_t rows : counts) {
    const double seconds = b.time(copies, [&](int i) {
      const auto part = [&](int64_t at) {
        return w.view().slice((i * weights + at) * p.out, (i * weights + at + 1) * p.out);
      };
      FusedLinearArgs args{
          .x = all.view().slice(0, rows), .num_products = static_cast<int>(weights), .combine = p.combine};
      args.products[0] = {.weight = part(0), .bias = {}, .y = results.view().slice(0, rows)};
      if (weights == 2) args.products[1].weight = part(1);
      b.ops.fused_linear(args, context);
    });
    const double rate = static_cast<double>(bytes) / seconds;
    std::printf("%-34s rows %5ld  %9.2f us  %7.3f TB/s (%.2f of copy)\n", p.name, static_cast<long>(rows),
                seconds * 1e6, rate / 1e12, rate / copy);
  }
}

// Rows as steps of a few requests have them.
void bench_all_narrow(const Bench& b, double copy) {
  constexpr std::array<int64_t, 8> kCounts = {9, 12, 16, 24, 32, 48, 64, 96};
  constexpr auto kGateUp = FusedLinearArgs::Combine::kSiluMul, kNone = FusedLinearArgs::Combine::kNone;
  constexpr std::array<ProductShape, 10> kProducts = {{{"qkv 6144 x 2560", 6144, 2560},
                                                       {"out 2560 x 4096", 2560, 4096},
                                                       {"gate and up 9728 x 2560", 9728, 2560, kGateUp},
                                                       {"down 2560 x 9728", 2560, 9728},
                                                       {"projections 8224 x 1024", 8224, 1024},
                                                       {"out 1024 x 2048", 1024, 2048},
                                                       {"gate and up 3584 x 1024", 3584, 1024, kGateUp},
                                                       {"down 1024 x 3584", 1024, 3584},
                                                       {"head 151936 x 2560", 151936, 2560, kNone, DType::kF32},
                                                       {"head 248320 x 1024", 248320, 1024, kNone, DType::kF32}}};
  for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
    bench_layers(b, kCounts, copy, determinism);
    for (const ProductShape& p : kProducts) bench_narrow(b, p, kCounts, copy, determinism);
  }
}

struct Experts {
  const char* name;
  int64_t count, chosen, hidden, inner, shared;  // shared: experts that every token chooses as well, 0 or 1
  int64_t all() const { return count + shared; }
};
constexpr std::array kExperts = {Experts{"Qwen3-30B-A3B", 128, 8, 2048, 768, 0},
                                 Experts{"Qwen3-Next", 512, 10, 2048, 512, 1}};

Tensor addresses_of(const Bench& b, const Experts& e, const Tensor& gate_up, const Tensor& down) {
  Tensor places(DType::kI64, {e.all(), 3});
  for (int64_t i = 0; i < e.all(); ++i) {
    auto* place = places.data_as<int64_t>() + i * 3;
    const auto at = [](const Tensor& x, int64_t row) {
      return reinterpret_cast<int64_t>(x.view().slice(row, row + 1).data());
    };
    place[0] = at(gate_up, 2 * i * e.inner), place[1] = at(gate_up, (2 * i + 1) * e.inner);
    place[2] = at(down, i * e.hidden);
  }
  return copied_to(b.runtime, std::move(places));
}

// The experts of a layer, routing included, added to x. Every step of the rotation has tokens, and so experts, of its
// own.
void bench_experts(const Bench& b, const Experts& e, int64_t rows, double copy) {
  const auto steps = static_cast<int>(std::clamp<int64_t>(64 / rows, 2, 16));
  const Tensor gate_up = b.random({e.all() * 2 * e.inner, e.hidden}), down = b.random({e.all() * e.hidden, e.inner});
  const Tensor addresses = addresses_of(b, e, gate_up, down);
  Tensor scores(DType::kF32, {steps * rows, e.count});
  uint64_t z = 7;
  for (int64_t i = 0; i < scores.numel(); ++i) {
    z = z * 6364136223846793005u + 1442695040888963407u;
    scores.data_as<float>()[i] = static_cast<float>(z >> 40) / (1 << 24);
  }
  const Tensor logits = copied_to(b.runtime, std::move(scores));
  const Tensor x = b.random({steps * rows, e.hidden}), y = b.make(DType::kBF16, {rows, e.hidden});
  const Shape shape{rows, e.chosen + e.shared};
  const Tensor experts = b.make(DType::kI32, shape), weights = b.make(DType::kF32, shape);
  const OpContext context = b.context();
  using Shared = ExpertRoutingArgs::Shared;
  const double seconds = b.time(steps, [&](int i) {
    b.ops.expert_routing({.logits = logits.view().slice(i * rows, (i + 1) * rows),
                          .shared = e.shared > 0 ? Shared::kFull : Shared::kNone,
                          .experts = experts,
                          .weights = weights},
                         context);
    b.ops.expert_mlp({.x = x.view().slice(i * rows, (i + 1) * rows),
                      .experts = experts,
                      .weights = weights,
                      .addresses = addresses,
                      .weight_type = DType::kBF16,
                      .intermediate = e.inner,
                      .residual = y,
                      .y = y},
                     context);
  });
  // Expected number of experts that random choices read.
  const auto count = static_cast<double>(e.count), tokens = static_cast<double>(rows);
  const double read =
      static_cast<double>(e.shared) + count * (1 - std::pow(1 - static_cast<double>(e.chosen) / count, tokens));
  const auto numbers = static_cast<double>(3 * e.inner * e.hidden);  // of an expert
  const double bytes = read * numbers * 2, flops = 2 * numbers * static_cast<double>(e.chosen + e.shared) * tokens;
  std::printf(
      "experts %-13s %ld + %ld of %ld, %ld x %ld  rows %5ld  %9.2f us  %7.3f TB/s (%.2f of copy)  %7.1f TFLOP/s\n",
      e.name, static_cast<long>(e.chosen), static_cast<long>(e.shared), static_cast<long>(e.count),
      static_cast<long>(e.hidden), static_cast<long>(e.inner), static_cast<long>(rows), seconds * 1e6,
      bytes / seconds / 1e12, bytes / seconds / copy, flops / seconds / 1e12);
}

// Rows like a model's logits: normal, of deviation 2.5, each from another place of one sequence.
Tensor normal_rows(const Bench& b, int64_t rows, int64_t vocab) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> values(static_cast<size_t>(2 * vocab));
  for (float& x : values) x = normal(random);
  Tensor host(DType::kF32, {rows, vocab});
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(values.begin() + r * 997 % vocab, vocab, host.data_as<float>() + r * vocab);
  }
  return copied_to(b.runtime, std::move(host));
}

// A token for each row of logits, from what the model gave to what is copied to the host.
void bench_sampling(const Bench& b, const char* name, const Tensor& logits, const TokenDraw& draw) {
  const int64_t rows = logits.dim(0);
  const auto vocab = static_cast<int32_t>(logits.dim(1));
  const OpContext context = b.context();
  std::vector<TokenDraw> on_host(static_cast<size_t>(rows), draw);
  for (size_t r = 0; r < on_host.size(); ++r) {
    on_host[r].uniform = (static_cast<double>(r) + 0.5) / static_cast<double>(rows);
  }
  Tensor host(DType::kU8, {rows, static_cast<int64_t>(sizeof(TokenDraw))});
  std::memcpy(host.data(), on_host.data(), static_cast<size_t>(host.bytes()));
  const Tensor draws = copied_to(b.runtime, std::move(host));
  const Tensor best = b.make(DType::kI32, {rows}), stats = b.make(DType::kF32, {rows, 4});
  const Tensor ids = b.make(DType::kI32, {rows}), chosen = b.make(DType::kF32, {rows});
  const double seconds = b.time(rows < 64 ? 20 : 8, [&](int) {
    b.ops.token_confidence({logits, vocab, std::nullopt, best, stats}, context);
    if (draw.temperature == 0) return;
    b.ops.sample_tokens({.logits = logits,
                         .vocab = vocab,
                         .best = best,
                         .stats = stats,
                         .draws = draws,
                         .on_host = on_host,
                         .ids = ids,
                         .chosen = chosen},
                        context);
  });
  std::printf("%-24s of %6d  rows %5ld  %9.2f us\n", name, vocab, static_cast<long>(rows), seconds * 1e6);
}

Tensor numbered(const Bench& b, const Shape& shape, const std::function<int32_t(int64_t)>& value) {
  Tensor host(DType::kI32, shape);
  for (int64_t i = 0; i < host.numel(); ++i) host.data_as<int32_t>()[i] = value(i);
  return copied_to(b.runtime, std::move(host));
}

// Ops on all rows of logits beside sampling: the likeliest tokens, 300 biases a row, and masks that allow one token in
// 64. Bytes are those that an op must read and write.
void bench_logit_ops(const Bench& b, const Tensor& logits, double copy) {
  constexpr int64_t kBiases = 300;
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  const auto ids_below = static_cast<int32_t>(vocab);
  const OpContext context = b.context();
  const auto bench = [&](const char* name, int64_t bytes, const std::function<void(int)>& op) {
    const double seconds = b.time(rows < 64 ? 20 : 8, op), rate = static_cast<double>(bytes) / seconds;
    std::printf("%-24s of %6ld  rows %5ld  %9.2f us  %7.3f TB/s (%.2f of copy)\n", name, static_cast<long>(vocab),
                static_cast<long>(rows), seconds * 1e6, rate / 1e12, rate / copy);
  };
  const Tensor each = numbered(b, {rows}, [](int64_t i) { return static_cast<int32_t>(i); });
  for (const int64_t count : {1, 20, 128}) {
    const Tensor ids = b.make(DType::kI32, {rows, count}), top = b.make(DType::kF32, {rows, count});
    bench(str("top_tokens ", count).c_str(), rows * vocab * 4, [&](int) {
      b.ops.top_tokens({.logits = logits, .vocab = ids_below, .rows = each, .ids = ids, .top = top}, context);
    });
  }
  const Tensor biased = numbered(b, {rows * kBiases}, [](int64_t i) { return static_cast<int32_t>(i / kBiases); });
  const Tensor ids = numbered(b, {rows * kBiases},
                              [vocab](int64_t i) { return static_cast<int32_t>(i % kBiases * (vocab / kBiases)); });
  const Tensor biases = Tensor::zeros(DType::kF32, {rows * kBiases}, b.runtime);
  bench("bias_tokens", rows * kBiases * 20, [&](int) {  // three numbers, and a logit read and written
    b.ops.bias_tokens({.logits = logits, .rows = biased, .ids = ids, .biases = biases}, context);
  });
  const int64_t words = MaskTokensArgs::words_of(ids_below);
  const Tensor bits = numbered(b, {rows, words}, [](int64_t i) { return i % 2 == 0 ? 1 << 13 : 0; });
  bench("mask_tokens", rows * (words * 4 + vocab * 4 - vocab / 64 * 4),
        [&](int) { b.ops.mask_tokens({.logits = logits, .vocab = ids_below, .rows = each, .bits = bits}, context); });
}

double copy_rate(const Bench& b) {
  constexpr int64_t kCopied = int64_t{1} << 30;
  const Tensor from = b.make(DType::kU8, {kCopied}), to = b.make(DType::kU8, {kCopied});
  b.runtime.fill_zero(from.data(), kCopied);
  return 2.0 * kCopied / b.time(4, [&](int) { b.runtime.copy_on_device(to.data(), from.data(), kCopied); });
}

void bench_all_products(const Bench& b, double copy) {
  using Combine = FusedLinearArgs::Combine;
  constexpr auto kFast = Determinism::kFast, kStrict = Determinism::kStrict;
  for (const int64_t rows : {1, 8, 16}) {
    bench_products(b, "head 248320 x 1024", 248320, 1024, rows, copy, Combine::kNone, kFast);
    bench_products(b, "norm, gate and up 3584 x 1024", 3584, 1024, rows, copy, Combine::kSiluMul, kFast);
    bench_products(b, "qkv 6144 x 1024", 6144, 1024, rows, copy, Combine::kNone, kFast);
    bench_products(b, "out 1024 x 2048", 1024, 2048, rows, copy, Combine::kNone, kFast);
    bench_products(b, "down 1024 x 3584", 1024, 3584, rows, copy, Combine::kNone, kFast);
    bench_products(b, "14336 x 4096", 14336, 4096, rows, copy, Combine::kNone, kFast);
  }
  for (const int64_t rows : {32, 16384}) {
    bench_products(b, "gate and up 3584 x 1024", 3584, 1024, rows, copy, Combine::kSiluMul, kFast);
    bench_products(b, "the same, strict", 3584, 1024, rows, copy, Combine::kSiluMul, kStrict);
    bench_products(b, "down 1024 x 3584", 1024, 3584, rows, copy, Combine::kNone, kFast);
    bench_products(b, "the same, strict", 1024, 3584, rows, copy, Combine::kNone, kStrict);
    bench_products(b, "6144 x 1024", 6144, 1024, rows, copy, Combine::kNone, kFast);
  }
}

// Products alone, without norms, as both modes make them.
void bench_both_modes(const Bench& b, double copy) {
  using Combine = FusedLinearArgs::Combine;
  const auto bench = [&](const char* name, int64_t out, int64_t in, int64_t rows, Combine combine) {
    bench_products(b, name, out, in, rows, copy, combine, Determinism::kFast, Normed::kNo);
    bench_products(b, "the same, strict", out, in, rows, copy, combine, Determinism::kStrict, Normed::kNo);
  };
  for (const int64_t rows : {1, 16, 32, 64, 2048, 16384}) {
    bench("gate and up 3584 x 1024, alone", 3584, 1024, rows, Combine::kSiluMul);
    bench("gate and up 9728 x 2560, alone", 9728, 2560, rows, Combine::kSiluMul);
    bench("6144 x 1024, alone", 6144, 1024, rows, Combine::kNone);
    bench("1024 x 2048, alone", 1024, 2048, rows, Combine::kNone);
    bench("1024 x 3584, alone", 1024, 3584, rows, Combine::kNone);
    bench("9728 x 2560, alone", 9728, 2560, rows, Combine::kNone);
    bench("2560 x 9728, alone", 2560, 9728, rows, Combine::kNone);
  }
}

// GEMMs between attention and the next layer, for steps of many requests and for prompts.
void bench_all_gate_up(const Bench& b, double copy) {
  constexpr std::array<int64_t, 16> kCounts = {32,  64,  96,  128, 192, 256,  288,  352,
                                               416, 512, 608, 704, 832, 1024, 2048, 16384};
  bench_gate_up(b, "gate and up 9728 x 2560", 9728, 2560, kCounts);
  bench_gate_up(b, "gate and up 3584 x 1024", 3584, 1024, kCounts);
  constexpr auto kNone = FusedLinearArgs::Combine::kNone;
  bench_products(b, "out 2560 x 4096, alone", 2560, 4096, 704, copy, kNone, Determinism::kFast, Normed::kNo);
  bench_products(b, "down 2560 x 9728, alone", 2560, 9728, 704, copy, kNone, Determinism::kFast, Normed::kNo);
}

// The end of a denoise step of SDAR-4B's shape: rows of one request, of a few and of 128.
void bench_confidence(const Bench& b) {
  for (const int64_t rows : {4, 64, 320}) bench_sampling(b, "most likely", normal_rows(b, rows, 151936), {});
}

void bench_all_sampling(const Bench& b, double copy) {
  for (const int64_t vocab : {151936, 248320}) {
    for (const int64_t rows : {1, 8, 64, 256, 512}) {
      const Tensor logits = normal_rows(b, rows, vocab);
      bench_sampling(b, "most likely", logits, {});
      bench_sampling(b, "top k 20, top p 0.95", logits, {.temperature = 0.7f, .top_p = 0.95f, .top_k = 20});
      bench_sampling(b, "top p 0.95", logits, {.temperature = 0.7f, .top_p = 0.95f});
      bench_sampling(b, "temperature 0.7", logits, {.temperature = 0.7f});
      bench_logit_ops(b, logits, copy);
    }
  }
}

// All of it, or one part: layers, narrow, products, modes, gates, experts, sampling or confidence.
void run(std::string_view part, std::string_view leave_out) {
  const Bench b{.leave_out = leave_out};
  const double copy = copy_rate(b);
  std::printf("copy %.3f TB/s\n", copy / 1e12);
  if (part.empty() || part == "layers") bench_layers(b, std::array<int64_t, 5>{1, 2, 4, 8, 16}, copy);
  if (part.empty() || part == "narrow") bench_all_narrow(b, copy);
  if (part.empty() || part == "products") bench_all_products(b, copy);
  if (part.empty() || part == "modes") bench_both_modes(b, copy);
  if (part.empty() || part == "gates") bench_all_gate_up(b, copy);
  for (const Experts& e : kExperts) {
    for (const int64_t rows : {1, 2, 4, 8, 64, 512, 4096}) {
      if (part.empty() || part == "experts") bench_experts(b, e, rows, copy);
    }
  }
  if (part.empty() || part == "sampling") bench_all_sampling(b, copy);
  if (part.empty() || part == "confidence") bench_confidence(b);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // whoever stops it early has what was measured
  return headrace::app::guarded([&] {
    std::string_view part, leave_out;  // [PART] [--leave-out gemv,sequence]
    for (int i = 1; i < argc; ++i) {
      const bool names = std::string_view(argv[i]) == "--leave-out" && i + 1 < argc;
      names ? leave_out = argv[++i] : part = argv[i];
    }
    headrace::run(part, leave_out);
    return 0;
  });
}
