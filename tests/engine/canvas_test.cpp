// The canvas strategy over a toy model: what runs in which pass, and what must not happen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "headrace/engine/engine.h"
#include "toy_diffusion_model.h"

namespace headrace {
namespace {

using testing_support::ToyDiffusionModel;

constexpr int32_t kCanvas = 8;

// Sure of a token that depends on the position alone.
class ToyCanvasModel final : public Model {
 public:
  explicit ToyCanvasModel(double sure = 20, const DiffusionInfo::Canvas& canvas = {}) : sure_(sure) {
    info_ = ToyDiffusionModel({}).info();
    info_.diffusion = DiffusionInfo{.block_size = kCanvas,
                                    .sub_block_size = kCanvas,
                                    .attention = DiffusionInfo::Attention::kCanvas,
                                    .threshold = 0.1f,
                                    .canvas = canvas};
    info_.diffusion->canvas.noise_vocab = ToyDiffusionModel::kVocab;
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    batch.attn.validate(ToyDiffusionModel::kPageSize);
    Tensor logits = Tensor::zeros(DType::kF32, {static_cast<int64_t>(batch.logits_rows.size()), info_.vocab_size});
    const auto positions = batch.positions.as<const int32_t, 1>("positions");
    for (int64_t r = 0; r < logits.dim(0); ++r) {
      const int32_t position = positions(batch.logits_rows[static_cast<size_t>(r)]);
      set_element(logits, r * info_.vocab_size + ToyDiffusionModel::token_at(position), sure_);
    }
    return logits;
  }

 private:
  double sure_;
  ModelInfo info_;
};

EngineConfig canvas_config_of(int64_t rows_per_step = 128) {
  return {.runner = {.num_pages = 64, .page_size = ToyDiffusionModel::kPageSize, .max_tokens = rows_per_step},
          .max_requests = 2,
          .max_context_len = 128,
          .strategy = "diffusion_gemma"};
}

std::vector<int32_t> canvas_prompt(int32_t length) { return std::vector<int32_t>(static_cast<size_t>(length), 5); }

using OnStep = std::function<void(StepMoment, const Sequence&, const StepPlan&)>;

std::vector<int32_t> decode_canvases(const Model& model, const std::vector<int32_t>& prompt,
                                     const SamplingParams& params, const OnStep& on_step, int64_t rows_per_step = 128) {
  Engine engine(model, canvas_config_of(rows_per_step));
  engine.observe(on_step);
  engine.add(prompt, params);
  std::vector<int32_t> ids;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) ids.push_back(out.token.id);
  }
  return ids;
}

TEST(Canvas, B06_ACanvasCostsItsStepsAndOneCausalPass) {
  std::string passes;
  const auto ids =
      decode_canvases(ToyCanvasModel(), canvas_prompt(5), {.max_tokens = 20, .seed = 3},
                      [&passes](StepMoment moment, const Sequence&, const StepPlan& plan) {
                        if (moment == StepMoment::kCommitted) return;
                        const PlannedSpan& span = plan.spans.front();
                        const bool text = span.keys.kind == KeySpan::Kind::kCausal;
                        EXPECT_EQ(span.store.size(), text ? span.keys.q_len : 0);
                        EXPECT_EQ(plan.sample.size(), text ? 0u : size_t{kCanvas});
                        passes += str(text ? "text" : "canvas", " ", span.keys.phys0, "+", span.keys.q_len, "; ");
                      });
  EXPECT_EQ(ids, ToyDiffusionModel::tokens(5, 20));
  EXPECT_EQ(
      passes,
      "text 0+5; canvas 5+8; canvas 5+8; text 5+8; canvas 13+8; canvas 13+8; text 13+8; canvas 21+8; canvas 21+8; ");
}

TEST(Canvas, B01_MaxTokensCountsFinalTokens) {
  for (const int32_t max_tokens : {1, 7, 8, 9, 30}) {
    EXPECT_EQ(decode_canvases(ToyCanvasModel(), canvas_prompt(6), {.max_tokens = max_tokens}, {}),
              ToyDiffusionModel::tokens(6, max_tokens));
  }
}

int32_t steps_of(const Model& model, const SamplingParams& params,
                 const std::vector<int32_t>& prompt = canvas_prompt(5)) {
  int32_t steps = 0;
  decode_canvases(model, prompt, params, [&steps](StepMoment moment, const Sequence&, const StepPlan& plan) {
    steps += moment == StepMoment::kPlanned && !plan.sample.empty() ? 1 : 0;
  });
  return steps;
}

TEST(Canvas, B14_AFirstStepIsNeverStableAndConfidenceMustBeBelowTheBound) {
  const SamplingParams params{.max_tokens = kCanvas};
  EXPECT_EQ(steps_of(ToyCanvasModel(20), params), 2);
  EXPECT_EQ(steps_of(ToyCanvasModel(20, {.stability = 3}), params), 4);
  EXPECT_EQ(steps_of(ToyCanvasModel(20, {.stability = 0}), params), 1);
  DiffusionInfo::Canvas canvas{.max_steps = 5, .t_max = 1.0f, .t_min = 1.0f};
  float entropy = 0;
  decode_canvases(ToyCanvasModel(6, canvas), canvas_prompt(5), params,
                  [&entropy](StepMoment, const Sequence& s, const StepPlan&) {
                    if (!s.chosen.empty() && s.chosen[0].entropy > 0) entropy = s.chosen[0].entropy;
                  });
  canvas.confidence = entropy;
  EXPECT_EQ(steps_of(ToyCanvasModel(6, canvas), params), 5);
  canvas.confidence = std::nextafter(entropy, 100.0f);
  EXPECT_EQ(steps_of(ToyCanvasModel(6, canvas), params), 2);
}

TEST(Canvas, ARequestMayTakeFewerSteps) {
  SamplingParams params{.max_tokens = kCanvas};
  params.decoding.schedule = DecodingParams::Schedule::kReference;
  params.decoding.steps = 1;
  EXPECT_EQ(steps_of(ToyCanvasModel(), params), 1);
}

TEST(Canvas, B27_NoiseDependsOnTheSeedThePositionAndTheStepAlone) {
  const auto canvases = [](uint64_t seed) {
    std::vector<std::vector<int32_t>> seen;
    SamplingParams params{.max_tokens = 16, .seed = seed};
    params.decoding.schedule = DecodingParams::Schedule::kReference;
    params.decoding.steps = 4;
    decode_canvases(ToyCanvasModel(1), canvas_prompt(5), params,
                    [&seen](StepMoment moment, const Sequence& s, const StepPlan& plan) {
                      if (moment == StepMoment::kPlanned && !plan.sample.empty()) seen.push_back(s.tokens);
                    });
    return seen;
  };
  const auto first = canvases(1), other = canvases(2);
  EXPECT_EQ(first, canvases(1));
  ASSERT_EQ(first.size(), 8u);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_NE(first[i], other[i]);
    if (i > 0) {
      EXPECT_NE(first[i], first[i - 1]);
    }
    for (const int32_t id : first[i]) EXPECT_TRUE(0 <= id && id < ToyDiffusionModel::kVocab);
  }
}

TEST(Canvas, RepetitionIsThatOfTheTextBeforeACanvasAndNotOfItsNoise) {
  SamplingParams params{.max_tokens = kCanvas};
  const int32_t steps = steps_of(ToyCanvasModel(), params);
  params.repetition_penalty = 100;
  EXPECT_EQ(steps_of(ToyCanvasModel(), params), steps);
  const std::vector<int32_t> wanted = ToyDiffusionModel::tokens(kCanvas, kCanvas);  // what the model says behind it
  EXPECT_GT(steps_of(ToyCanvasModel(), params, wanted), steps);
}

TEST(Canvas, B19_LongPromptsRunInChunksAndACanvasWaitsForRoom) {
  const ToyCanvasModel model;
  Engine engine(model, canvas_config_of(12));
  for (int i = 0; i < 2; ++i) engine.add(canvas_prompt(30), {.max_tokens = 12});
  std::vector<int32_t> ids[2];
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) ids[out.sequence_id - 1].push_back(out.token.id);
  }
  EXPECT_EQ(ids[0], ToyDiffusionModel::tokens(30, 12));
  EXPECT_EQ(ids[1], ToyDiffusionModel::tokens(30, 12));
}

TEST(Canvas, OtherModelsAndOtherSizesAreRefused) {
  const ToyDiffusionModel blocks({});
  EXPECT_THROW(Engine(blocks, canvas_config_of()), Error);
  const ToyCanvasModel model;
  EngineConfig config = canvas_config_of();
  config.decoding.block_size = 4;
  EXPECT_THROW(Engine(model, config), Error);
  Engine narrow(model, canvas_config_of(kCanvas - 1));
  EXPECT_THROW(narrow.add(canvas_prompt(4), {}), Error);
}

}  // namespace
}  // namespace headrace
