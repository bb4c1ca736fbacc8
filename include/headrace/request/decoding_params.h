// Parameters of diffusion decoding, per request.
#pragma once
#include <cstdint>
#include <optional>

namespace headrace {

struct DecodingParams {
  // The test that a candidate token must pass to be kept. Under every rule the first unfinished block keeps at least
  // its best candidate, so every step makes progress.
  enum class Rule : uint8_t {
    kConfidence,    // its probability passes the threshold
    kMargin,        // best minus second-best probability passes the threshold
    kEntropy,       // the entropy of its distribution, in nats, is at most the threshold
    kEntropyBound,  // the longest run in ascending entropy whose preceding entropies sum to at most the threshold
    kLeftmost,      // none passes; the first ranks best
    kRandom,        // none passes; ranks at random
  };
  // The number of tokens that a pass keeps, and the end of the text.
  enum class Schedule : uint8_t {
    // keeps those that pass the rule, at least the minimum above; decides nothing after an end token or beyond
    // max_tokens
    kThreshold,
    // the family's published loop, DiffusionInfo::loop: one block at a time; positions after the end are decided like
    // others while an earlier one is left
    kReference,
  };
  // Absent: kConfidence; for a canvas, kEntropyBound; for kReference, the published loop's (ReferenceDefaults).
  std::optional<Rule> rule;
  Schedule schedule = Schedule::kThreshold;
  // kReference: passes over which a block's masks are distributed; absent: as many as masks. Canvas: maximal steps;
  // absent: the model's.
  std::optional<int32_t> steps;
  // kThreshold of multi_bd and d2f: maximal passes of a block with guaranteed progress; each keeps at least an even
  // share of the remaining masks. Absent: a pass may keep a single token.
  std::optional<int32_t> max_passes;
  // A probability in 0 to 1, or infinity: no token passes. Absent: the model's, or none if the rule only ranks. The
  // entropy rules require one, except in published loops that do not use it.
  std::optional<float> threshold;
  float add_block = 0.1f;  // decided share of a block at which the next block is opened
  // Share of a block's decided tokens that its last pass must choose again before the next block is opened; for
  // strategies that change decided tokens. A final block is stable.
  float stability = 0;
  // Decided share of a block from which the next one has guaranteed progress; for families whose blocks do not always
  // have it.
  float semi_complete = 0.9f;
  // For strategies that change decided tokens.
  std::optional<float> edit_threshold;  // probability above which another token replaces a decided one; absent: 0.5
  // Decided tokens become masks again if no token of their position is this likely (multi_bd_edit); absent: never. A
  // block still ends within as many passes as it has tokens, plus max_edits.
  std::optional<float> remask_threshold;
  std::optional<int32_t> max_edits;  // passes that may change a block without masks; absent: kMaxEdits
  // Above 0: candidates are drawn without replacement by exp(score / order_temperature) instead of taking the best.
  // Scores are the rule's: probability, margin, minus entropy.
  float order_temperature = 0;
  int32_t merge_candidates = 1;  // tokens blended in the soft embedding of a position that is not final (dmax)
  static constexpr int32_t kMaxEdits = 16;
  float copy_penalty = 0;  // subtracted from the logit of the left neighbour's token in the same block (multi_bd_edit)
  // Above 0: classifier-free guidance (full_attention). With u the logits of the text with a masked prompt and c the
  // conditional ones, the logits become u + (cfg_scale + 1) (c - u); everything else reads the result. A pass runs both
  // texts.
  float cfg_scale = 0;
};

}  // namespace headrace
