#include "headrace/decoding/diffusion_gemma.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "headrace/core/error.h"
#include "headrace/decoding/block_buffer.h"
#include "headrace/ops/random_draw.h"
#include "headrace/sampling/acceptance.h"

namespace headrace {
namespace {

using Canvas = DiffusionInfo::Canvas;

// Linear schedule over steps counted down from max_steps: t_max at max_steps, t_min at 0, which is never reached.
float temperature_of(const Canvas& canvas, int32_t max_steps, int32_t step) {
  return canvas.t_min +
         (canvas.t_max - canvas.t_min) * (static_cast<float>(max_steps - step) / static_cast<float>(max_steps));
}

float mean_entropy(std::span<const SampledToken> sampled) {
  const double sum = std::accumulate(sampled.begin(), sampled.end(), 0.0, [](double s, const SampledToken& t) {
    return s + static_cast<double>(t.entropy);
  });
  return static_cast<float>(sum / static_cast<double>(sampled.size()));
}

SampledToken likeliest(const SampledToken& t) {
  SampledToken best = t;
  best.id = t.best_id;
  best.logprob = t.best_model_logprob;
  best.confidence = std::exp(t.best_logprob);
  return best;
}

// A segment is a whole canvas.
StrategyTraits segment_traits(int32_t canvas_len) {
  return {.text_block = 1,
          .segment = SegmentShape{
              .keys = {.q_len = canvas_len, .kind = KeySpan::Kind::kFull, .window_from = KeySpan::WindowFrom::kSegment},
              .logits = StepPlan::Logits::kKept}};
}

}  // namespace

CanvasStrategy::CanvasStrategy(const StrategyConfig& config)
    : DecodingStrategy("diffusion_gemma", segment_traits(config.model.value_or(DiffusionInfo{}).block_size)),
      info_(config.model.value_or(DiffusionInfo{})) {
  HR_REQUIRE(info_.attention == DiffusionInfo::Attention::kCanvas, ErrorCode::kInvalidArgument,
             "strategy 'diffusion_gemma': the model is not trained on canvases");
  HR_REQUIRE(!config.block_size || *config.block_size == info_.block_size, ErrorCode::kInvalidArgument,
             "strategy 'diffusion_gemma': the block size is ", config.block_size.value_or(0),
             ", expected the canvas's ", info_.block_size);
}

void CanvasStrategy::start(Sequence& s) const {
  s.blocks.push_back(DecodingBlock::of_prompt(0, s.prompt_len));
  s.num_final = s.prompt_len;
  if (s.prompt_len < s.limit) open(s);
}

void CanvasStrategy::open(Sequence& s) const {
  const int32_t begin = s.num_tokens(), end = begin + info_.block_size;
  s.blocks.emplace_back(begin, end, begin, s.limit);
  s.chosen.resize(static_cast<size_t>(end - s.prompt_len));
  for (int32_t p = begin; p < end; ++p) {
    s.tokens.push_back(noise_token(s.params.seed.value_or(0), p, 0, info_.canvas.noise_vocab));
  }
}

int32_t CanvasStrategy::max_steps(const Sequence& s) const {
  return s.params.decoding.steps.value_or(info_.canvas.max_steps);
}

StepPlan CanvasStrategy::plan(const Sequence& s, int32_t budget) const {
  const int32_t text_end = storable_end(s);
  if (s.num_cached < text_end) return causal_step({s.num_cached, std::min(text_end, s.num_cached + budget)}, {});
  const DecodingBlock& canvas = s.blocks.back();
  const int32_t size = canvas.end() - canvas.begin();
  if (budget < size) return {};
  const SegmentShape& shape = *traits().segment;
  StepPlan plan{.spans = {{.keys = shape.keys}},
                .temperature = temperature_of(info_.canvas, max_steps(s), canvas.num_steps()),
                .logits = shape.logits};
  plan.spans.front().keys.ctx_len = plan.spans.front().keys.phys0 = canvas.begin();
  for (int32_t i = 0; i < size; ++i) plan.sample.push_back({i, canvas.begin() + i, canvas.num_steps()});
  return plan;
}

void CanvasStrategy::commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const {
  if (sampled.empty()) {
    s.num_cached = plan.stored_end(s.num_cached);
    std::erase_if(s.blocks, [&s](const DecodingBlock& block) { return block.end() <= s.num_cached; });
    if (s.blocks.empty() && s.num_tokens() < s.limit) open(s);
    return;
  }
  DecodingBlock& canvas = s.blocks.back();
  canvas.count_step();
  const bool done = is_done(s, canvas, sampled);
  std::ranges::copy(sampled, s.chosen.begin() + (canvas.begin() - s.prompt_len));
  if (done) {
    finish(s, canvas, sampled);
  } else {
    renoise(s, canvas, sampled);
  }
}

// `chosen` holds the tokens of the previous step.
bool CanvasStrategy::is_done(const Sequence& s, DecodingBlock& canvas, std::span<const SampledToken> sampled) const {
  const auto before = s.chosen.begin() + (canvas.begin() - s.prompt_len);
  const bool same = canvas.num_steps() > 1 && std::equal(sampled.begin(), sampled.end(), before,
                                                         [](auto& a, auto& b) { return a.best_id == b.best_id; });
  canvas.set_num_stable_steps(same ? canvas.num_stable_steps() + 1 : 0);
  if (canvas.num_steps() >= max_steps(s)) return true;
  return canvas.num_stable_steps() >= info_.canvas.stability && mean_entropy(sampled) < info_.canvas.confidence;
}

void CanvasStrategy::finish(Sequence& s, DecodingBlock& canvas, std::span<const SampledToken> sampled) const {
  for (int32_t p = canvas.begin(); p < canvas.end(); ++p) {
    const SampledToken token = likeliest(sampled[static_cast<size_t>(p - canvas.begin())]);
    s.tokens[static_cast<size_t>(p)] = token.id;
    s.chosen[static_cast<size_t>(p - s.prompt_len)] = token;
    if (p < canvas.valid_end()) canvas.decide(p);
  }
  s.conditioning = {};
  canvas.commit();
  cut_behind_end_token(s);
  s.num_final = std::min(s.limit, canvas.end());
}

void CanvasStrategy::renoise(Sequence& s, const DecodingBlock& canvas, std::span<const SampledToken> sampled) const {
  const float bound = s.params.decoding.threshold.value_or(info_.threshold);
  const auto kept = accepted(sampled, {DecodingParams::Rule::kEntropyBound, bound}, AtLeast::kOne);
  for (int32_t p = canvas.begin(); p < canvas.end(); ++p) {
    s.tokens[static_cast<size_t>(p)] =
        noise_token(s.params.seed.value_or(0), p, canvas.num_steps(), info_.canvas.noise_vocab);
  }
  for (const size_t i : kept) s.tokens[static_cast<size_t>(canvas.begin()) + i] = sampled[i].id;
}

}  // namespace headrace
