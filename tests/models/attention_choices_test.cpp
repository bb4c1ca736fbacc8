// Which attention kernels the models of bench/shapes get on an H200, against a table: attention_choices.txt. A line is
//   model, KV dtype, mode, step and requests: keys configuration | keys configuration ...
// "graph" lines are steps as they are captured, for any context: the configuration, and the KV-length buckets.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "headrace/batch/attn_metadata.h"
#include "headrace/models/model_registry.h"
#include "headrace/ops/cuda/attention/attention_problem.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

using cuda::AttentionProblem;

constexpr int32_t kPageSize = 64;
constexpr std::array<int32_t, 4> kKeys = {512, 2048, 8192, 32768};
constexpr std::array<int32_t, 4> kRequests = {1, 8, 64, 128};

struct AttentionOfModel {
  std::string name;
  ModelInfo info;
  const RadixAttentionConfig& attention() const { return info.attention_kinds[0]; }
};

std::vector<AttentionOfModel> attention_of_models() {
  std::vector<AttentionOfModel> all;
  for (const auto& entry : std::filesystem::directory_iterator(testing_support::source_tree() / "bench/shapes")) {
    all.push_back(
        {entry.path().filename().string(), stated_info(read_description(entry.path(), 1), {.random_weights = 1})});
  }
  std::ranges::sort(all, {}, &AttentionOfModel::name);
  return all;
}

struct Step {
  int32_t requests = 1, tokens = 1, keys = 512;  // tokens: new ones of a request; keys: with them
  KeySpan::Kind kind = KeySpan::Kind::kCausal;
  enum class Graph : uint8_t { kNo, kDecode, kBlocks } graph = Graph::kNo;
};

// The problem of a step, as paged_attention makes it of its arguments. No memory is read.
AttentionProblem problem_of(const AttentionOfModel& model, DType kv_dtype, Determinism mode, const Step& step) {
  alignas(16) static std::array<char, 16> memory;
  const RadixAttentionConfig& layer = model.attention();
  std::vector<KeySpan> spans;
  for (int32_t i = 0; i < step.requests; ++i) {
    const int32_t cached = step.keys - step.tokens;
    spans.push_back(
        {.q_off = i * step.tokens, .q_len = step.tokens, .ctx_len = cached, .phys0 = cached, .kind = step.kind});
  }
  const int64_t tokens = int64_t{step.requests} * step.tokens;
  DeviceMetadata on_device;
  if (step.graph == Step::Graph::kBlocks) {
    on_device.most_rows = step.tokens;
    spans.push_back({});  // of the padding
  }
  const Shape pool = {1 << 16, layer.num_kv_heads, kPageSize, layer.head_dim},
              rows = {tokens, layer.num_heads, layer.head_dim};
  const PagedAttentionArgs args{
      .q = {nullptr, DType::kBF16, rows},
      .kv = {.k = {memory.data(), kv_dtype, pool}, .v = {memory.data(), kv_dtype, pool}},
      .spans = spans,
      .on_device = &on_device,
      .page_table = {memory.data(), DType::kI32, {step.requests, (step.keys + kPageSize - 1) / kPageSize}},
      .scale = layer.scaling,
      .out = {nullptr, DType::kBF16, rows}};
  return cuda::problem_of(cuda::params_of(args), cuda::shape_of(args, mode));
}

// "512 2048 CONFIG | 8192 CONFIG": adjacent numbers of keys with one configuration stand together.
std::string cells(const AttentionOfModel& model, DType kv_dtype, Determinism mode, Step step) {
  std::string text, before;
  for (const int32_t keys : kKeys) {
    step.keys = keys;
    if (step.kind == KeySpan::Kind::kCausal && step.tokens > 1) step.tokens = keys;  // a prompt
    const std::string config = to_string(choose_attention(problem_of(model, kv_dtype, mode, step), cuda::kH200));
    const std::string number = std::to_string(keys);
    if (config != before) {
      if (!before.empty()) text.append(" ").append(before).append(" | ");
      text += number;
    } else {
      text += " " + number;
    }
    before = config;
  }
  return text + " " + before;
}

std::string graph_cell(const AttentionOfModel& model, DType kv_dtype, Determinism mode, Step step) {
  step.keys = model.info.context_length;
  const AttentionProblem problem = problem_of(model, kv_dtype, mode, step);
  std::string text = to_string(choose_attention(problem, cuda::kH200)) + " | buckets";
  for (const int32_t keys : kv_len_buckets(problem, cuda::kH200)) text += " " + std::to_string(keys);
  return text;
}

std::vector<std::string> lines_of(const AttentionOfModel& model, DType kv_dtype, Determinism mode) {
  const std::string begin = model.name + " " + std::string(name_of(kv_dtype)) +
                            (mode == Determinism::kStrict ? " batch-invariant " : " default ");
  std::vector<std::string> lines;
  const auto add = [&](const std::string& what, const Step& step) {
    lines.push_back(begin + what + " " + std::to_string(step.requests) + ": " +
                    (step.graph == Step::Graph::kNo ? cells(model, kv_dtype, mode, step)
                                                    : graph_cell(model, kv_dtype, mode, step)));
  };
  using enum Step::Graph;
  const int32_t block = model.info.diffusion ? model.info.diffusion->block_size : 0;
  for (const int32_t requests : kRequests) add("decode", {.requests = requests});
  add("prefill", {.tokens = 2});
  for (const int32_t requests : kRequests) add("decode graph", {.requests = requests, .graph = kDecode});
  if (block == 0) return lines;
  for (const int32_t requests : kRequests)
    add("block", {.requests = requests, .tokens = block, .kind = KeySpan::Kind::kFull});
  for (const int32_t requests : kRequests)
    add("block graph", {.requests = requests, .tokens = block, .kind = KeySpan::Kind::kFull, .graph = kBlocks});
  return lines;
}

std::vector<std::string> chosen() {
  std::vector<std::string> lines;
  for (const AttentionOfModel& model : attention_of_models()) {
    for (const DType kv_dtype : {DType::kBF16, DType::kE4M3}) {
      for (const Determinism mode : {Determinism::kFast, Determinism::kStrict}) {
        const auto more = lines_of(model, kv_dtype, mode);
        lines.insert(lines.end(), more.begin(), more.end());
      }
    }
  }
  return lines;
}

std::vector<std::string> table() {
  std::ifstream file(testing_support::source_tree() / "tests/models/attention_choices.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(AttentionChoices, OfEveryModelAreThoseOfTheTable) {
  const std::vector<std::string> expected = table(), found = chosen();
  for (size_t i = 0; i < std::min(expected.size(), found.size()); ++i) EXPECT_EQ(found[i], expected[i]) << "line " << i;
  EXPECT_EQ(found.size(), expected.size());
}

}  // namespace
}  // namespace headrace
