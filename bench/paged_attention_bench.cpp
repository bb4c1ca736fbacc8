// Paged attention on the CPU, 32/8 heads of 128, bf16: one JSON line per case. Arguments: the kernel set (default: the
// best), the threads (default: all cores), a part of the case's name (default: all cases).
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "headrace/base/parallel.h"
#include "headrace/kernels/cpu/dispatch.h"
#include "measured_limits.h"

namespace headrace::bench {
namespace {

constexpr int32_t kHeads = 32, kKVHeads = 8, kDim = 128, kPage = 64;

struct Run {
  const OpSet& ops;
  OpContext context;
  std::string only;  // cases whose name holds this
};

uint32_t next(uint32_t& state) { return state = state * 1664525u + 1013904223u; }

// bf16 of size 2^-7 to 2, either sign.
Tensor filled(const Shape& shape) {
  Tensor tensor(DType::kBF16, shape);
  auto* const data = static_cast<uint16_t*>(tensor.data());
  uint32_t state = 1;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const uint32_t bits = next(state) >> 8;
    data[i] = static_cast<uint16_t>((bits & 0x83ffu) | 0x3c00u);
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

// A pool whose pages a table of `requests` rows holds in random order.
struct Cache {
  Cache(int32_t requests, int32_t tokens)
      : pages_each((tokens + kPage - 1) / kPage),
        k(filled({int64_t{requests} * pages_each, kKVHeads, kPage, kDim})),
        v(filled({int64_t{requests} * pages_each, kKVHeads, kPage, kDim})),
        table(DType::kI32, {requests, pages_each}) {
    const auto count = static_cast<uint32_t>(requests * pages_each);
    std::vector<int32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    uint32_t state = 7;
    for (uint32_t i = count - 1; i > 0; --i) std::swap(order[i], order[(next(state) >> 8) % (i + 1)]);
    std::copy(order.begin(), order.end(), table.data_as<int32_t>());
  }
  KVLayerView view() const { return {.k = k, .v = v}; }

  int32_t pages_each;
  Tensor k, v, table;
};

// 256 MiB of cache, read once per call.
void decode(const Run& run, HeadGrouping grouping, const char* name, double read) {
  if (std::string(name).find(run.only) == std::string::npos) return;
  constexpr int32_t kBatch = 8, kContext = 8192;
  const Cache cache(kBatch, kContext);
  const Tensor q = filled({kBatch, kHeads, kDim}), k = filled({kBatch, kKVHeads, kDim}), out(DType::kBF16, q.shape());
  std::vector<KeySpan> spans;
  for (int32_t r = 0; r < kBatch; ++r) {
    spans.push_back({.q_off = r, .ctx_len = kContext, .phys0 = kContext, .page_row = r});
  }
  const PagedAttentionArgs args = {.q = q, .k_new = k, .v_new = k, .kv = cache.view(), .spans = spans,
                                   .page_table = cache.table, .scale = 0.088f, .grouping = grouping, .out = out};
  const double seconds = median_seconds(9, [&] { run.ops.paged_attention(args, run.context); });
  const auto bytes = static_cast<double>(cache.k.bytes() + cache.v.bytes());
  print(run, name, seconds, bytes, 4.0 * kBatch * kContext * kHeads * kDim, bytes / seconds / read);
}

// Four calls' inputs in rotation do not fit the last cache together; the matrix limit is what counts.
void prefill(const Run& run, HeadGrouping grouping, const char* name, double matrix) {
  if (std::string(name).find(run.only) == std::string::npos) return;
  constexpr int32_t kTokens = 4096, kLayers = 8;
  const Tensor q = filled({kLayers, kTokens, kHeads, kDim}), k = filled({kLayers, kTokens, kKVHeads, kDim});
  const Tensor out(DType::kBF16, q.shape());
  const std::vector<KeySpan> spans = {{.q_len = kTokens}};
  int64_t layer = 0;
  const double seconds = median_seconds(5, [&] {
    layer = (layer + 1) % kLayers;
    run.ops.paged_attention({.q = q.view().select(layer), .k_new = k.view().select(layer),
                             .v_new = k.view().select(layer), .spans = spans, .scale = 0.088f, .grouping = grouping,
                             .out = out.view().select(layer)},
                            run.context);
  });
  const double flops = 2.0 * kTokens * (kTokens + 1) * kHeads * kDim;
  print(run, name, seconds, static_cast<double>(q.bytes() + k.bytes()) / kLayers, flops, flops / seconds / matrix);
}

void run_all(const Run& run) {
  const double read = read_bandwidth(run.context.threads), matrix = matrix_rate();
  std::printf("{\"name\": \"limits\", \"read_bytes_per_s\": %.3e, \"matrix_flops_per_s\": %.3e}\n", read, matrix);
  decode(run, HeadGrouping::kGrouped, "decode_batch8_8k_grouped", read);
  decode(run, HeadGrouping::kPerHead, "decode_batch8_8k_per_head", read);
  prefill(run, HeadGrouping::kGrouped, "prefill_4k_grouped", matrix);
  prefill(run, HeadGrouping::kPerHead, "prefill_4k_per_head", matrix);
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  const std::span<char*> arguments(argv, static_cast<size_t>(argc));
  const headrace::OpSet& ops =
      argc > 1 ? headrace::cpu::select_kernel_set(arguments[1]) : headrace::cpu::select_kernel_set();
  const int threads = argc > 2 ? std::atoi(arguments[2]) : headrace::available_cores();
  headrace::bench::run_all({.ops = ops, .context = {.threads = threads}, .only = argc > 3 ? arguments[3] : ""});
}
