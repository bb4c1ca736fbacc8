// Strategies over tiny checkpoints against the families' own loops in Python (tools/golden/make_decoding_golden.py):
// the same positions get the same tokens in the same passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/golden_device.h"
#include "engine/with_end_tokens.h"
#include "headrace/engine/engine.h"
#include "headrace/weights/config_file.h"

namespace headrace {
namespace {

using testing_support::golden_folder;
using testing_support::golden_model;
using testing_support::golden_runner;
using testing_support::GoldenDevice;
using Rule = DecodingParams::Rule;
using BlockCache = StrategyConfig::BlockCache;
using Schedule = DecodingParams::Schedule;
using testing_support::WithEndTokens;

// Which positions got which tokens, pass by pass.
using Passes = std::vector<std::map<int32_t, int32_t>>;

struct GoldenRequest {
  std::vector<int32_t> prompt, eos_ids, tokens;
  int32_t max_tokens = 0;
  Passes passes;
};

struct GoldenCase {
  std::string loop, checkpoint, options;
  StrategyConfig config;
  SamplingParams params{.temperature = 0};  // of each request
  std::vector<GoldenRequest> requests;
};

std::vector<int32_t> ids_of(const JsonValue& value) {
  const std::vector<int64_t> ids = value.as_ints();
  return {ids.begin(), ids.end()};
}

GoldenRequest request_of(const JsonValue& entry) {
  GoldenRequest r{.prompt = ids_of(entry.at("prompt")),
                  .eos_ids = ids_of(entry.at("eos_ids")),
                  .tokens = ids_of(entry.at("tokens")),
                  .max_tokens = static_cast<int32_t>(entry.at("max_tokens").as_int()),
                  .passes = {}};
  const auto end = static_cast<int32_t>(r.prompt.size() + r.tokens.size());
  for (const JsonValue& pass : entry.at("passes").as_array()) {
    auto& decided = r.passes.emplace_back();
    for (const JsonValue& pair : pass.as_array()) {
      const std::vector<int32_t> at = ids_of(pair);
      if (at[0] < end) decided[at[0]] = at[1];  // what is cut off in the end is nobody's to see
    }
  }
  // Passes that only cut-off positions are left to: a request is over when its own tokens are.
  while (entry.at("whole_blocks").as_bool() && r.passes.back().empty()) r.passes.pop_back();
  return r;
}

std::string text_of(const JsonValue& value) {
  if (value.is_string()) return value.as_string();
  return value.kind() == JsonValue::Kind::kBool ? (value.as_bool() ? "yes" : "no") : str(value.as_float());
}

Rule rule_of(const std::string& name) {
  if (name == "sequential") return Rule::kLeftmost;
  if (name == "margin") return Rule::kMargin;
  if (name == "random" || name == "origin") return Rule::kRandom;
  return name == "entropy" ? Rule::kEntropy : Rule::kConfidence;
}

void draw_by(const JsonValue& options, SamplingParams& params) {
  params.temperature = static_cast<float>(options.float_or("temperature", 0));
  params.top_k = static_cast<int32_t>(options.int_or("top_k", 0));
  params.top_p = static_cast<float>(options.float_or("top_p", 1));
  params.seed = static_cast<uint64_t>(options.int_or("seed", 0));
  if (options.bool_or("ban_end", false)) params.end_of_text = SamplingParams::EndOfText::kBanned;
}

GoldenCase case_of(const JsonValue& entry) {
  const JsonValue& options = entry.at("options");
  GoldenCase c{.loop = entry.at("loop").as_string(), .checkpoint = entry.at("checkpoint").as_string()};
  for (const auto& [key, value] : options.as_object()) {
    c.options += str(" ", key, " ", text_of(value));
  }
  if (options.find("block") != nullptr) c.config.block_size = static_cast<int32_t>(options.at("block").as_int());
  c.config.num_blocks = static_cast<int32_t>(options.int_or("blocks", 1));
  DecodingParams& decoding = c.params.decoding;
  if (options.find("threshold") != nullptr) decoding.threshold = static_cast<float>(options.at("threshold").as_float());
  decoding.schedule = entry.at("whole_blocks").as_bool() ? Schedule::kReference : Schedule::kThreshold;
  const bool defaults = decoding.schedule == Schedule::kReference;  // what is not stated is as the family has it
  if (c.loop == "fast_dllm_v2" && !defaults)
    c.config.block_cache = options.bool_or("block_cache", false) ? BlockCache::kYes : BlockCache::kNo;
  if (options.find("steps") != nullptr) decoding.steps = static_cast<int32_t>(options.at("steps").as_int());
  const std::string rule = options.string_or("alg", options.string_or("order", options.string_or("remasking", "")));
  if (!rule.empty() || !defaults) decoding.rule = rule_of(rule);
  decoding.order_temperature = static_cast<float>(options.float_or("alg_temp", 0));
  decoding.cfg_scale = static_cast<float>(options.float_or("cfg_scale", 0));
  draw_by(options, c.params);
  c.requests.push_back(request_of(entry));
  return c;
}

// The cases of one loop, with or without what the published loops decide only to throw away.
std::vector<GoldenCase> cases_of(const std::string& loop, bool whole_blocks) {
  std::vector<GoldenCase> cases;
  const JsonValue file = read_json_file(golden_folder("decoding.json"));
  for (const JsonValue& entry : file.as_array()) {
    if (entry.at("loop").as_string() != loop || entry.at("whole_blocks").as_bool() != whole_blocks) continue;
    GoldenCase next = case_of(entry);
    const bool same =
        !cases.empty() && cases.back().checkpoint == next.checkpoint && cases.back().options == next.options;
    if (same) {
      cases.back().requests.push_back(std::move(next.requests.front()));
    } else {
      cases.push_back(std::move(next));
    }
  }
  return cases;
}

struct Decoded {
  std::vector<int32_t> tokens;
  Passes passes;
};

bool decided(const Sequence& s, int32_t position) {
  return position < s.num_tokens() && std::ranges::none_of(s.blocks, [position](const DecodingBlock& b) {
           return b.begin() <= position && position < b.end() && b.masked(position);
         });
}

EngineConfig engine_config(const std::string& strategy, const GoldenCase& c, int32_t max_requests,
                           GoldenDevice device) {
  return {.runner = golden_runner(device),
          .max_requests = max_requests,
          .max_context_len = 128,
          .strategy = strategy,
          .decoding = c.config};
}

// The requests, all at once.
std::map<int64_t, Decoded> decode(const Model& model, const EngineConfig& config, const GoldenCase& c,
                                  const std::vector<GoldenRequest>& requests) {
  Engine engine(model, config);
  std::map<int64_t, Decoded> result;
  engine.observe([&result](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kPlanned || plan.sample.empty()) return;
    auto& pass = result[s.id].passes.emplace_back();
    for (const SampleRow& row : plan.sample) {
      if (decided(s, row.position)) pass[row.position] = s.tokens[static_cast<size_t>(row.position)];
    }
  });
  for (const GoldenRequest& r : requests) {
    SamplingParams params = c.params;
    params.max_tokens = r.max_tokens;
    engine.add(r.prompt, params);
  }
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) result[out.sequence_id].tokens.push_back(out.token.id);
  }
  for (auto& [id, decoded] : result) {
    const auto end = static_cast<int32_t>(requests[static_cast<size_t>(id - 1)].prompt.size() + decoded.tokens.size());
    for (auto& pass : decoded.passes) std::erase_if(pass, [end](const auto& at) { return at.first >= end; });
  }
  EXPECT_EQ(engine.scheduler().free_pages(), 64);
  if (!engine.runner().on_cpu() && c.params.decoding.cfg_scale > 0) {
    EXPECT_EQ(engine.runner().num_graph_steps(), 0) << "no graph is of two texts";
  } else if (!engine.runner().on_cpu()) {  // all but prompts that are larger than any graph
    EXPECT_GE(engine.runner().num_graph_steps() + static_cast<int64_t>(requests.size()), engine.counters().steps);
    EXPECT_GT(engine.runner().num_graph_steps(), 0);
  }
  return result;
}

// Each request alone, then those without end tokens together.
void expect_equal(const std::string& strategy, const GoldenCase& c, GoldenDevice device) {
  SCOPED_TRACE(str(c.loop, " on ", c.checkpoint, c.options));
  const auto model = golden_model(c.checkpoint, device);
  std::vector<GoldenRequest> together;
  for (const GoldenRequest& want : c.requests) {
    const WithEndTokens ended(*model, want.eos_ids);
    const Decoded got = decode(ended, engine_config(strategy, c, 1, device), c, {want}).at(1);
    EXPECT_EQ(got.tokens, want.tokens) << "prompt of " << want.prompt.size();
    EXPECT_EQ(got.passes, want.passes) << "prompt of " << want.prompt.size();
    if (want.eos_ids.empty()) together.push_back(want);
  }
  if (together.empty()) return;  // where end tokens are banned, each request has its own
  const WithEndTokens endless(*model, {});
  const auto got = decode(endless, engine_config(strategy, c, 4, device), c, together);
  for (size_t i = 0; i < together.size(); ++i) {
    EXPECT_EQ(got.at(static_cast<int64_t>(i) + 1).tokens, together[i].tokens) << "in one batch";
    EXPECT_EQ(got.at(static_cast<int64_t>(i) + 1).passes, together[i].passes) << "in one batch";
  }
}

void expect_all_equal(const std::string& strategy, const std::vector<GoldenCase>& cases, size_t count,
                      GoldenDevice device = GoldenDevice::kCpu) {
  EXPECT_EQ(cases.size(), count);
  for (const GoldenCase& c : cases) {
    if (device == GoldenDevice::kFake && testing_support::has_experts(c.checkpoint)) continue;
    expect_equal(strategy, c, device);
  }
}

TEST(DecodingGolden, MultiBDWithoutIdlePasses) { expect_all_equal("multi_bd", cases_of("multi_bd", false), 10); }

TEST(DecodingGolden, FullAttentionByThreshold) { expect_all_equal("full_attention", cases_of("llada", false), 6); }

TEST(DecodingGolden, LLaDAsOwnLoop) { expect_all_equal("full_attention", cases_of("llada", true), 12); }

TEST(DecodingGolden, DreamsOwnLoop) { expect_all_equal("full_attention", cases_of("dream", true), 15); }

TEST(DecodingGolden, TheLoopsOfSDARLLaDA2AndStableDiffCoder) {
  expect_all_equal("multi_bd", cases_of("sdar", true), 13);
}

TEST(DecodingGolden, FastDLLMv2) {
  expect_all_equal("fast_dllm_v2", cases_of("fast_dllm_v2", true), 2);
  expect_all_equal("fast_dllm_v2", cases_of("fast_dllm_v2", false), 3);
}

TEST(DecodingGolden, DualCache) { expect_all_equal("dual_cache", cases_of("dual_cache", false), 5); }

class CudaDecodingGolden : public testing::TestWithParam<GoldenDevice> {
 protected:
  void SetUp() override {
    if (GetParam() == GoldenDevice::kCuda && !testing_support::has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(CudaDecodingGolden, MultiBD) {
  expect_all_equal("multi_bd", cases_of("multi_bd", false), 10, GetParam());
  expect_all_equal("multi_bd", cases_of("sdar", true), 13, GetParam());
}

TEST_P(CudaDecodingGolden, FullAttention) {
  expect_all_equal("full_attention", cases_of("llada", false), 6, GetParam());
  expect_all_equal("full_attention", cases_of("llada", true), 12, GetParam());
  expect_all_equal("full_attention", cases_of("dream", true), 15, GetParam());
}

TEST_P(CudaDecodingGolden, Caches) {
  expect_all_equal("fast_dllm_v2", cases_of("fast_dllm_v2", true), 2, GetParam());
  expect_all_equal("fast_dllm_v2", cases_of("fast_dllm_v2", false), 3, GetParam());
  expect_all_equal("dual_cache", cases_of("dual_cache", false), 5, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaDecodingGolden, testing::Values(GoldenDevice::kFake, GoldenDevice::kCuda),
                         [](const auto& device) { return device.param == GoldenDevice::kFake ? "Fake" : "GPU"; });

}  // namespace
}  // namespace headrace
