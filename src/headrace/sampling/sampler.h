// Logits to tokens.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "headrace/models/diffusion_info.h"
#include "headrace/ops/op_set.h"
#include "headrace/request/sampled_token.h"
#include "headrace/request/sampling_params.h"

namespace headrace {

// A row of logits, and for what it is read.
struct SampleSpot {
  const SamplingParams* params = nullptr;  // not owned
  std::span<const int32_t> history;        // tokens that the repetition penalty knows
  int64_t position = 0;                    // in the request
  int32_t step = 0;                        // passes that have looked at this position before
  float temperature = 1;                   // divides the row before everything else
  std::optional<int32_t> discouraged_id;   // loses params->decoding.copy_penalty of its logit
  TopPOf top_p_of = TopPOf::kTopK;         // the family's
  std::span<const int32_t> banned_ids;     // have the logit -inf
  ScoresOf scores_of = ScoresOf::kModel;   // the token's
};

// What ops said of rows of logits: tensors on the host.
struct ChosenRows {
  Tensor best, stats;       // of token_confidence: int32 [rows], float32 [rows, 4]
  Tensor ids, logits;       // of sample_tokens: int32 [rows], float32 [rows]
  Tensor model_stats = {};  // `stats` of the rows as the model made them, where they were changed then; or null
};

// What errors say of logits that are no numbers.
inline constexpr std::string_view kNotNumbers =
    ": the model's weights hold NaN or an infinity, or its values do not fit the activations' dtype";

// Of a diffusion model.
TopPOf top_p_of(const DiffusionInfo& info);
// How a request's tokens are drawn, but for the random number.
TokenDraw draw_params(const SamplingParams& params, TopPOf top_p_of);
// How the spot's token is drawn: the same wherever it runs.
TokenDraw draw_of(const SampleSpot& spot);

// Owned by an engine. Not thread-safe.
class Sampler {
 public:
  // Ids from `vocab` on (padding rows of the model's head) are never chosen, but have their share of the softmax;
  // excluded_id has none.
  Sampler(const OpSet& ops, const OpContext& context, int32_t vocab) : ops_(ops), context_(context), vocab_(vocab) {}

  // One token for each row of `logits`, float32 [spots, the model's vocabulary], which is changed. What is banned, the
  // spot's temperature, the penalties, then temperature, top-k, top-p, min-p (top-p first by top_p_of); ties go to the
  // lowest id. The random number depends on the seed, the position and the step alone, and a row is read without the
  // others, so a result does not depend on what else runs. `unguided`: rows as the model made them, where guidance has
  // changed `logits` already; null: it has not. Error kModelFile for a logit that is NaN.
  std::vector<SampledToken> sample(const TensorView& logits, std::span<const SampleSpot> spots,
                                   std::optional<int32_t> excluded_id = {}, const TensorView& unguided = {}) const;
  // The `count` most likely tokens of a row that sample() has changed and read as `read`, or all that there are, in
  // descending order of probability; ties go to the lowest id.
  std::vector<TokenShare> likeliest(const TensorView& row, const SampledToken& read, int32_t count,
                                    std::optional<int32_t> excluded_id = {}) const;
  // Tokens that were chosen on some device, from what token_confidence and sample_tokens said of their rows. Error
  // kModelFile as above.
  static std::vector<SampledToken> describe(const ChosenRows& rows, std::span<const SampleSpot> spots);
  // The same of rows that nothing has changed, without their order numbers, which no rule that denoise_step can say
  // reads.
  static std::vector<SampledToken> describe(const ChosenRows& rows);

 private:
  const OpSet& ops_;
  OpContext context_;
  int32_t vocab_;
};

}  // namespace headrace
