// How a diffusion language model was trained to be decoded. Strategies and samplers take their defaults from it, so
// that none of them asks for a family.
#pragma once
#include <cstdint>
#include <optional>

#include "headrace/models/reference_defaults.h"

namespace headrace {

// Filled in by the family from config.json and, where that is silent, from the family's published defaults.
struct DiffusionInfo {
  // What a position may see in one pass over a finished text.
  enum class Attention : uint8_t {
    kBlockCausal,  // its own block and those before it, blocks counted from position 0 (KeySpan::Kind::kBlock)
    kFull,         // everything, so that no K or V outlives a change exactly (KeySpan::Kind::kFull)
    kCanvas,       // causal text; behind it one canvas whose positions see the text and each other
  };
  // Which position's logits say the token of position i.
  enum class LogitsOf : uint8_t {
    kSame,    // those of i
    kBefore,  // those of i - 1; position 0 is never predicted
  };
  // How a probability is held against the threshold.
  enum class Acceptance : uint8_t { kAbove, kAtLeast };
  // How many tokens a pass of the published loop keeps.
  enum class Loop : uint8_t {
    kDynamic,    // all that pass the threshold, or the best of an even share of the block's masks where fewer do
    kEven,       // the best of an even share; all that pass, and at least the best, for a request with a threshold
    kTimesteps,  // the best of the share that linear time gives, of the whole output: it is one block
  };

  // What a request is guided by (DecodingParams::cfg_scale).
  enum class Guidance : uint8_t {
    kNone,          // the published loop has none
    kMaskedPrompt,  // the logits of the same text with masks in place of its prompt
  };

  // Of several blocks that are denoised at the same time, those that keep at least their best candidate.
  enum class Progress : uint8_t {
    kInTurn,  // the first unfinished one, and one behind a block that is nearly done (DecodingParams::semi_complete)
    kAlways,
  };

  // Whether the rows of decided tokens were trained to say better ones.
  enum class Edits : uint8_t {
    kNone,
    kMaybe,  // those of LLaDA2.1, whose config.json is LLaDA2.0's, or DMax's
  };

  // How a canvas is denoised; of kCanvas alone.
  struct Canvas {
    int32_t noise_vocab = 0;           // a token without meaning is uniform in [0, noise_vocab)
    int32_t max_steps = 48;            // of one canvas
    float t_max = 0.8f, t_min = 0.4f;  // temperature: down from t_max, to one step above t_min
    int32_t stability = 1;      // a canvas is done when the likeliest tokens of so many steps before are the same
    float confidence = 0.005f;  // and the mean entropy is below this, in nats
  };

  std::optional<int32_t> mask_token_id;  // below vocab_size; absent: a canvas starts as uniform noise
  int32_t block_size = 0;                // tokens that are denoised together
  int32_t sub_block_size = 0;            // its parts, denoised left to right; block_size when it has none
  Attention attention = Attention::kBlockCausal;
  LogitsOf logits_of = LogitsOf::kSame;
  // kCanvas: a bound on the summed entropy of the positions that are kept.
  float threshold = 0.9f;  // a position's token is kept when its probability passes
  Acceptance acceptance = Acceptance::kAbove;
  Loop loop = Loop::kDynamic;
  Guidance guidance = Guidance::kNone;
  Progress progress = Progress::kInTurn;
  Edits edits = Edits::kNone;
  // In which order the published sampler filters; that of a request with both filters set.
  enum class Filters : uint8_t { kTopKFirst, kTopPFirst } filters = Filters::kTopKFirst;
  Canvas canvas;
  ReferenceDefaults reference;
};

}  // namespace headrace
