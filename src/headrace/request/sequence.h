// A request on its way through the engine.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "headrace/batch/attn_metadata.h"
#include "headrace/core/tensor.h"
#include "headrace/request/decoding_block.h"
#include "headrace/request/sampled_token.h"
#include "headrace/request/sampling_params.h"

namespace headrace {

enum class FinishReason : uint8_t {
  kStop,
  kLength,   // max_tokens
  kContext,  // which is full: fewer than max_tokens
  kAborted
};
// As OpenAI's API and vLLM name them, to which a full context is a length too.
constexpr std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength:
    case FinishReason::kContext: return "length";
    case FinishReason::kAborted: return "abort";
  }
  return "unknown";
}

// A recurrent state that a sequence leaves on its way, behind its first num_tokens tokens.
struct StateMark {
  int32_t num_tokens = 0;
  int32_t slot = kNoState;  // as long as no step that leaves it has been planned
};

// Owned by the engine, which alone changes it, through its strategy.
struct Sequence {
  int64_t id = 0;
  SamplingParams params;
  ScoresOf scores_of = ScoresOf::kModel;
  std::vector<int32_t> tokens;       // prompt, then output; undecided positions hold the mask token's id
  std::vector<SampledToken> chosen;  // of tokens[prompt_len..]: what a decided token was when it was chosen
  int32_t prompt_len = 0;
  int32_t limit = 0;                  // positions from here on are never decided: max_tokens, the context, an end token
  std::vector<int32_t> eos_ids;       // tokens that end this request; empty when none does
  int32_t num_cached = 0;             // tokens whose K, V and state are in the pools
  int32_t num_reused = 0;             // of the prompt's, those that were not computed for it
  int32_t num_final = 0;              // leading tokens that will not change
  int32_t num_published = 0;          // of these, tokens that the engine has handed out; the prompt counts
  int32_t num_forwards = 0;           // passes that looked for tokens, or stored some; prompt chunks do not count
  std::vector<DecodingBlock> blocks;  // of block strategies: what is not cached yet, in order, without gaps
  // Of tokens[prompt_len..], StepPlan::num_candidates each: the likeliest when a pass last looked, in descending order.
  std::vector<TokenShare> candidates;
  // float32 [rows, vocab], on the host or where the model runs: logits of the last step that the next one reads; or
  // null.
  Tensor conditioning;
  std::optional<FinishReason> finish_reason;

  // Held while the sequence runs.
  int32_t table_row = 0;
  int32_t state_slot = kNoState;
  int32_t state_end = 0;         // tokens behind which the slot's state stands when the last planned step has run
  std::vector<StateMark> marks;  // ascending
  std::vector<int32_t> pages;

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_output() const { return num_published - prompt_len; }
};

}  // namespace headrace
