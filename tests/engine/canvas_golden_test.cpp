// DiffusionGemma's decoding against transformers' own generate (tools/golden/make_canvas_golden.py), token for token.
#include <gtest/gtest.h>

#include <map>

#include "engine/golden_device.h"
#include "headrace/engine/engine.h"
#include "headrace/weights/config_file.h"

namespace headrace {
namespace {

using testing_support::golden_folder;
using testing_support::GoldenDevice;

// The network with an end token and a schedule of the test's choice.
class WithSchedule final : public Model {
 public:
  WithSchedule(const Model& model, const JsonValue& entry) : model_(model), info_(model.info()) {
    info_.eos_ids = {static_cast<int32_t>(entry.at("eos").as_int())};
    const JsonValue& options = entry.at("options");
    DiffusionInfo::Canvas& canvas = info_.diffusion->canvas;
    canvas.stability = static_cast<int32_t>(options.int_or("stability_threshold", canvas.stability));
    canvas.t_min = static_cast<float>(options.float_or("t_min", static_cast<double>(canvas.t_min)));
    canvas.t_max = static_cast<float>(options.float_or("t_max", static_cast<double>(canvas.t_max)));
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override { return model_.forward(batch); }

 private:
  const Model& model_;
  ModelInfo info_;
};

std::vector<int32_t> ids_of(const JsonValue& value) {
  const std::vector<int64_t> ids = value.as_ints();
  return {ids.begin(), ids.end()};
}

SamplingParams params_of(const JsonValue& entry) {
  SamplingParams params{.max_tokens = static_cast<int32_t>(entry.at("max_tokens").as_int()),
                        .temperature = 1,
                        .seed = static_cast<uint64_t>(entry.at("seed").as_int())};
  const JsonValue& options = entry.at("options");
  if (const JsonValue* steps = options.find("max_denoising_steps")) {
    params.decoding.schedule = DecodingParams::Schedule::kReference;
    params.decoding.steps = static_cast<int32_t>(steps->as_int());
  }
  if (const JsonValue* bound = options.find("sampler_config")) {
    params.decoding.threshold = static_cast<float>(bound->as_float());
  }
  return params;
}

struct Decoded {
  std::vector<int32_t> tokens;
  std::vector<std::vector<int32_t>> steps;  // canvas and its step, pass by pass
  int32_t num_forwards = 0;
};

std::vector<Decoded> decode(const Model& model, const std::vector<const JsonValue*>& entries, int64_t rows = 256,
                            GoldenDevice device = GoldenDevice::kCpu) {
  RunnerConfig runner = testing_support::golden_runner(device);
  runner.max_tokens = rows;
  Engine engine(model, {.runner = runner,
                        .max_requests = static_cast<int32_t>(entries.size()),
                        .max_context_len = 128,
                        .strategy = "diffusion_gemma"});
  std::vector<Decoded> results(entries.size());
  engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    if (moment == StepMoment::kCommitted || plan.sample.empty()) return;
    const int32_t canvas = (plan.sample.front().position - s.prompt_len) / model.info().diffusion->block_size;
    results[static_cast<size_t>(s.id - 1)].steps.push_back({canvas, plan.sample.front().step});
  });
  for (const JsonValue* entry : entries) engine.add(ids_of(entry->at("prompt")), params_of(*entry));
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) {
      Decoded& result = results[static_cast<size_t>(out.sequence_id - 1)];
      result.tokens.push_back(out.token.id);
      result.num_forwards = out.num_forwards;
    }
  }
  EXPECT_EQ(engine.scheduler().free_pages(), 64);
  if (!engine.runner().on_cpu() && entries.size() == 1) {  // every step of its canvases is one launch
    EXPECT_EQ(engine.runner().num_graph_steps(), static_cast<int64_t>(results.front().steps.size()));
  }
  if (!engine.runner().on_cpu()) {
    EXPECT_GT(engine.runner().num_graph_steps(), 0);
  }
  return results;
}

void expect_equal(const Decoded& got, const JsonValue& entry) {
  SCOPED_TRACE(str("prompt of ", entry.at("prompt").as_array().size()));
  EXPECT_EQ(got.tokens, ids_of(entry.at("tokens")));
  std::vector<std::vector<int32_t>> steps;
  for (const JsonValue& step : entry.at("steps").as_array()) steps.push_back(ids_of(step));
  EXPECT_EQ(got.steps, steps);
  // N steps for each canvas, and a causal pass between two of them.
  EXPECT_EQ(got.num_forwards, static_cast<int32_t>(steps.size()) + steps.back()[0]);
}

class CanvasGolden : public ::testing::Test {
 protected:
  const JsonValue file_ = read_json_file(golden_folder("canvas.json"));
  const std::unique_ptr<Model> model_ = testing_support::golden_model("diffusion_gemma", GoldenDevice::kCpu);
};

TEST_F(CanvasGolden, TheScheduleIsThatOfGenerationConfig) {
  const DiffusionInfo& info = *model_->info().diffusion;
  EXPECT_EQ(info.canvas.max_steps, 4);
  EXPECT_EQ(info.canvas.noise_vocab, 256);
  EXPECT_FLOAT_EQ(info.canvas.t_min, 0.1f);
  EXPECT_FLOAT_EQ(info.canvas.t_max, 0.3f);
  EXPECT_FLOAT_EQ(info.canvas.confidence, 1.5f);
  EXPECT_FLOAT_EQ(info.threshold, 6.0f);
}

TEST_F(CanvasGolden, EveryRequestAloneAndWithItsTextInChunks) {
  EXPECT_EQ(file_.as_array().size(), 7u);
  for (const JsonValue& entry : file_.as_array()) {
    const WithSchedule model(*model_, entry);
    expect_equal(decode(model, {&entry}).front(), entry);
    expect_equal(decode(model, {&entry}, 17).front(), entry);
  }
}

// Prompts, canvases and encode passes of different requests share passes.
void expect_equal_in_one_batch(const JsonValue& file, const Model& model, GoldenDevice device) {
  std::vector<const JsonValue*> entries;
  for (const JsonValue& entry : file.as_array()) {
    const JsonValue& options = entry.at("options");
    const bool own = options.find("t_min") != nullptr || options.find("stability_threshold") != nullptr;
    if (!own && entry.at("eos").as_int() == 999) entries.push_back(&entry);
  }
  ASSERT_EQ(entries.size(), 4u);
  const std::vector<Decoded> got = decode(model, entries, 256, device);
  for (size_t i = 0; i < got.size(); ++i) expect_equal(got[i], *entries[i]);
}

TEST_F(CanvasGolden, RequestsInOneBatch) { expect_equal_in_one_batch(file_, *model_, GoldenDevice::kCpu); }

TEST(CudaCanvasGolden, RequestsInOneBatch) {
  if (!testing_support::has_cuda()) GTEST_SKIP() << "no CUDA device";
  const auto model = testing_support::golden_model("diffusion_gemma", GoldenDevice::kCuda);
  expect_equal_in_one_batch(read_json_file(golden_folder("canvas.json")), *model, GoldenDevice::kCuda);
}

TEST(CudaCanvasGolden, EveryRequestAloneAndWithItsTextInChunks) {
  if (!testing_support::has_cuda()) GTEST_SKIP() << "no CUDA device";
  const JsonValue file = read_json_file(golden_folder("canvas.json"));
  const auto on_device = testing_support::golden_model("diffusion_gemma", GoldenDevice::kCuda);
  for (const JsonValue& entry : file.as_array()) {
    const WithSchedule model(*on_device, entry);
    for (const int64_t rows : {256, 17})
      expect_equal(decode(model, {&entry}, rows, GoldenDevice::kCuda).front(), entry);
  }
}

}  // namespace
}  // namespace headrace
