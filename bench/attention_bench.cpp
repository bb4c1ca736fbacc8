#include "bench/attention_bench.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "bench/limit_beside.h"
#include "bench/measured_limits.h"
#include "bench/random_inputs.h"

namespace headrace::bench {
namespace {

constexpr int32_t kHeads = 32, kKVHeads = 8, kFewKVHeads = 4, kHeadDim = 128, kPage = 64;

// A pool whose pages a table of `requests` rows holds in random order.
struct Cache {
  Cache(int32_t requests, int32_t tokens, int32_t kv_heads, DType dtype = DType::kBF16)
      : pages_each((tokens + kPage - 1) / kPage),
        k(normal_values(dtype, {int64_t{requests} * pages_each, kv_heads, kPage, kHeadDim}, 0, deviation(dtype), 2)),
        v(normal_values(dtype, k.shape(), 0, deviation(dtype), 3)),
        table(DType::kI32, {requests, pages_each}) {
    if (dtype == DType::kI8) {
      k_scales = normal_values(DType::kF32, {k.dim(0), kv_heads, kPage}, 1 / deviation(dtype), 0.002, 6);
      v_scales = normal_values(DType::kF32, k_scales.shape(), 1 / deviation(dtype), 0.002, 7);
    }
    std::vector<int32_t> order(static_cast<size_t>(table.numel()));
    std::iota(order.begin(), order.end(), 0);
    uint32_t state = 7;
    for (size_t i = order.size() - 1; i > 0; --i) {
      state = state * 1664525u + 1013904223u;
      std::swap(order[i], order[(state >> 8) % (i + 1)]);
    }
    std::copy(order.begin(), order.end(), table.data_as<int32_t>());
  }
  static double deviation(DType dtype) { return dtype == DType::kI8 ? 20 : 1; }  // codes stay below 127
  KVLayerView view() const { return {.k = k, .v = v, .k_token_scales = k_scales, .v_token_scales = v_scales}; }
  int64_t bytes() const {
    const int64_t scales = k_scales ? k_scales.bytes() + v_scales.bytes() : 0;
    return k.bytes() + v.bytes() + scales;
  }

  int32_t pages_each;
  Tensor k, v, table, k_scales, v_scales;  // scales: of int8
};

// The cache is read once per call.
Result attention_decode(const BenchContext& context, const Cache& cache, HeadGrouping grouping) {
  const auto batch = static_cast<int32_t>(cache.table.dim(0)), length = cache.pages_each * kPage;
  const int64_t kv_heads = cache.k.dim(1);
  const Tensor q = normal_values(DType::kBF16, {batch, kHeads, kHeadDim}),
               k = normal_values(DType::kBF16, {batch, kv_heads, kHeadDim}, 0, 1, 4),
               v = normal_values(DType::kBF16, k.shape(), 0, 1, 5);
  const Tensor out(DType::kBF16, q.shape());
  std::vector<KeySpan> spans;
  for (int32_t r = 0; r < batch; ++r) {
    spans.push_back({.q_off = r, .ctx_len = length, .phys0 = length, .page_row = r});
  }
  const PagedAttentionArgs args = {.q = q,
                                   .k_new = k,
                                   .v_new = v,
                                   .kv = cache.view(),
                                   .spans = spans,
                                   .page_table = cache.table,
                                   .scale = 0.088f,
                                   .grouping = grouping,
                                   .out = out};
  const double seconds = median_seconds(9, [&] { context.ops.paged_attention(args, context.op); });
  const char* const how = grouping == HeadGrouping::kGrouped ? "grouped" : "a pass per query head";
  return {.name = str("attention decode batch ", batch, " ctx ", length / 1024, "k page 64 32/", kv_heads,
                      " d128 bf16, ", cache.k_scales ? "keys in int8, " : "", how),
          .median_s = seconds,
          .bytes = static_cast<double>(cache.bytes()),
          .flops = 4.0 * batch * length * kHeads * kHeadDim,
          .limit = Result::Limit::kRead};
}

Result attention_prefill(const BenchContext& context) {
  constexpr int32_t kTokens = 4096, kLayers = 8;  // 256 MiB of queries
  const Tensor q = normal_values(DType::kBF16, {kLayers, kTokens, kHeads, kHeadDim});
  const Tensor k = normal_values(DType::kBF16, {kLayers, kTokens, kKVHeads, kHeadDim}, 0, 1, 2);
  const Tensor v = normal_values(DType::kBF16, k.shape(), 0, 1, 3);
  const Tensor out =
      normal_values(DType::kBF16, q.shape());  // a layer's first touch brings its memory: not what is measured
  const std::vector<KeySpan> spans = {{.q_len = kTokens}};
  int64_t layer = 0;
  const double seconds = median_seconds(5, [&] {
    layer = (layer + 1) % kLayers;
    context.ops.paged_attention({.q = q.view().select(layer),
                                 .k_new = k.view().select(layer),
                                 .v_new = v.view().select(layer),
                                 .spans = spans,
                                 .scale = 0.088f,
                                 .out = out.view().select(layer)},
                                context.op);
  });
  return {.name = "attention prefill 4k causal 32/8 d128 bf16",
          .median_s = seconds,
          .bytes = static_cast<double>(q.bytes() + k.bytes() + v.bytes()) / kLayers,
          .flops = 2.0 * kTokens * (kTokens + 1) * kHeads * kHeadDim,
          .limit = Result::Limit::kMatrix};
}

}  // namespace

void run_attention_bench(const BenchContext& context, const Report& report) {
  LimitBeside read([&] { return read_bandwidth(context.op.threads); });
  for (const auto& [tokens, kv_heads] : {std::pair(8192, kKVHeads), std::pair(16384, kFewKVHeads)}) {  // 256 MiB each
    const Cache cache(8, tokens, kv_heads);
    report(read.counted(attention_decode(context, cache, HeadGrouping::kGrouped)));
    report(read.counted(attention_decode(context, cache, HeadGrouping::kPerHead)));
  }
  report(read.counted(attention_decode(context, Cache(8, 8192, kKVHeads, DType::kI8), HeadGrouping::kGrouped)));
  LimitBeside matrix([&] { return matrix_rate(context.op.threads); });
  report(matrix.counted(attention_prefill(context)));
}

}  // namespace headrace::bench
