// Dream, Dream-Coder and DiffuCoder: Qwen2 with full attention and next-token logits.
// Source: Dream 7B; DiffuCoder (Apple). block_size is for block-wise decoding (D2F, Fast-dLLM): the model has none.
#include "headrace/models/families.h"

namespace headrace {

ModelConfig dream_config(const JsonValue& root) {
  ModelConfig c = qwen2_config(root);
  constexpr int64_t kReleasedVocab = 152064;
  // config.json states <|endoftext|> alone; DiffuCoder fills positions after the text with <|dlm_pad|>.
  constexpr int32_t kTurnEnd = 151645, kPad = 151667;
  if (c.vocab == kReleasedVocab) c.eos_ids.insert(c.eos_ids.end(), {kTurnEnd, kPad});
  c.diffusion = DiffusionInfo{.mask_token_id = read_mask_token_id(root, 151666, c.vocab),
                              .block_size = 32,
                              .sub_block_size = 32,
                              .attention = DiffusionInfo::Attention::kFull,
                              .logits_of = DiffusionInfo::LogitsOf::kBefore,
                              .acceptance = DiffusionInfo::Acceptance::kAtLeast,
                              .loop = DiffusionInfo::Loop::kTimesteps,
                              .filters = DiffusionInfo::Filters::kTopPFirst};
  return c;
}

}  // namespace headrace
