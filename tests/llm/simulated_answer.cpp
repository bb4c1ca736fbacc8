#include "llm/simulated_answer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "headrace/ops/cpu/dispatch.h"
#include "headrace/sampling/sampler.h"

namespace headrace::testing_support {
namespace {

bool is_end(int32_t id) { return std::ranges::find(FakeText::kEosIds, id) != FakeText::kEosIds.end(); }

bool ends(const SamplingParams& p, int32_t id) {
  return (is_end(id) && p.end_of_text == SamplingParams::EndOfText::kStops) ||
         std::ranges::find(p.stop_token_ids, id) != p.stop_token_ids.end();
}

constexpr float kNever = -std::numeric_limits<float>::infinity();

void forbid(std::vector<float>& row, const SamplingParams& p, size_t num_output) {
  for (int32_t id = 0; id < FakeText::kVocab; ++id) {
    const bool early = static_cast<int32_t>(num_output) < p.min_tokens && ends(p, id);
    const bool banned = p.end_of_text == SamplingParams::EndOfText::kBanned && is_end(id);
    if (early || banned) row[static_cast<size_t>(id)] = kNever;
  }
}

// What the logits become before a token is chosen, behind a prompt and `output`.
std::vector<float> changed(std::vector<float> row, const Arrival& a, const SamplingParams& p,
                           std::span<const int32_t> prompt, std::span<const int32_t> output) {
  for (const LogitBias& one : p.logit_bias) row[static_cast<size_t>(one.id)] += one.bias;
  forbid(row, p, output.size());
  for (int32_t id = 0; id < FakeText::kVocab; ++id) {
    float& logit = row[static_cast<size_t>(id)];
    const auto count = static_cast<float>(std::ranges::count(output, id));
    const bool occurs = count > 0 || std::ranges::find(prompt, id) != prompt.end();
    if (occurs && p.repetition_penalty != 1)
      logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    if (count > 0) logit -= p.presence_penalty + p.frequency_penalty * count;
    if (a.constraint_salt && !HashConstraint::allows(*a.constraint_salt, output, id)) logit = kNever;
  }
  return row;
}

int32_t chosen(std::vector<float> row, const SamplingParams& p, int32_t vocab, size_t position) {
  if (p.temperature == 0) return static_cast<int32_t>(std::max_element(row.begin(), row.begin() + vocab) - row.begin());
  SamplingParams draws{.temperature = p.temperature, .top_k = p.top_k, .top_p = p.top_p, .min_p = p.min_p};
  draws.seed = p.seed.value_or(0);
  const SampleSpot spot{.params = &draws, .position = static_cast<int64_t>(position) - 1};
  const TensorView logits(row.data(), DType::kF32, {1, std::ssize(row)});
  return Sampler(cpu::select_kernel_set(), {}, vocab).sample(logits, {&spot, 1}).front().id;
}

TokenLogprob logprob_of(std::span<const float> row, int32_t id) {
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit));
  return {id, static_cast<float>(static_cast<double>(row[static_cast<size_t>(id)]) - std::log(sum))};
}

std::vector<TokenLogprob> likeliest(std::span<const float> row, int32_t vocab, int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::sort(ids, std::greater(), [row](int32_t id) { return row[static_cast<size_t>(id)]; });
  ids.resize(static_cast<size_t>(std::min(count, vocab)));
  std::vector<TokenLogprob> top;
  for (const int32_t id : ids) top.push_back(logprob_of(row, id));
  return top;
}

// The answer to a prompt, by the model's definition alone.
Answer answer_by_definition(const Case& c, const Arrival& a, const std::vector<int32_t>& prompt,
                            const SamplingParams& p) {
  const int32_t vocab = vocab_of(c);
  FakeText model(c.states);
  Answer answer;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i > 0 && p.prompt_logprobs) {
      const std::vector<float> row = model.logits();
      if (std::isnan(row.front())) return answer;
      answer.prompt.push_back({logprob_of(row, prompt[i]), likeliest(row, vocab, *p.prompt_logprobs)});
    }
    model.push(prompt[i]);
  }
  std::vector<int32_t> output;
  for (;;) {
    const std::vector<float> row = model.logits();
    if (std::isnan(row.front())) return answer;
    const std::vector<float> logits = changed(row, a, p, prompt, output);
    if (std::all_of(logits.begin(), logits.begin() + vocab, [](float logit) { return logit == kNever; })) return answer;
    const int32_t id = chosen(logits, p, vocab, prompt.size() + output.size());
    answer.tokens.push_back({logprob_of(row, id), likeliest(row, vocab, p.top_logprobs)});
    output.push_back(id), model.push(id);
    const auto length = std::ssize(prompt) + std::ssize(output);
    if (ends(p, id)) {
      answer.reason = FinishReason::kStop;
    } else if (std::ssize(output) >= p.max_tokens) {
      answer.reason = FinishReason::kLength;
    } else if (length >= c.config.max_context_len) {
      answer.reason = FinishReason::kContext;
    } else {
      continue;
    }
    return answer;
  }
}

// The answer of an engine that runs the request alone, with room for all of it.
Answer answer_alone(const Case& c, const std::vector<int32_t>& prompt, const SamplingParams& params) {
  const FakeModel model(c.states, nullptr, c.diffusion);
  EngineConfig config{.max_context_len = c.config.max_context_len, .vocab = c.config.vocab};
  config.strategy = c.config.strategy, config.decoding = c.config.decoding;
  config.runner = {.ops = &FakeModel::kernels(), .num_pages = 40, .page_size = 16, .max_tokens = 400};
  Engine engine(model, config);
  engine.add(prompt, params);
  Answer answer;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) {
      if (!out.error) answer.tokens.push_back({{out.token.id, out.token.logprob}, {}});
      if (out.finish_reason) answer.reason = *out.finish_reason;
    }
  }
  return answer;
}

}  // namespace

Answer answer_of(const Case& c, const Arrival& a, const std::vector<int32_t>& prompt, const SamplingParams& params) {
  return c.diffusion ? answer_alone(c, prompt, params) : answer_by_definition(c, a, prompt, params);
}

}  // namespace headrace::testing_support
