// The decoding that a diffusion language model was trained for. Strategies and samplers take defaults from it, so none
// of them depends on a family.
#pragma once
#include <cstdint>
#include <optional>

#include "headrace/models/reference_defaults.h"

namespace headrace {

// Set by the family from config.json or, if that is silent, from the family's published defaults.
struct DiffusionInfo {
  // The attention mask in a pass over a finished text.
  enum class Attention : uint8_t {
    kBlockCausal,  // its own block and those before it, blocks counted from position 0 (KeySpan::Kind::kBlock)
    kFull,         // everything: any change invalidates all K and V (KeySpan::Kind::kFull)
    kCanvas,       // causal text, then one canvas whose positions see the text and each other
  };
  // The position whose logits predict the token of position i.
  enum class LogitsOf : uint8_t {
    kSame,    // i
    kBefore,  // i - 1; position 0 is never predicted
  };
  // Comparison of a probability with the threshold.
  enum class Acceptance : uint8_t { kAbove, kAtLeast };
  // The number of tokens that a pass of the published loop keeps.
  enum class Loop : uint8_t {
    kDynamic,    // all that pass the threshold, or the best of an even share of the block's masks if fewer pass
    kEven,       // the best of an even share; with a request threshold, all that pass, at least the best
    kTimesteps,  // the best of the share of linear time; the whole output is one block
  };

  // Classifier-free guidance (DecodingParams::cfg_scale).
  enum class Guidance : uint8_t {
    kNone,          // the published loop has none
    kMaskedPrompt,  // unconditional logits: the same text with its prompt masked
  };

  // Blocks with guaranteed progress: of several blocks denoised at the same time, those that keep at least their best
  // candidate in every pass.
  enum class Progress : uint8_t {
    kInTurn,  // the first unfinished one, and one after a nearly finished block (DecodingParams::semi_complete)
    kAlways,
  };

  // kMaybe: the model may have been trained to predict better tokens at decided positions.
  enum class Edits : uint8_t {
    kNone,
    kMaybe,  // LLaDA2.1's, whose config.json equals LLaDA2.0's, or DMax's
  };

  // Denoising of a canvas; kCanvas only.
  struct Canvas {
    int32_t noise_vocab = 0;           // noise tokens are uniform in [0, noise_vocab)
    int32_t max_steps = 48;            // steps of one canvas
    float t_max = 0.8f, t_min = 0.4f;  // temperature: linear from t_max to one step above t_min
    int32_t stability = 1;      // a canvas is done if its likeliest tokens equal those of this many earlier steps
    float confidence = 0.005f;  // and its mean entropy is below this, in nats
  };

  std::optional<int32_t> mask_token_id;  // below vocab_size; absent: a canvas starts as uniform noise
  int32_t block_size = 0;                // tokens denoised together
  int32_t sub_block_size = 0;            // parts of a block, denoised left to right; block_size if none
  Attention attention = Attention::kBlockCausal;
  LogitsOf logits_of = LogitsOf::kSame;
  // kCanvas: bound on the summed entropy of the kept positions.
  float threshold = 0.9f;  // a token is kept if its probability passes
  Acceptance acceptance = Acceptance::kAbove;
  Loop loop = Loop::kDynamic;
  Guidance guidance = Guidance::kNone;
  Progress progress = Progress::kInTurn;
  Edits edits = Edits::kNone;
  // The filter order of the published sampler; applies to requests with both filters.
  enum class Filters : uint8_t { kTopKFirst, kTopPFirst } filters = Filters::kTopKFirst;
  Canvas canvas;
  ReferenceDefaults reference;
};

}  // namespace headrace
