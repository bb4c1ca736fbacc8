#include "headrace/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "headrace/core/error.h"
#include "headrace/core/parallel.h"
#include "headrace/ops/penalty.h"
#include "headrace/ops/random_draw.h"
#include "headrace/ops/token_scores.h"
#include "headrace/sampling/filtered_scores.h"
#include "headrace/sampling/logits_processor.h"

namespace headrace {
namespace {

// Returns the model's logit of a token that may be chosen, given its changed `logit`: the one that was read before an
// addition, else the inverse of the repetition penalty and of the temperature, which keeps all but the last bit.
float model_logit(const ChosenRows& rows, size_t row, const SampleSpot& spot, int32_t id, float logit) {
  const auto addition =
      rows.changes != nullptr ? rows.changes->addition_to(static_cast<int64_t>(row), id) : std::nullopt;
  if (addition) return rows.model_logits.data_as<float>()[*addition];
  const float penalty = spot.params->repetition_penalty;
  if (penalty != 1 && std::ranges::find(spot.history, id) != spot.history.end()) logit = unpenalized(logit, penalty);
  return logit * spot.temperature;
}

// The results of token_confidence for a row.
struct RowStats {
  int32_t best;
  float largest, log_sum, second, entropy;
};

SampledToken described(const RowStats& row, int32_t id, float logit) {
  const float logprob = logit - row.largest - row.log_sum;
  return {.id = id,
          .logprob = logprob,
          .confidence = TokenScores::confidence(logprob),
          .margin = TokenScores::margin(row.largest, row.log_sum, row.second),
          .entropy = row.entropy,
          .best_id = row.best,
          .best_logprob = -row.log_sum,
          .best_model_logprob = -row.log_sum};
}

// Sets the log-probabilities of guided tokens: those of the model's own `rows`, whose `stats` are given. The others
// keep theirs, which are rounded otherwise, so that no request changes the bits of another.
void describe_unguided(std::vector<SampledToken>& tokens, std::span<const SampleSpot> spots, const TensorView& rows,
                       const Tensor& stats) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (spots[i].params->decoding.cfg_scale == 0) continue;
    const auto* row = static_cast<const float*>(rows.select(static_cast<int64_t>(i)).data());
    const float* s = stats.data_as<float>() + 4 * i;
    tokens[i].logprob = row[tokens[i].id] - s[0] - s[1];
    tokens[i].best_model_logprob = row[tokens[i].best_id] - s[0] - s[1];
  }
}

}  // namespace

TopPOf top_p_of(const DiffusionInfo& info) {
  return info.filters == DiffusionInfo::Filters::kTopPFirst ? TopPOf::kAll : TopPOf::kTopK;
}

TokenDraw draw_of(const SampleSpot& spot) {
  const SamplingParams& p = *spot.params;
  return {.uniform = uniform(p.seed.value_or(0), spot.position, spot.step),
          .temperature = p.temperature,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .top_k = p.top_k,
          .top_p_of = spot.top_p_of};
}

std::vector<SampledToken> Sampler::sample(const TensorView& logits, std::span<const SampleSpot> spots,
                                          std::optional<int32_t> excluded_id, const TensorView& unguided) const {
  const auto count = static_cast<int64_t>(spots.size());
  HR_REQUIRE(logits.dim(0) == count, ErrorCode::kInvalidArgument, "sampler: ", logits.dim(0),
             " rows of logits, expected ", count);
  const auto row_of = [&logits, this](int64_t r) {
    return std::span<float>(static_cast<float*>(logits.select(r).data()), static_cast<size_t>(vocab_));
  };
  ChosenRows rows{Tensor(DType::kI32, {count}), Tensor(DType::kF32, {count, 4}), Tensor(DType::kI32, {count}),
                  Tensor(DType::kF32, {count})};
  LogitChanges changes(cpu_runtime());
  changes.list(spots, logits.dim(1), vocab_);
  rows.changes = &changes;
  rows.model_logits = Tensor(DType::kF32, {changes.num_additions()});
  if (unguided || changes.any()) {
    rows.model_stats = Tensor(DType::kF32, {count, 4});
    ops_.token_confidence({unguided ? unguided : logits, vocab_, excluded_id, rows.best, rows.model_stats}, context_);
  }
  if (changes.any()) {
    LogitsProcessor(ops_, context_, cpu_runtime(), vocab_).apply(changes, logits, excluded_id, rows.model_logits);
  }
  ops_.token_confidence({logits, vocab_, excluded_id, rows.best, rows.stats}, context_);
  const Tensor draws(DType::kU8, {count, static_cast<int64_t>(sizeof(TokenDraw))});
  std::ranges::transform(spots, reinterpret_cast<TokenDraw*>(draws.data_as<uint8_t>()), draw_of);
  ops_.sample_tokens({.logits = logits,
                      .vocab = vocab_,
                      .excluded_id = excluded_id,
                      .best = rows.best,
                      .stats = rows.stats,
                      .draws = draws,
                      .ids = rows.ids,
                      .chosen = rows.logits},
                     context_);
  std::vector<SampledToken> tokens = describe(rows, orders_of(spots), spots);
  if (unguided) describe_unguided(tokens, spots, unguided, rows.model_stats);
  parallel_for(context_.threads, count, [&](int64_t r) {
    const SampleSpot& spot = spots[static_cast<size_t>(r)];
    SampledToken& token = tokens[static_cast<size_t>(r)];
    if (spot.scores_of == ScoresOf::kModel || !token.is_valid()) return;
    const auto [confidence, margin, entropy] = filtered_scores(row_of(r), excluded_id, draw_of(spot), token.id);
    token.confidence = confidence, token.margin = margin, token.entropy = entropy;
  });
  return tokens;
}

std::vector<TokenShare> Sampler::likeliest(const TensorView& row, const SampledToken& read, int32_t count,
                                           std::optional<int32_t> excluded_id) const {
  if (!read.is_valid()) return {};
  const auto* logits = static_cast<const float*>(row.data());
  std::vector<int32_t> ids(static_cast<size_t>(vocab_));
  std::iota(ids.begin(), ids.end(), 0);
  if (excluded_id && *excluded_id < vocab_) ids.erase(ids.begin() + *excluded_id);
  const auto end = ids.begin() + std::min(static_cast<std::ptrdiff_t>(ids.size()), std::ptrdiff_t{count});
  std::partial_sort(ids.begin(), end, ids.end(), [logits](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  std::vector<TokenShare> shares;
  for (auto id = ids.begin(); id != end; ++id) {
    shares.push_back({*id, std::exp(logits[*id] - logits[read.best_id] + read.best_logprob)});
  }
  return shares;
}

std::vector<double> Sampler::orders_of(std::span<const SampleSpot> spots) {
  std::vector<double> orders;
  orders.reserve(spots.size());
  for (const SampleSpot& spot : spots) {
    orders.push_back(order_number(spot.params->seed.value_or(0), spot.position, spot.step));
  }
  return orders;
}

std::vector<SampledToken> Sampler::describe(const ChosenRows& rows, std::span<const double> orders,
                                            std::span<const SampleSpot> spots) {
  std::vector<SampledToken> tokens;
  tokens.reserve(orders.size());
  for (int64_t r = 0; r < rows.best.dim(0); ++r) {
    const float* s = rows.stats.data_as<float>() + 4 * r;
    const RowStats row{rows.best.data_as<int32_t>()[r], s[0], s[1], s[2], s[3]};
    tokens.push_back(described(row, rows.ids.data_as<int32_t>()[r], rows.logits.data_as<float>()[r]));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    SampledToken& token = tokens[i];
    token.order = orders[i];
    if (!rows.model_stats) continue;
    const float* model = rows.model_stats.data_as<float>() + 4 * i;
    const float logit = rows.logits.data_as<float>()[i], largest = rows.stats.data_as<float>()[4 * i];
    token.logprob = model_logit(rows, i, spots[i], token.id, logit) - model[0] - model[1];
    token.best_model_logprob = model_logit(rows, i, spots[i], token.best_id, largest) - model[0] - model[1];
    token.none_left = largest == -std::numeric_limits<float>::infinity() && !std::isnan(token.logprob);
  }
  return tokens;
}

}  // namespace headrace
