// Attention on a GPU: every case of docs/performance/, timed as graphs of repeated calls, one JSON object a line.
// Calls of a cold case read keys of their own in turn, of which the L2 then holds next to nothing. The limits are
// measured in the same run: bytes that a device copy moves, counted read plus written.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "apps/exit_status.h"
#include "headrace/base/device_runtime.h"
#include "headrace/batch/device_batch.h"
#include "headrace/kernels/cuda_module.h"
#include "headrace/kernels/device_registry.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

struct Case {
  std::string name;
  std::vector<int32_t> contexts, new_tokens;  // by request
  int32_t heads = 32, kv_heads = 8, dim = 128, page_size = 64, block_size = 1;
  KeySpan::Kind kind = KeySpan::Kind::kCausal;
  DType pool = DType::kBF16;
  int32_t most_keys = 0;  // in place of what it has, as a graph that serves any context is recorded; 0: as it is

  int64_t pages_of(size_t r) const { return (contexts[r] + new_tokens[r] + page_size - 1) / page_size; }
};

void fill_random(DeviceRuntime& device, const TensorView& x, uint64_t seed) {
  const Tensor values(x.dtype(), {int64_t{1} << 22});
  for (int64_t i = 0; i < values.numel(); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const float uniform = static_cast<float>(seed >> 40) * 0x1p-23f - 1.0f;
    if (x.dtype() == DType::kE4M3) {
      values.data_as<E4M3>()[i] = E4M3(uniform);
    } else {
      values.data_as<BF16>()[i] = BF16(uniform);
    }
  }
  for (int64_t at = 0; at < x.bytes(); at += values.bytes()) {
    device.copy_to_device(static_cast<char*>(x.data()) + at, values.data(),
                          static_cast<size_t>(std::min(x.bytes() - at, values.bytes())));
  }
}

// A graph of calls 0, 1, 2 and so on, and how long a call takes in it.
class Calls {
 public:
  Calls(DeviceRuntime& device, const std::function<void(size_t)>& call, double about_s)
      : device_(device), count_(std::clamp(static_cast<int>(0.01 / about_s), 2, 200)) {
    for (size_t i = 0; i < 2; ++i) call(i);
    device.synchronize();
    device.begin_capture();
    for (int i = 0; i < count_; ++i) call(static_cast<size_t>(i));
    graph_ = device.end_capture();
    graph_->launch();
    device.synchronize();
  }
  void measure() {
    const auto start = Clock::now();
    graph_->launch();
    device_.synchronize();
    times_.push_back(std::chrono::duration<double>(Clock::now() - start).count() / count_);
  }
  double median_s() {
    std::sort(times_.begin(), times_.end());
    return times_[times_.size() / 2];
  }

 private:
  DeviceRuntime& device_;
  int count_;
  std::unique_ptr<DeviceGraph> graph_;
  std::vector<double> times_;
};

double copy_rate(DeviceRuntime& device) {
  const size_t bytes = size_t{2} << 30;
  const Tensor from(DType::kU8, {static_cast<int64_t>(bytes)}, device),
      to(DType::kU8, {static_cast<int64_t>(bytes)}, device);
  double best = 1;
  for (int i = 0; i < 5; ++i) {
    device.synchronize();
    const auto start = Clock::now();
    for (int j = 0; j < 20; ++j) device.copy_on_device(to.data(), from.data(), bytes);
    device.synchronize();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count() / 20);
  }
  return 2 * static_cast<double>(bytes) / best;
}

struct Work {
  double flops = 0, bytes = 0;
};

Work work_of(const Case& c) {
  Work w;
  const double head = c.dim * 4.0;  // two products, a multiply and an add each
  for (size_t r = 0; r < c.contexts.size(); ++r) {
    const double n = c.new_tokens[r], ctx = c.contexts[r];
    const double pairs = n * ctx + (c.kind == KeySpan::Kind::kCausal ? n * (n + 1) / 2 : n * n);
    w.flops += pairs * c.heads * head;
    w.bytes += (ctx + n) * c.kv_heads * c.dim * 2.0 * static_cast<double>(size_of(c.pool)) + n * c.heads * c.dim * 4.0;
  }
  return w;
}

// How many sets of keys the calls read in turn: prompts read theirs many times each, and "short" keys stay in the L2.
int64_t sets_of(const Case& c, const Work& w) {
  constexpr double kCold = 1 << 30;
  const bool cold = !c.contexts.empty() && c.contexts[0] > 0 && !c.name.starts_with("short");
  return cold ? std::max<int64_t>(1, std::llround(kCold / w.bytes)) : 1;
}

// Numbers 1 to `count` in a random order.
std::vector<int32_t> shuffled(int64_t count) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 1);
  uint64_t seed = 7;
  for (int64_t i = count - 1; i > 0; --i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[static_cast<size_t>(i)], order[(seed >> 33) % static_cast<uint64_t>(i + 1)]);
  }
  return order;
}

// The requests' page tables, from consecutive `pages`.
Tensor table_of(const Case& c, std::span<const int32_t> pages, int64_t longest) {
  Tensor table = Tensor::zeros(DType::kI32, {static_cast<int64_t>(c.contexts.size()), longest});
  size_t next = 0;
  for (size_t r = 0; r < c.contexts.size(); ++r) {
    for (int64_t i = 0; i < c.pages_of(r); ++i)
      set_element(table, static_cast<int64_t>(r) * longest + i, pages[next++]);
  }
  return table;
}

ForwardBatch batch_of(const Case& c, const Tensor& table) {
  ForwardBatch batch{.mode = ForwardMode::kExtend};
  int32_t tokens = 0;
  for (size_t r = 0; r < c.contexts.size(); ++r) {
    batch.attn.spans.push_back({.q_off = tokens,
                                .q_len = c.new_tokens[r],
                                .ctx_len = c.contexts[r],
                                .phys0 = c.contexts[r],
                                .kind = c.kind,
                                .block_size = c.block_size,
                                .page_row = static_cast<int32_t>(r)});
    tokens += c.new_tokens[r];
  }
  batch.attn.page_table = table;
  return batch;
}

struct Uploads {
  double first_s = 0, again_s = 0;  // with all pages new; the median of a step that adds no page
};

Uploads time_uploads(DeviceBatch& placed, const ForwardBatch& batch) {
  const auto upload = [&] {
    const auto start = Clock::now();
    placed.upload(batch);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const double first_s = upload();
  std::vector<double> uploads;
  for (int i = 0; i < 21; ++i) uploads.push_back(upload());
  std::sort(uploads.begin(), uploads.end());
  return {first_s, uploads[10]};
}

// From here on a call makes the plan that it needs.
void forget_plans(std::vector<PagedAttentionArgs>& calls, std::vector<DeviceMetadata>& planless) {
  for (const PagedAttentionArgs& args : calls) planless.push_back(*args.on_device);
  for (size_t i = 0; i < calls.size(); ++i) planless[i].plans = nullptr, calls[i].on_device = &planless[i];
}

// Both modes, by turns: what is measured first finds a cooler device.
void run(const Case& c, DeviceRuntime& device, const OpSet& ops, OpContext context, double copy) {
  const Work w = work_of(c);
  const int64_t sets = sets_of(c, w);
  int64_t pages = 0, longest = 0;
  for (size_t r = 0; r < c.contexts.size(); ++r) {
    pages += c.pages_of(r), longest = std::max(longest, c.pages_of(r));
  }
  longest = std::max<int64_t>(longest, c.most_keys / c.page_size);
  const KVPool pool({.groups = {{{c.kv_heads, c.dim, c.dim}, {0}}},
                     .num_pages = static_cast<int32_t>(sets * pages),
                     .page_size = c.page_size,
                     .dtype = c.pool},
                    device);
  fill_random(device, pool.layer(0).k, 1);
  fill_random(device, pool.layer(0).v, 2);
  const std::vector<int32_t> order = shuffled(sets * pages);
  const int64_t tokens = std::accumulate(c.new_tokens.begin(), c.new_tokens.end(), int64_t{0});
  const Tensor q(DType::kBF16, {tokens, c.heads, c.dim}, device), out(DType::kBF16, {tokens, c.heads, c.dim}, device);
  fill_random(device, q, 3);
  const auto requests = static_cast<int64_t>(c.contexts.size());
  std::vector<std::unique_ptr<DeviceBatch>> placed;
  std::vector<PagedAttentionArgs> calls;
  std::vector<KeySpan> longest_spans;  // the host's, where they are not the device's
  Uploads uploads;
  for (int64_t i = 0; i < sets; ++i) {
    const Tensor table = table_of(c, std::span(order).subspan(static_cast<size_t>(i * pages)), longest);
    const ForwardBatch batch = batch_of(c, table);
    placed.push_back(std::make_unique<DeviceBatch>(DeviceBatchConfig{.max_requests = requests,
                                                                     .max_tokens = tokens,
                                                                     .table_rows = requests,
                                                                     .table_pages = longest,
                                                                     .page_size = c.page_size},
                                                   device));
    uploads = time_uploads(*placed.back(), batch);
    const ForwardBatch& b = placed.back()->upload(batch);
    longest_spans = b.attn.spans;
    for (KeySpan& span : longest_spans) span.ctx_len = std::max(span.ctx_len, c.most_keys - 1);
    calls.push_back({.q = q,
                     .kv = pool.layer(0),
                     .spans = c.most_keys > 0 ? std::span<const KeySpan>(longest_spans) : b.attn.spans,
                     .on_device = b.attn.on_device,
                     .page_table = b.attn.page_table,
                     .scale = 0.088f,
                     .out = out});
  }
  const double about = std::max(w.flops / 6.5e14, w.bytes / copy) * 1.5;
  std::vector<DeviceMetadata> planless;
  const auto call = [&](size_t i) { ops.paged_attention(calls[i % calls.size()], context); };
  constexpr size_t kModes = 2;
  constexpr int kTurns = 5;
  std::vector<Calls> measured;  // of both modes, then of both when each call makes its plan
  for (const bool planned : {true, false}) {
    for (const Determinism mode : {Determinism::kFast, Determinism::kStrict}) {
      context.determinism = mode;
      for (size_t i = 0; i < calls.size(); ++i) call(i);  // makes each set's plan
      measured.emplace_back(device, call, about);
    }
    for (int turn = 0; turn < kTurns; ++turn) {
      for (auto each = measured.end() - kModes; each != measured.end(); ++each) each->measure();
    }
    if (planned) forget_plans(calls, planless);
  }
  for (size_t mode = 0; mode < kModes; ++mode) {
    const double s = measured[mode].median_s();
    std::printf(
        "{\"name\": \"%s\", \"mode\": \"%s\", \"page_size\": %d, \"median_s\": %.4e, \"tflops\": %.1f, "
        "\"tbytes_per_s\": %.3f, \"copy_tbytes_per_s\": %.3f, \"with_plan_s\": %.3e, \"first_upload_s\": %.2e, "
        "\"upload_s\": %.2e}\n",
        c.name.c_str(), mode == 0 ? "fast" : "strict", c.page_size, s, w.flops / s * 1e-12, w.bytes / s * 1e-12,
        copy * 1e-12, measured[mode + kModes].median_s(), uploads.first_s, uploads.again_s);
  }
  std::fflush(stdout);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto prefill = [&](int32_t n, int32_t heads, int32_t kv, int32_t dim) {
    all.push_back({"prefill " + std::to_string(n) + " " + std::to_string(heads) + "/" + std::to_string(kv) + " d" +
                       std::to_string(dim),
                   {0},
                   {n},
                   heads,
                   kv,
                   dim});
  };
  for (const int32_t n : {2048, 8192, 32768}) prefill(n, 32, 8, 128);
  for (const int32_t n : {2048, 8192, 32768}) prefill(n, 16, 2, 256);
  for (const int32_t n : {8192, 32768}) prefill(n, 32, 8, 64);
  const std::vector<int32_t> ones(64, 1);
  for (const int32_t page : {16, 64})
    all.push_back({"decode b64 8k", std::vector<int32_t>(64, 8191), ones, 32, 8, 128, page});
  all.push_back({"decode b128 8k", std::vector<int32_t>(128, 8191), std::vector<int32_t>(128, 1)});
  all.push_back({"decode b256 1k", std::vector<int32_t>(256, 1023), std::vector<int32_t>(256, 1)});
  all.push_back({"decode b1 32k", {32767}, {1}});
  all.push_back({"decode b1 128k d256", {131071}, {1}, 16, 2, 256});
  for (const int32_t k : {4, 8, 16, 64}) {
    all.push_back({"decode one " + std::to_string(k) + "k", {k * 1024 - 1}, {1}});
    all.push_back({"decode one d256 16/2 " + std::to_string(k) + "k", {k * 1024 - 1}, {1}, 16, 2, 256});
  }
  for (const int32_t most : {32, 128}) {
    for (const int32_t k : {1, 4, 16}) {
      Case& graph = all.emplace_back(
          Case{"decode in a graph for " + std::to_string(most) + "k: " + std::to_string(k) + "k", {k * 1024 - 1}, {1}});
      graph.most_keys = most * 1024;
    }
  }
  std::vector<int32_t> zipf;
  for (int i = 1; i <= 64; ++i) zipf.push_back(std::max(256, 65536 / i) - 1);
  all.push_back({"decode b64 zipf", zipf, ones});
  all.push_back({"diffusion 64 x block 32, 4k", std::vector<int32_t>(64, 4096), std::vector<int32_t>(64, 32), 32, 8,
                 128, 32, 32, KeySpan::Kind::kBlock});
  all.push_back({"diffusion 64 x block 4, 4k", std::vector<int32_t>(64, 4096), std::vector<int32_t>(64, 4), 32, 8, 128,
                 32, 4, KeySpan::Kind::kBlock});
  for (const size_t requests : {64, 128, 256}) {
    all.push_back({"diffusion " + std::to_string(requests) + " x block 4, 320", std::vector<int32_t>(requests, 320),
                   std::vector<int32_t>(requests, 4), 32, 8, 128, 32, 4, KeySpan::Kind::kBlock});
  }
  std::vector<int32_t> ctx(32, 8191), rows(32, 1);
  all.push_back({"decode b32 8k alone", ctx, rows});
  ctx.push_back(0), rows.push_back(2048);
  all.push_back({"mixed: 32 decode at 8k + prefill 2k", ctx, rows});
  all.push_back({"mixed: decode at 128k + prefill 2k", {131071, 0}, {1, 2048}});
  for (const int32_t keys : {64, 320, 1024, 2048, 4096, 8192, 16384}) {
    all.push_back({"short: decode b1 " + std::to_string(keys), {keys - 1}, {1}});
    all.push_back({"short: decode b1 d256 8/2 " + std::to_string(keys), {keys - 1}, {1}, 8, 2, 256});
    all.push_back(
        {"short: block 8 of " + std::to_string(keys), {keys - 8}, {8}, 32, 8, 128, 64, 4, KeySpan::Kind::kBlock});
    all.push_back(
        {"short: decode b8 " + std::to_string(keys), std::vector<int32_t>(8, keys - 1), std::vector<int32_t>(8, 1)});
  }
  for (const int32_t keys : {1024, 2048, 4096, 8192, 16384, 32768}) {
    const auto few = [&](const std::string& name, int32_t block, int32_t heads, int32_t kv, int32_t dim) {
      all.push_back({"few: block " + std::to_string(block) + name + " of " + std::to_string(keys),
                     {keys - block},
                     {block},
                     heads,
                     kv,
                     dim,
                     64,
                     block,
                     KeySpan::Kind::kBlock});
    };
    few("", 4, 32, 8, 128), few("", 8, 32, 8, 128);
    few(" d256 16/2", 2, 16, 2, 256), few(" d256 16/2", 4, 16, 2, 256);
    few(" d64 32/8", 4, 32, 8, 64), few(" d64 32/8", 8, 32, 8, 64);
  }
  for (const int32_t keys : {64, 320, 1024, 2048}) {
    const auto several = [&](size_t requests, const std::string& name, int32_t block, int32_t heads, int32_t dim) {
      all.push_back({"several: " + std::to_string(requests) + " x block " + std::to_string(block) + name + " of " +
                         std::to_string(keys),
                     std::vector<int32_t>(requests, keys - block), std::vector<int32_t>(requests, block), heads,
                     heads / 4, dim, 64, block, KeySpan::Kind::kBlock});
    };
    for (const size_t requests : {1, 2, 4, 8}) several(requests, "", 4, 32, 128);
    for (const size_t requests : {1, 4}) several(requests, "", 8, 32, 128);
    for (const size_t requests : {1, 8}) several(requests, " d256 8/2", 4, 8, 256);
    for (const size_t requests : {1, 8}) several(requests, " d64 16/4", 4, 16, 64);
  }
  const auto many = [&](int32_t requests, int32_t block, int32_t keys) {
    const auto count = static_cast<size_t>(requests);
    all.push_back(
        {"many: " + std::to_string(requests) + " x block " + std::to_string(block) + " of " + std::to_string(keys),
         std::vector<int32_t>(count, keys - block), std::vector<int32_t>(count, block), 32, 8, 128, 64, block,
         KeySpan::Kind::kBlock});
  };
  for (const int32_t requests : {16, 32, 64, 128, 256}) many(requests, 4, 330);
  for (const int32_t block : {1, 8, 16}) many(128, block, 330);
  for (const int32_t keys : {384, 640}) many(128, 8, keys);
  for (const int32_t keys : {100, 640, 1024, 2048}) many(128, 4, keys);
  for (const int32_t keys : {332, 384, 512}) {  // a third of the requests commit a block
    many(128, 4, keys);
    Case& mixed = all.emplace_back(all.back());
    mixed.name = "many: 128 x blocks of 4 or 8 of " + std::to_string(keys);
    for (size_t r = 0; r < mixed.contexts.size(); r += 3) mixed.new_tokens[r] = 8;
  }
  const auto causal = KeySpan::Kind::kCausal;
  const auto batch = [&](int32_t requests, int32_t keys, int32_t heads, int32_t kv_heads, int32_t dim) {
    const auto count = static_cast<size_t>(requests);
    all.push_back({"batch: " + std::to_string(requests) + " x " + std::to_string(keys) + ", " + std::to_string(heads) +
                       "/" + std::to_string(kv_heads) + " d" + std::to_string(dim),
                   std::vector<int32_t>(count, keys - 1), std::vector<int32_t>(count, 1), heads, kv_heads, dim, 64, 1,
                   causal});
  };
  for (const int32_t keys : {330, 1024, 2048}) {
    for (const int32_t requests : {4, 8, 16, 32, 64}) batch(requests, keys, 32, 8, 128);
    for (const int32_t requests : {4, 16, 64, 256}) batch(requests, keys, 8, 2, 256);
  }
  for (const int32_t keys : {4096, 6500, 8192, 16384}) {
    for (const int32_t requests : {2, 4, 8}) batch(requests, keys, 32, 8, 128), batch(requests, keys, 8, 2, 256);
  }
  for (const int32_t page : {16, 64}) {
    all.push_back(
        {"fp8 decode b64 8k", std::vector<int32_t>(64, 8191), ones, 32, 8, 128, page, 1, causal, DType::kE4M3});
  }
  all.push_back({"fp8 decode b1 32k", {32767}, {1}, 32, 8, 128, 64, 1, causal, DType::kE4M3});
  all.push_back({"fp8 decode b1 128k d256", {131071}, {1}, 16, 2, 256, 64, 1, causal, DType::kE4M3});
  all.push_back({"fp8 decode b64 zipf", zipf, ones, 32, 8, 128, 64, 1, causal, DType::kE4M3});
  for (const int32_t n : {2048, 8192, 32768}) {
    all.push_back(
        {"fp8 prefill " + std::to_string(n) + " 32/8 d128", {0}, {n}, 32, 8, 128, 64, 1, causal, DType::kE4M3});
  }
  all.push_back({"fp8 prefill 8192 16/2 d256", {0}, {8192}, 16, 2, 256, 64, 1, causal, DType::kE4M3});
  all.push_back({"fp8 prefill 8192 32/8 d64", {0}, {8192}, 32, 8, 64, 64, 1, causal, DType::kE4M3});
  all.push_back({"fp8 mixed: 32 decode at 8k + prefill 2k", ctx, rows, 32, 8, 128, 64, 1, causal, DType::kE4M3});
  return all;
}

void run_all(const std::string& wanted, std::string_view set) {
  DeviceRuntime& device = open_device("cuda");
  const OpSet& ops = cuda_module().ops(set);
  OpContext context;
  context.stream = device.stream();
  const double copy = copy_rate(device);
  for (const Case& c : cases()) {
    if (c.name.starts_with(wanted)) run(c, device, ops, context, copy);
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  return headrace::app::guarded([&] {
    headrace::run_all(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "cuda");
    return 0;
  });
}
