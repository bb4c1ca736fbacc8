// headrace bench: one JSON object per line and case, the machine's limits measured in the same run.
#include <fmt/format.h>

#include <array>
#include <numeric>

#include "commands.h"
#include "headrace/attention/attention.h"
#include "headrace/base/parallel.h"
#include "headrace/kernels/cpu/dispatch.h"
#include "headrace/llm/llm.h"
#include "json.h"
#include "limits.h"
#include "model_path.h"
#include "output.h"

namespace headrace::app {
namespace {

constexpr int64_t kLimitBytes = int64_t{2} << 30, kRotationBytes = int64_t{256} << 20;

struct Result {
  std::string name;
  double median_s = 0, bytes = 0, flops = 0;
  std::string limit;
  double limit_rate = 0;  // of bytes, or of flops when bytes is 0
};

void print(const Result& r) {
  const double rate = (r.bytes > 0 ? r.bytes : r.flops) / r.median_s;
  write_out(
      fmt::format("{{\"name\": {}, \"median_s\": {:.6f}, \"bytes\": {:.0f}, \"flops\": {:.0f}, \"limit\": \"{}\", "
                  "\"limit_rate\": {:.4g}, \"rate\": {:.4g}, \"share\": {:.3f}}}\n",
                  json_string(r.name), r.median_s, r.bytes, r.flops, r.limit, r.limit_rate, rate, rate / r.limit_rate));
}

void fill(const Tensor& t) {
  for (int64_t i = 0; i < t.numel(); ++i) set_element(t, i, static_cast<double>((i * 7919) % 2003) / 1001.0 - 1.0);
}

// Decode: 8 requests with 8k tokens each in pages of 64, in a shuffled order; 32/8 heads of 128, bf16.
void bench_decode(int threads, AttnImpl impl, double read) {
  constexpr int32_t kRequests = 8, kContext = 8192, kPage = 64, kPages = kContext / kPage;
  const KVPool pool({.groups = {{{8, 128, 128}, {0}}}, .num_pages = kRequests * kPages, .page_size = kPage});
  const Tensor table(DType::kI32, {kRequests, kPages});
  for (int64_t i = 0; i < table.numel(); ++i)
    table.data_as<int32_t>()[i] = static_cast<int32_t>(1 + i * 509 % (kRequests * kPages));
  const Tensor q(DType::kBF16, {kRequests, 32, 128}), k(DType::kBF16, {kRequests, 8, 128}),
      out(DType::kBF16, {kRequests, 32, 128});
  fill(q), fill(k);
  std::vector<KeySpan> spans;
  for (int32_t r = 0; r < kRequests; ++r)
    spans.push_back({.q_off = r, .ctx_len = kContext, .phys0 = kContext, .page_row = r});
  PagedAttentionArgs args{.q = q,
                          .k_new = k,
                          .v_new = k,
                          .kv = pool.layer(0),
                          .spans = spans,
                          .page_table = table,
                          .scale = 0.088f,
                          .out = out};
  const OpContext context{.threads = threads};
  const double seconds = median_seconds(
      7, [&] { impl == AttnImpl::kGrouped ? grouped_attention(args, context) : optimized_attention(args, context); });
  print({.name = fmt::format("attention decode batch 8 ctx 8k page 64 32/8 d128 bf16 {}", name_of(impl)),
         .median_s = seconds,
         .bytes = static_cast<double>(pool.mem_bytes()),
         .flops = 4.0 * kRequests * kContext * 32 * 128,
         .limit = "R",
         .limit_rate = read});
}

void bench_prefill(int threads, double matmul) {
  constexpr int32_t kTokens = 4096;
  const Tensor q(DType::kBF16, {kTokens, 32, 128}), k(DType::kBF16, {kTokens, 8, 128}),
      v(DType::kBF16, {kTokens, 8, 128});
  const Tensor out(DType::kBF16, {kTokens, 32, 128});
  fill(q), fill(k), fill(v);
  const std::array spans = {KeySpan{.q_len = kTokens}};
  const double seconds = median_seconds(3, [&] {
    grouped_attention({.q = q, .k_new = k, .v_new = v, .spans = spans, .scale = 0.088f, .out = out},
                      {.threads = threads});
  });
  print({.name = "attention prefill 4k causal 32/8 d128 bf16",
         .median_s = seconds,
         .flops = 2.0 * kTokens * kTokens * 32 * 128,
         .limit = "M",
         .limit_rate = matmul});
}

// One GDN layer, 16/32 heads of 128; states rotate over at least 256 MB.
void bench_gdn(int threads, int32_t requests, int32_t tokens, const std::string& name, double limit) {
  constexpr int32_t kKHeads = 16, kVHeads = 32, kDim = 128;
  const int64_t state_bytes = int64_t{kVHeads} * kDim * kDim * 4;
  const auto slots = static_cast<int32_t>(std::max<int64_t>(kRotationBytes / state_bytes, requests));
  const Tensor state = Tensor::zeros(DType::kF32, {slots + 1, kVHeads, kDim, kDim});
  const int64_t rows = int64_t{requests} * tokens;
  const Tensor qkv(DType::kBF16, {rows, (2 * kKHeads + kVHeads) * kDim}), a(DType::kBF16, {rows, kVHeads});
  const Tensor out(DType::kBF16, {rows, kVHeads, kDim}), vector(DType::kF32, {kVHeads});
  fill(qkv), fill(a), fill(vector);
  std::vector<KeySpan> spans;
  std::vector<StateSlots> places(static_cast<size_t>(requests));
  for (int32_t r = 0; r < requests; ++r) spans.push_back({.q_off = r * tokens, .q_len = tokens});
  const OpSet& ops = cpu::select_kernel_set();
  int32_t next = 0;
  const double seconds = median_seconds(9, [&] {
    for (StateSlots& place : places) place.read = place.write = 1 + next++ % slots;
    ops.gated_delta_rule({.qkv = qkv,
                          .a = a,
                          .b = a,
                          .a_log = vector,
                          .dt_bias = vector,
                          .state = state,
                          .num_k_heads = kKHeads,
                          .spans = spans,
                          .slots = places,
                          .out = out},
                         {.threads = threads});
  });
  const bool decode = tokens == 1;
  print({.name = name,
         .median_s = seconds,
         .bytes = decode ? 2.0 * static_cast<double>(requests * state_bytes) : 0.0,
         .flops = 10.5e6 * static_cast<double>(rows) / 64 * kVHeads,
         .limit = decode ? "RW" : "M",
         .limit_rate = limit});
}

void bench_model(const ModelFlags& flags, int threads, double read) {
  LLMOptions options{.random_weights = flags.random_weights};
  options.context.threads = threads;
  LLM llm(model_directory(flags.model), options);
  constexpr int32_t kTokens = 32;
  llm.engine().add({1, 2, 3, 4},
                   {.max_tokens = kTokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
  llm.engine().step();
  const double seconds = median_seconds(kTokens - 8, [&] { llm.engine().step(); });
  print({.name =
             fmt::format("model decode batch 1 {} {}", llm.model_info().architecture, name_of(llm.model_info().dtype)),
         .median_s = seconds,
         .bytes = static_cast<double>(llm.model_info().weight_bytes),
         .limit = "R",
         .limit_rate = read});
}

}  // namespace

int bench(const std::string& what, const ModelFlags& flags) {
  const int threads = flags.threads > 0 ? flags.threads : available_cores();
  if (what == "attention") {
    const double read = read_bandwidth(threads, kLimitBytes);
    bench_decode(threads, AttnImpl::kGrouped, read);
    bench_decode(threads, AttnImpl::kOptimized, read);
    bench_prefill(threads, matmul_rate(threads));
  } else if (what == "gdn") {
    bench_gdn(threads, 8, 1, "gdn decode batch 8 16/32 heads 128x128 fp32 state",
              read_write_bandwidth(threads, kLimitBytes));
    bench_gdn(threads, 1, 4096, "gdn prefill 4k 16/32 heads 128x128 bf16", matmul_rate(threads));
  } else {
    bench_model(flags, threads, read_bandwidth(threads, kLimitBytes));
  }
  return 0;
}

}  // namespace headrace::app
