// Samples tokens from logits.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "headrace/models/diffusion_info.h"
#include "headrace/ops/op_set.h"
#include "headrace/request/sampled_token.h"
#include "headrace/sampling/logit_changes.h"
#include "headrace/sampling/sample_spot.h"

namespace headrace {

// Results of ops for rows of logits; tensors on the host.
struct ChosenRows {
  Tensor best, stats;                     // from token_confidence: int32 [rows], float32 [rows, 4]
  Tensor ids, logits;                     // from sample_tokens: int32 [rows], float32 [rows]
  Tensor model_stats = {};                // `stats` before the rows were changed; null if they were not
  const LogitChanges* changes = nullptr;  // not owned; null: there are none
  Tensor model_logits = {};               // float32 [changes->num_additions()]: LogitsProcessor
};

// Suffix of errors about logits that are NaN or infinite.
inline constexpr std::string_view kNotNumbers =
    ": the model's weights hold NaN or an infinity, or its values do not fit the activations' dtype";

// Returns the filter order of a diffusion model.
TopPOf top_p_of(const DiffusionInfo& info);
// Returns the spot's sampling parameters; identical on every device.
TokenDraw draw_of(const SampleSpot& spot);

// Owned by an engine. Not thread-safe.
class Sampler {
 public:
  // Ids from `vocab` on (padding rows of the LM head) are never chosen but count in the softmax; excluded_id does not
  // count.
  Sampler(const OpSet& ops, const OpContext& context, int32_t vocab) : ops_(ops), context_(context), vocab_(vocab) {}

  // Samples one token per row of `logits`, dense float32 [spots, the model's vocabulary], and changes the rows. Order:
  // the changes of LogitsProcessor, then temperature, top-k, top-p, min-p (top-p first if top_p_of says so); ties go to
  // the lowest id.
  // The random number depends only on seed, position and step, and rows are independent, so results do not depend on
  // other requests.
  // `unguided`: the model's rows, if guidance has changed `logits` of spots with a cfg_scale; null: it has changed
  // none. The token of a row with NaN or an infinite largest logit is not valid (SampledToken::is_valid). It changes no
  // other token.
  std::vector<SampledToken> sample(const TensorView& logits, std::span<const SampleSpot> spots,
                                   std::optional<int32_t> excluded_id = {}, const TensorView& unguided = {}) const;
  // Returns up to `count` most likely tokens of a row that sample() has changed and read as `read`, by descending
  // probability; ties go to the lowest id. None if `read` is not valid.
  std::vector<TokenShare> likeliest(const TensorView& row, const SampledToken& read, int32_t count,
                                    std::optional<int32_t> excluded_id = {}) const;
  // Returns the tokens sampled on a device, from the results of token_confidence and sample_tokens; valid as above.
  // `orders`: orders_of() the spots. `spots` are read only if rows.model_stats is there.
  static std::vector<SampledToken> describe(const ChosenRows& rows, std::span<const double> orders,
                                            std::span<const SampleSpot> spots);
  static std::vector<double> orders_of(std::span<const SampleSpot> spots);  // SampledToken::order of each

 private:
  const OpSet& ops_;
  OpContext context_;
  int32_t vocab_;
};

}  // namespace headrace
