// Engine: sampling the tokens of a batch, and what sequences keep of the logits.
#include <algorithm>
#include <utility>

#include "headrace/engine/engine.h"
#include "headrace/ops/mask_tokens.h"

namespace headrace {
namespace {

bool device_reads(const ScheduledStep& step) { return step.device_reads(); }
bool host_reads(const ScheduledStep& step) { return !step.device_reads(); }
bool any_reads(const ScheduledStep& /*step*/) { return true; }
bool has_samples(const ScheduledStep& step) { return !step.plan.sample.empty(); }
bool has_guides(const ScheduledStep& step) { return !step.plan.guides.empty(); }

// Drops the entries of scored and guide rows from a list with one entry per row of logits.
template <class T>
std::vector<T> of_samples(const std::vector<ScheduledStep>& steps, std::vector<T> rows) {
  if (std::ranges::none_of(steps, [](const ScheduledStep& s) { return has_guides(s) || s.plan.scored.size() > 0; })) {
    return rows;
  }
  std::vector<T> kept;
  auto next = rows.begin();
  for (const ScheduledStep& step : steps) {
    const auto first = next + step.plan.scored.size();
    kept.insert(kept.end(), first, first + std::ssize(step.plan.sample));
    next += step.plan.num_logits_rows();
  }
  return kept;
}

// One float32 row per sample row.
struct GuidedRows {
  Tensor logits;    // after guidance
  Tensor unguided;  // before guidance; null if no row is guided
};

// Source: Nie et al. 2025 (LLaDA), unsupervised classifier-free guidance.
GuidedRows guided(const std::vector<ScheduledStep>& steps, Tensor logits) {
  if (std::ranges::none_of(steps, has_guides)) return {std::move(logits), {}};
  int64_t samples = 0;
  for (const ScheduledStep& step : steps) samples += std::ssize(step.plan.sample);
  const int64_t width = logits.view().dim(1);
  GuidedRows rows{Tensor(DType::kF32, {samples, width}), Tensor(DType::kF32, {samples, width})};
  const float* from = logits.data_as<float>();
  float *to = rows.logits.data_as<float>(), *unguided = rows.unguided.data_as<float>();
  for (const ScheduledStep& step : steps) {
    const int64_t count = std::ssize(step.plan.sample) * width;
    unguided = std::copy_n(from, count, unguided);
    if (step.plan.guides.empty()) {
      std::copy_n(from, count, to);
    } else {
      const float scale = step.sequence->params.decoding.cfg_scale;
      std::transform(from, from + count, from + count, to,
                     [scale](float with, float without) { return without + (scale + 1) * (with - without); });
    }
    from += count + std::ssize(step.plan.guides) * width;
    to += count;
  }
  return rows;
}

// The tokens that penalties count. With a mask token that is the whole text, since the mask is never sampled. Without
// one, as in a canvas, undecided positions hold noise, which must not count. A step that runs ahead has an unknown
// token behind the decided position.
std::span<const int32_t> history_of(const ScheduledStep& step, int32_t position) {
  const Sequence& s = *step.sequence;
  const int32_t count = step.plan.excluded_id ? s.num_tokens() : std::min(s.num_final, position);
  return std::span(s.tokens).first(static_cast<size_t>(count));
}

void count_output(const ScheduledStep& step) {
  Sequence& s = *step.sequence;
  if (s.params.presence_penalty == 0 && s.params.frequency_penalty == 0) return;
  const auto output = history_of(step, step.plan.sample.front().position).subspan(static_cast<size_t>(s.prompt_len));
  s.output_counts.update(output, s.num_final - s.prompt_len, step.plan.excluded_id);
}

bool any_bit(std::span<const uint32_t> bits, int32_t count) {
  const auto whole = static_cast<size_t>(count / 32);
  return std::ranges::any_of(bits.first(whole), [](uint32_t word) { return word != 0; }) ||
         (count % 32 != 0 && (bits[whole] & ((1u << count % 32) - 1)) != 0);
}

void fill_allowed(const ScheduledStep& step, int32_t vocab) {
  Sequence& s = *step.sequence;
  if (s.constraint == nullptr) return;
  s.allowed_bits.resize(static_cast<size_t>(MaskTokensArgs::words_of(vocab)));
  s.constraint->fill(s.allowed_bits);
  HR_REQUIRE(any_bit(s.allowed_bits, vocab), ErrorCode::kInvalidArgument, "request ", s.id,
             ": its constraint allows no token at position ", step.plan.sample.front().position);
}

}  // namespace

void Engine::launch(std::span<const int32_t> from) {
  runner_.launch(builder_.build(in_flight_.back().steps, scheduler_.table(), &runner_.backend()), from);
}

std::vector<LogprobRow> Engine::logprob_rows(InFlightStep& in_flight) const {
  std::vector<LogprobRow> rows;
  int32_t row = 0;
  for (size_t i = 0; i < in_flight.steps.size(); ++i) {
    const auto& [sequence, plan] = std::tie(in_flight.steps[i].sequence, in_flight.steps[i].plan);
    const int32_t first = row;
    row += plan.num_logits_rows();
    if (sequence == nullptr) continue;
    for (int32_t n = 0; n < plan.scored.size(); ++n) {
      const int32_t next = sequence->tokens[static_cast<size_t>(plan.scored.begin + n) + 1];
      rows.push_back({.row = first + n, .token = next, .count = *sequence->params.prompt_logprobs});
    }
    if (sequence->params.top_logprobs > 0 && !plan.sample.empty()) {
      rows.push_back({.row = first + plan.scored.size(), .count = sequence->params.top_logprobs});
    }
    in_flight.logprob_steps.resize(rows.size(), i);
  }
  return rows;
}

void Engine::keep_logprobs(const InFlightStep& in_flight, std::vector<RowLogprobs> logprobs) const {
  for (size_t i = 0; i < logprobs.size(); ++i) {
    Sequence* const s = in_flight.steps[in_flight.logprob_steps[i]].sequence;
    if (s == nullptr) continue;
    if (const int32_t token = in_flight.logprobs[i].token; token >= 0) {
      s->prompt_logprobs.push_back({{token, logprobs[i].logprob}, std::move(logprobs[i].top)});
      ++s->num_scored;
    } else {
      s->top.push_back(std::move(logprobs[i].top));
    }
  }
}

void Engine::read_texts(const std::vector<ScheduledStep>& steps) {
  for (const ScheduledStep& step : steps) {
    if (step.sequence == nullptr || !has_samples(step)) continue;
    try {
      count_output(step);
      fill_allowed(step, config_.vocab);
    } catch (...) {
      fail_alone(step.sequence->id);
    }
  }
}

// The device samples every row that it can, even if the host samples others of the batch: exp() on the host and on the
// device differ in the last bits.
void Engine::choose() {
  using Logits = StepReads::Logits;
  InFlightStep& in_flight = in_flight_.back();
  const std::vector<ScheduledStep>& steps = in_flight.steps;
  read_texts(steps);
  const auto by_device = [](const ScheduledStep& step) {
    return step.plan.num_logits_rows() > 0 && (step.sequence == nullptr || device_reads(step));
  };
  const auto by_host = [&](const ScheduledStep& step) { return has_samples(step) && !by_device(step); };
  const Logits logits = std::ranges::any_of(steps, by_host) ? Logits::kToHost : Logits::kNone;
  if (std::ranges::none_of(steps, by_device)) return runner_.choose({.logits = logits});
  const std::vector<SampleSpot> spots = spots_of(steps, device_reads);
  const std::vector<KeptRows> kept = kept_rows(steps, device_reads);
  in_flight.orders = Sampler::orders_of(spots);
  in_flight.logprobs = logprob_rows(in_flight);
  const TokenChoice choice{
      .vocab = config_.vocab, .excluded_id = steps.front().plan.excluded_id, .spots = spots, .kept = kept};
  runner_.choose({.choice = choice, .logprobs = in_flight.logprobs, .logits = logits});
}

std::vector<SampledToken> Engine::sampled_tokens(const InFlightStep& in_flight, StepResult result) {
  const std::vector<ScheduledStep>& steps = in_flight.steps;
  if (!result.tokens)
    return result.logits ? read(steps, std::move(result.logits), any_reads) : std::vector<SampledToken>();
  const std::vector<SampleSpot> spots =
      result.tokens->model_stats ? spots_of(steps, any_reads) : std::vector<SampleSpot>();
  std::vector<SampledToken> tokens = of_samples(steps, Sampler::describe(*result.tokens, in_flight.orders, spots));
  if (!result.logits) return tokens;
  const std::vector<SampledToken> by_host = read(steps, std::move(result.logits), host_reads);
  std::ptrdiff_t first = 0;
  for (const ScheduledStep& step : steps) {
    const std::ptrdiff_t count = std::ssize(step.plan.sample);
    if (step.sequence != nullptr && host_reads(step))
      std::copy_n(by_host.begin() + first, count, tokens.begin() + first);
    first += count;
  }
  return tokens;
}

std::vector<SampledToken> Engine::read(const std::vector<ScheduledStep>& steps, Tensor model_logits, StepFilter keeps) {
  const auto [logits, unguided] = guided(steps, std::move(model_logits));
  std::vector<SampledToken> sampled = sample(steps, logits, unguided);
  keep_logits(kept_rows(steps, keeps), logits, model_.info().dtype);
  keep_candidates(steps, logits, sampled);
  return sampled;
}

std::vector<KeptRows> Engine::kept_rows(const std::vector<ScheduledStep>& steps, StepFilter of) {
  std::vector<KeptRows> kept;
  int64_t first = 0;
  for (const ScheduledStep& step : steps) {
    const auto count = static_cast<int64_t>(step.plan.sample.size());
    if (step.plan.logits == StepPlan::Logits::kKept && count > 0 && step.sequence != nullptr && of(step))
      kept.push_back({first, count, &step.sequence->conditioning});
    first += count;
  }
  return kept;
}

std::vector<SampleSpot> Engine::spots_of(const std::vector<ScheduledStep>& steps, StepFilter of) const {
  std::vector<SampleSpot> spots;
  spots.reserve(steps.size());
  const auto skip = [&spots](int64_t rows) { spots.resize(spots.size() + static_cast<size_t>(rows)); };
  for (const ScheduledStep& step : steps) {
    if (step.sequence == nullptr || !of(step)) {  // null: aborted while its step ran
      skip(step.plan.num_logits_rows());
      continue;
    }
    skip(step.plan.scored.size());
    for (const SampleRow& row : step.plan.sample) spots.push_back(spot_of(step, row));
    skip(std::ssize(step.plan.guides));
  }
  return spots;
}

SampleSpot Engine::spot_of(const ScheduledStep& step, const SampleRow& row) const {
  const Sequence& s = *step.sequence;
  const auto& diffusion = model_.info().diffusion;
  const bool is_early = row.position < s.prompt_len + s.params.min_tokens;
  SampleSpot spot{.params = &s.params, .text = s.id, .history = history_of(step, row.position)};
  // Random numbers are counted from the row before the decided position, the one that autoregressive decoding reads.
  spot.num_final = s.num_final, spot.position = row.position - 1, spot.step = row.step;
  spot.temperature = step.plan.temperature, spot.discouraged_id = row.discouraged_id;
  spot.top_p_of = diffusion ? top_p_of(*diffusion) : TopPOf::kTopK, spot.scores_of = s.scores_of;
  if (s.params.end_of_text == SamplingParams::EndOfText::kBanned) spot.banned_ids = model_.info().eos_ids;
  if (is_early) spot.early_ids = s.eos_ids;
  spot.output_counts = &s.output_counts, spot.allowed_bits = s.allowed_bits;
  return spot;
}

std::vector<SampledToken> Engine::sample(const std::vector<ScheduledStep>& steps, const Tensor& logits,
                                         const TensorView& unguided) const {
  const std::vector<SampleSpot> spots = of_samples(steps, spots_of(steps, any_reads));
  if (spots.empty()) return {};
  return sampler_.sample(logits, spots, steps.front().plan.excluded_id, unguided);
}

// Rounds kept logits to the dtype in which the model was trained to read them.
void Engine::keep_logits(std::span<const KeptRows> kept, const Tensor& logits, DType dtype) {
  for (const auto& [first, count, to] : kept) {
    const TensorView rows = logits.view().slice(first, first + count);
    if (!*to || to->shape() != rows.shape() || to->view().device().type != DeviceType::kCPU) {
      *to = Tensor(DType::kF32, rows.shape());
    }
    const auto* from = static_cast<const float*>(rows.data());
    const bool rounds = dtype == DType::kBF16;
    std::transform(from, from + rows.numel(), to->data_as<float>(),
                   [rounds](float x) { return rounds ? static_cast<float>(BF16(x)) : x; });
  }
}

void Engine::keep_candidates(const std::vector<ScheduledStep>& steps, const Tensor& logits,
                             std::span<const SampledToken> sampled) const {
  int64_t next = 0;
  for (const ScheduledStep& step : steps) {
    Sequence& s = *step.sequence;
    const auto count = static_cast<size_t>(step.plan.num_candidates);
    for (const SampleRow& row : step.plan.sample) {
      const int64_t at = next++;
      if (count == 0) continue;
      auto shares = sampler_.likeliest(logits.view().select(at), sampled[static_cast<size_t>(at)],
                                       step.plan.num_candidates, step.plan.excluded_id);
      shares.resize(count);  // the vocabulary may be smaller
      const size_t first = static_cast<size_t>(row.position - s.prompt_len) * count;
      if (s.candidates.size() < first + count) s.candidates.resize(first + count);
      std::ranges::copy(shares, s.candidates.begin() + static_cast<std::ptrdiff_t>(first));
    }
  }
}

}  // namespace headrace
