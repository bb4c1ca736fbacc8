// Attention on a GPU: every case of attention_gpu_cases.cpp, timed as graphs of repeated calls, one JSON object a line.
// Calls of a cold case read keys of their own in turn, of which the L2 then holds next to nothing. The limits are
// measured in the same run, on a line of their own: bytes that a device copy moves, counted read plus written, and
// those that a kernel reads.
#include <algorithm>
#include <array>
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
#include "bench/attention_gpu_cases.h"
#include "bench/host_step.h"
#include "bench/random_inputs.h"
#include "bench/read_memory.h"
#include "headrace/batch/device_batch.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda/attention/heuristics.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/device_registry.h"

namespace headrace::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Normally distributed values on the host, made once for all cases.
class Inputs {
 public:
  // Copies values to `x`, from element `begin` of the period on, so that tensors differ.
  void fill(DeviceRuntime& device, const TensorView& x, int64_t begin) const {
    const Tensor& values = x.dtype() == DType::kE4M3 ? fp8_ : bf16_;
    const auto* const from = static_cast<const char*>(values.data());
    int64_t skipped = begin * static_cast<int64_t>(size_of(x.dtype()));
    for (int64_t at = 0; at < x.bytes();) {
      const int64_t bytes = std::min(x.bytes() - at, values.bytes() - skipped);
      device.copy_to_device(static_cast<char*>(x.data()) + at, from + skipped, static_cast<size_t>(bytes));
      at += bytes, skipped = 0;
    }
  }

 private:
  Tensor bf16_ = normal_values(DType::kBF16, {kNormalPeriod}), fp8_ = normal_values(DType::kE4M3, {kNormalPeriod});
};

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

double read_rate(DeviceRuntime& device, const Inputs& inputs, const OpContext& context, double copy) {
  constexpr int64_t kBytes = int64_t{4} << 30;
  const Tensor memory(DType::kBF16, {kBytes / 2}, device), sum(DType::kF32, {1}, device);
  inputs.fill(device, memory, 0);
  double best = 0;
  for (const int words : kWordsPerThread) {
    const auto read = [&](size_t) { read_memory(memory, words, sum, context); };
    Calls calls(device, read, kBytes / copy);
    for (int i = 0; i < 5; ++i) calls.measure();
    best = std::max(best, kBytes / calls.median_s());
  }
  return best;
}

struct Work {
  double flops = 0, bytes = 0;
};

Work work_of(const AttentionCase& c) {
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

// Returns the number of key sets that calls read in turn. Prompts read theirs many times; "short" keys stay in the L2.
int64_t sets_of(const AttentionCase& c, const Work& w) {
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
Tensor table_of(const AttentionCase& c, std::span<const int32_t> pages, int64_t longest) {
  Tensor table = Tensor::zeros(DType::kI32, {static_cast<int64_t>(c.contexts.size()), longest});
  size_t next = 0;
  for (size_t r = 0; r < c.contexts.size(); ++r) {
    for (int64_t i = 0; i < c.pages_of(r); ++i)
      set_element(table, static_cast<int64_t>(r) * longest + i, pages[next++]);
  }
  return table;
}

ForwardBatch batch_of(const AttentionCase& c, const Tensor& table) {
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

// From here on a call makes the plan that it needs.
void forget_plans(std::vector<PagedAttentionArgs>& calls, std::vector<DeviceMetadata>& planless) {
  for (const PagedAttentionArgs& args : calls) planless.push_back(*args.on_device);
  for (size_t i = 0; i < calls.size(); ++i) planless[i].plans = nullptr, calls[i].on_device = &planless[i];
}

std::string scientific(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2e", value);
  return text.data();
}

// Both modes, by turns: what is measured first finds a cooler device.
void run(const AttentionCase& c, DeviceRuntime& device, const OpSet& ops, const Inputs& inputs, OpContext context,
         double copy) {
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
  inputs.fill(device, pool.layer(0).k, 0);
  inputs.fill(device, pool.layer(0).v, 1'000'000);
  const std::vector<int32_t> order = shuffled(sets * pages);
  const int64_t tokens = std::accumulate(c.new_tokens.begin(), c.new_tokens.end(), int64_t{0});
  const Tensor q(DType::kBF16, {tokens, c.heads, c.dim}, device), out(DType::kBF16, {tokens, c.heads, c.dim}, device);
  inputs.fill(device, q, 2'000'000);
  const auto requests = static_cast<int64_t>(c.contexts.size());
  const int64_t plan_bytes = std::min(AttentionPlanCache::kBytes, (int64_t{8} << 30) / sets);  // there may be thousands
  std::vector<std::unique_ptr<DeviceBatch>> placed;
  std::vector<PagedAttentionArgs> calls;
  std::vector<KeySpan> longest_spans;  // the host's, where they are not the device's
  HostStep host;
  for (int64_t i = 0; i < sets; ++i) {
    const Tensor table = table_of(c, std::span(order).subspan(static_cast<size_t>(i * pages)), longest);
    const ForwardBatch batch = batch_of(c, table);
    placed.push_back(std::make_unique<DeviceBatch>(DeviceBatchConfig{.max_requests = requests,
                                                                     .max_tokens = tokens,
                                                                     .table_rows = requests,
                                                                     .table_pages = longest,
                                                                     .page_size = c.page_size,
                                                                     .plan_bytes = plan_bytes},
                                                   device));
    host = time_host_step(batch, pool, *placed.back(), device, context);
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
  const std::string step = host.step_s ? ", \"host_step_s\": " + scientific(*host.step_s) : "";
  for (size_t mode = 0; mode < kModes; ++mode) {
    const double s = measured[mode].median_s();
    std::printf(
        "{\"name\": \"%s\", \"mode\": \"%s\", \"page_size\": %d, \"median_s\": %.4e, \"tflops\": %.1f, "
        "\"tbytes_per_s\": %.3f, \"copy_tbytes_per_s\": %.3f, \"with_plan_s\": %.3e, \"first_upload_s\": %.2e, "
        "\"upload_s\": %.2e%s}\n",
        c.name.c_str(), mode == 0 ? "fast" : "strict", c.page_size, s, w.flops / s * 1e-12, w.bytes / s * 1e-12,
        copy * 1e-12, measured[mode + kModes].median_s(), host.first_upload_s, host.upload_s, step.c_str());
  }
  std::fflush(stdout);
}

struct Flags {
  std::string wanted, set = "cuda", leave_out;
};

void run_all(const Flags& flags) {
  const std::shared_ptr<DeviceRuntime> opened = open_device("cuda");
  DeviceRuntime& device = *opened;
  const OpSet& ops = cuda_module().ops(flags.set);
  OpContext context;
  context.stream = device.stream();
  const Inputs inputs;
  context.leave_out = flags.leave_out;
  const double copy = copy_rate(device);
  std::printf("{\"name\": \"limits\", \"copy_tbytes_per_s\": %.3f, \"read_tbytes_per_s\": %.3f}\n", copy * 1e-12,
              read_rate(device, inputs, context, copy) * 1e-12);
  for (const AttentionCase& c : attention_gpu_cases()) {
    if (!c.name.starts_with(flags.wanted) || (flags.wanted.empty() && c.name.starts_with(kAsked))) continue;
    run(c, device, ops, inputs, context, copy);
  }
}

constexpr const char* kUsage =
    "Usage: attention_gpu_bench [--leave-out=FAMILIES] [NAME [SET]]\n"
    "  NAME  how names of cases begin: decode, prefill, diffusion, mixed, short, few, several, many, batch, fp8, or\n"
    "        others (heads of 80, 96 and 192, pages of 1 and 256); without one all but others run\n"
    "  SET   of kernels: cuda (default) or cuda_baseline\n"
    "  --leave-out=FAMILIES  kernel families that run no call, with commas between them: ";

// Error kInvalidArgument for a name that is none of the families'.
void require_families(const std::string& names) {
  const std::string known = "," + cuda::attention_family_names() + ",";
  for (std::string_view rest = names; !rest.empty();) {
    const std::string name(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    HR_REQUIRE(known.find("," + name + ",") != std::string::npos, ErrorCode::kInvalidArgument,
               "--leave-out: no kernel family is called '", name, "', expected some of ",
               cuda::attention_family_names());
  }
}

Flags flags_of(std::span<char* const> arguments) {
  constexpr std::string_view kLeaveOut = "--leave-out=";
  Flags flags;
  if (!arguments.empty() && std::string_view(arguments[0]).starts_with(kLeaveOut)) {
    flags.leave_out = std::string_view(arguments[0]).substr(kLeaveOut.size());
    require_families(flags.leave_out);
    arguments = arguments.subspan(1);
  }
  if (!arguments.empty()) flags.wanted = arguments[0];
  if (arguments.size() > 1) flags.set = arguments[1];
  return flags;
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  return headrace::app::guarded([&] {
    const std::string first = argc > 1 ? argv[1] : "";
    if (first == "-h" || first == "--help") {
      std::printf("%s%s\n", headrace::bench::kUsage, headrace::cuda::attention_family_names().c_str());
    } else {
      headrace::bench::run_all(headrace::bench::flags_of(std::span(argv, static_cast<size_t>(argc)).subspan(1)));
    }
    return 0;
  });
}
