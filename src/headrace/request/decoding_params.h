// How a request of a diffusion strategy decides its tokens.
#pragma once
#include <cstdint>
#include <optional>

namespace headrace {

struct DecodingParams {
  // What a candidate token must pass to be kept. Whatever the rule, the first unfinished block keeps at least the best
  // candidate, so every step makes progress.
  enum class Rule : uint8_t {
    kConfidence,    // its probability passes the threshold
    kMargin,        // best minus second-best probability passes the threshold
    kEntropy,       // the entropy of its distribution, in nats, is at most the threshold
    kEntropyBound,  // in ascending entropy, the longest run whose entropies before each add up to at most the threshold
    kLeftmost,      // none passes by itself, and the first is the best
    kRandom,        // none passes by itself, and one at random is the best
  };
  // How many tokens a pass keeps, and what happens behind the end.
  enum class Schedule : uint8_t {
    kThreshold,  // those that pass the rule, and never less than said above; nothing behind an end token or behind
                 // max_tokens is decided
    kReference,  // as the family's published loop, DiffusionInfo::loop: blocks one at a time, and positions behind the
                 // end are decided like all others as long as one before it is left
  };
  // Absent: kConfidence; of a canvas, kEntropyBound; of kReference, the published loop's (ReferenceDefaults).
  std::optional<Rule> rule;
  Schedule schedule = Schedule::kThreshold;
  // kReference: passes that share a block's masks; absent: as many as masks. Of a canvas: at most; absent: the model's.
  std::optional<int32_t> steps;
  // kThreshold of multi_bd and d2f: a block that is sure of progress is decided in that many passes at most; each keeps
  // no less than an even share of the masks that are left. Absent: a pass may keep a single one.
  std::optional<int32_t> max_passes;
  // Of a probability 0 to 1, or infinity: no token passes. Absent: the model's, or none where no token passes one by
  // itself. The entropy rules need one, but for published loops that have no use for it.
  std::optional<float> threshold;
  float add_block = 0.1f;  // share of a block that is decided before the next one is opened behind it
  // Share of a block's decided tokens that its last pass chose again before the next one is opened behind it; of
  // strategies that change decided tokens. A block that is final is stable.
  float stability = 0;
  // Share of a block that is decided before the next one is sure of progress; of families whose blocks are not always.
  float semi_complete = 0.9f;
  // Of strategies that change decided tokens again.
  std::optional<float> edit_threshold;  // what another token's probability must pass to take a place; absent: 0.5
  // Decided tokens become masks again where no token is as likely as this (multi_bd_edit); absent: never. Blocks end
  // all the same: within as many passes as they have tokens, and max_edits more.
  std::optional<float> remask_threshold;
  std::optional<int32_t> max_edits;  // passes that may change a block without masks; absent: kMaxEdits
  // Above 0: instead of the best, as many are drawn one after the other, each by exp(score / order_temperature). The
  // scores are those of the rule: probability, margin, minus entropy.
  float order_temperature = 0;
  int32_t merge_candidates = 1;  // tokens whose blend a place that is not final goes in as (dmax)
  static constexpr int32_t kMaxEdits = 16;
  float copy_penalty = 0;  // off the logit of the token on the left in the same block (multi_bd_edit)
  // Above 0: classifier-free guidance (full_attention). Logits are those of the same text with its prompt masked, and
  // cfg_scale + 1 times what the prompt adds to them; everything else reads the result. A pass runs two texts.
  float cfg_scale = 0;
};

}  // namespace headrace
