// Strategies that work on several blocks, or change tokens again, over tiny checkpoints against loops in Python
// (tools/golden/make_refining_golden.py): the same positions change to the same tokens in the same passes.
#include <gtest/gtest.h>

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
using testing_support::WithEndTokens;

// Position and token of each change, pass by pass; the mask for one that becomes a mask again.
using Passes = std::vector<std::vector<std::vector<int32_t>>>;

struct Decoded {
  std::vector<int32_t> tokens;
  Passes passes;
};

std::vector<int32_t> ids_of(const JsonValue& value) {
  const std::vector<int64_t> ids = value.as_ints();
  return {ids.begin(), ids.end()};
}

Decoded wanted(const JsonValue& entry) {
  Decoded want{.tokens = ids_of(entry.at("tokens")), .passes = {}};
  for (const JsonValue& pass : entry.at("passes").as_array()) {
    auto& changes = want.passes.emplace_back();
    for (const JsonValue& change : pass.as_array()) changes.push_back(ids_of(change));
  }
  return want;
}

SamplingParams params_of(const JsonValue& entry) {
  SamplingParams params{.max_tokens = static_cast<int32_t>(entry.at("max_tokens").as_int()), .temperature = 0};
  params.decoding.threshold = static_cast<float>(entry.at("threshold").as_float());
  if (const JsonValue* edit = entry.find("edit_threshold")) {
    params.decoding.edit_threshold = static_cast<float>(edit->as_float());
  }
  if (const JsonValue* remask = entry.find("remask")) {
    params.decoding.remask_threshold = static_cast<float>(remask->as_float());
  }
  if (const JsonValue* steps = entry.find("steps")) params.decoding.steps = static_cast<int32_t>(steps->as_int());
  if (entry.find("schedule")) params.decoding.schedule = DecodingParams::Schedule::kReference;
  params.decoding.stability = static_cast<float>(entry.float_or("stability", 0));
  params.decoding.copy_penalty = static_cast<float>(entry.float_or("copy_penalty", 0));
  params.decoding.merge_candidates = static_cast<int32_t>(entry.int_or("merge", 1));
  if (const JsonValue* edits = entry.find("max_edits")) {
    params.decoding.max_edits = static_cast<int32_t>(edits->as_int());
  }
  return params;
}

StrategyConfig::Merge merge_of(const JsonValue& entry) {
  const JsonValue* smooth = entry.find("smooth");
  if (entry.find("as_summed")) return {.mode = StrategyConfig::Merge::Mode::kTopKAsSummed};
  if (smooth == nullptr) return {};
  return {.mode = StrategyConfig::Merge::Mode::kSmooth, .weight = static_cast<float>(smooth->as_float())};
}

EngineConfig config_of(const JsonValue& entry, int32_t max_requests, GoldenDevice device) {
  return {.runner = golden_runner(device),
          .max_requests = max_requests,
          .max_context_len = 128,
          .strategy = entry.at("strategy").as_string(),
          .decoding = {.block_size = static_cast<int32_t>(entry.at("block").as_int()),
                       .num_blocks = static_cast<int32_t>(entry.at("blocks").as_int()),
                       .merge = merge_of(entry)}};
}

// The token at `position`, or -1 where it is undecided.
int32_t token_at(const Sequence& s, int32_t position) {
  for (const DecodingBlock& b : s.blocks) {
    if (b.begin() <= position && position < b.end() && b.masked(position)) return -1;
  }
  return s.tokens[static_cast<size_t>(position)];
}

// What each pass changes, of tokens that a later end token may cut off too.
class Recorder {
 public:
  void observe(StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (plan.sample.empty()) return;
    if (moment == StepMoment::kPlanned) {
      before_.clear();
      for (const SampleRow& row : plan.sample) before_.push_back(token_at(s, row.position));
      return;
    }
    auto& changes = passes.emplace_back();
    for (size_t i = 0; i < before_.size(); ++i) {
      const int32_t position = plan.sample[i].position;
      if (position >= s.num_tokens() || token_at(s, position) == before_[i]) continue;
      changes.push_back({position, s.tokens[static_cast<size_t>(position)]});
    }
  }
  Passes passes;

 private:
  std::vector<int32_t> before_;
};

// `entries` at the same time.
std::vector<Decoded> decode(const Model& model, const std::vector<const JsonValue*>& entries, GoldenDevice device) {
  Engine engine(model, config_of(*entries.front(), static_cast<int32_t>(entries.size()), device));
  std::map<int64_t, Recorder> recorders;
  engine.observe([&](StepMoment m, const Sequence& s, const StepPlan& plan) { recorders[s.id].observe(m, s, plan); });
  std::vector<Decoded> results(entries.size());
  for (const JsonValue* entry : entries) engine.add(ids_of(entry->at("prompt")), params_of(*entry));
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) {
      results[static_cast<size_t>(out.sequence_id - 1)].tokens.push_back(out.token.id);
    }
  }
  for (auto& [id, recorder] : recorders) results[static_cast<size_t>(id - 1)].passes = std::move(recorder.passes);
  EXPECT_EQ(engine.scheduler().free_pages(), 64);
  return results;
}

// Changes of positions that are in the end part of the text.
Passes of_text(Passes passes, size_t end) {
  for (auto& pass : passes) {
    std::erase_if(pass, [end](const auto& change) { return change[0] >= static_cast<int32_t>(end); });
  }
  return passes;
}

void expect_equal(const Decoded& got, const JsonValue& entry, const char* how) {
  const Decoded want = wanted(entry);
  const size_t prompt = entry.at("prompt").as_array().size(), end = prompt + want.tokens.size();
  EXPECT_EQ(got.tokens, want.tokens) << how << ", prompt of " << prompt;
  EXPECT_EQ(of_text(got.passes, end), of_text(want.passes, end)) << how << ", prompt of " << prompt;
}

// Every case of a strategy alone, and those of the same options that have no end token in one batch.
void expect_all_equal(const std::string& strategy, size_t count, GoldenDevice device = GoldenDevice::kCpu) {
  const JsonValue file = read_json_file(golden_folder("refining.json"));
  std::map<std::string, std::vector<const JsonValue*>> together;
  size_t found = 0;
  for (const JsonValue& entry : file.as_array()) {
    if (entry.at("strategy").as_string() != strategy) continue;
    ++found;
    const std::string checkpoint = entry.at("checkpoint").as_string();
    const auto model = golden_model(checkpoint, device);
    const WithEndTokens ended(*model, ids_of(entry.at("eos")));
    expect_equal(decode(ended, {&entry}, device).front(), entry, "alone");
    if (!ids_of(entry.at("eos")).empty()) continue;
    const JsonValue* smooth = entry.find("smooth");
    together[str(checkpoint, " ", entry.at("block").as_int(), " ", entry.at("blocks").as_int(), " ",
                 smooth == nullptr ? 0 : smooth->as_float(), entry.find("as_summed") ? " as summed" : "")]
        .push_back(&entry);
  }
  EXPECT_EQ(found, count);
  for (const auto& [options, entries] : together) {
    SCOPED_TRACE(options);
    const std::string checkpoint = entries.front()->at("checkpoint").as_string();
    const auto model = golden_model(checkpoint, device);
    const WithEndTokens endless(*model, {});
    const std::vector<Decoded> got = decode(endless, entries, device);
    for (size_t i = 0; i < got.size(); ++i) expect_equal(got[i], *entries[i], "in a batch");
  }
}

TEST(RefiningGolden, D2F) { expect_all_equal("d2f", 28); }

TEST(RefiningGolden, MultiBDEdit) { expect_all_equal("multi_bd_edit", 40); }

TEST(RefiningGolden, DMax) { expect_all_equal("dmax", 36); }

class CudaRefiningGolden : public testing::Test {
 protected:
  void SetUp() override {
    if (!testing_support::has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(CudaRefiningGolden, D2F) { expect_all_equal("d2f", 28, GoldenDevice::kCuda); }

TEST_F(CudaRefiningGolden, MultiBDEdit) { expect_all_equal("multi_bd_edit", 40, GoldenDevice::kCuda); }

TEST_F(CudaRefiningGolden, DMax) { expect_all_equal("dmax", 36, GoldenDevice::kCuda); }

}  // namespace
}  // namespace headrace
