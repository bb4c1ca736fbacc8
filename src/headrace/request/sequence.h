// The state of a request in the engine.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/batch/attn_metadata.h"
#include "headrace/core/tensor.h"
#include "headrace/request/decoding_block.h"
#include "headrace/request/prefix_miss.h"
#include "headrace/request/sampled_token.h"
#include "headrace/request/sampling_params.h"
#include "headrace/request/token_constraint.h"

namespace headrace {

enum class FinishReason : uint8_t {
  kStop,
  kLength,   // max_tokens
  kContext,  // the context is full before max_tokens
  kAborted,
  kError,  // StepOutput::error says why
};
// Returns the name in OpenAI's API and vLLM, where a full context is "length", too.
constexpr std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength:
    case FinishReason::kContext: return "length";
    case FinishReason::kAborted: return "abort";
    case FinishReason::kError: return "error";
  }
  return "unknown";
}

// A snapshot of the recurrent state after the sequence's first num_tokens tokens.
struct StateMark {
  int32_t num_tokens = 0;
  int32_t slot = kNoState;   // kNoState until a step that takes it is planned
  bool is_optional = false;  // left out if there is no room
};

// Owned by the engine; only the engine changes it, through its strategy.
struct Sequence {
  int64_t id = 0;
  SamplingParams params;
  ScoresOf scores_of = ScoresOf::kModel;
  std::vector<int32_t> tokens;       // prompt, then output; undecided positions hold the mask token's id
  std::vector<SampledToken> chosen;  // [output tokens]: the sampling result of each decided token
  int32_t prompt_len = 0;
  int32_t limit = 0;             // positions from here on are never decided (max_tokens, context, end token)
  std::vector<int32_t> eos_ids;  // tokens that end this request; empty when none does
  int32_t num_cached = 0;        // tokens whose K, V and state are in the pools
  int32_t num_reused = 0;        // prompt tokens taken from the prefix cache
  int32_t num_final = 0;         // leading tokens that will not change
  int32_t num_published = 0;     // tokens already returned; includes the prompt
  int32_t num_scored = 0;        // leading rows of the prompt that have given a log-probability
  std::vector<PromptToken> prompt_logprobs;    // of them, until the first token is published
  std::vector<std::vector<TokenLogprob>> top;  // [output tokens], if top_logprobs asks for some
  // Its last token is being decided, and only the limit ends it: no further step is planned.
  bool is_complete = false;
  int32_t num_forwards = 0;           // forward passes that sampled or stored tokens, without prompt chunks
  std::vector<DecodingBlock> blocks;  // block strategies: uncached blocks, in order, without gaps
  // [output tokens * StepPlan::num_candidates]: the likeliest tokens in the last pass that sampled the position,
  // descending.
  std::vector<TokenShare> candidates;
  // float32 [rows, vocab], on the host or the device: logits of the last step that the next one reads; or null.
  Tensor conditioning;
  std::optional<FinishReason> finish_reason;
  std::shared_ptr<TokenConstraint> constraint;  // null: any token may come

  std::string cache_salt;   // the prefix cache shares text among requests of one salt only
  int32_t prefill_len = 0;  // tokens to run before the sequence decodes: the prompt; once preempted, what was cached
  int32_t most_rows = std::numeric_limits<int32_t>::max();  // of a step; fewer once one ran out of memory
  int32_t num_preempted = 0;                                // times that it lost its pages
  PrefixMiss miss;                                          // of when it began last

  // Resources of a running sequence.
  int32_t table_row = 0;  // 0: it waits
  bool begun = false;     // false: it waits for text that another request computes, or for pages
  int32_t state_slot = kNoState;
  int32_t state_end = 0;           // prefix length of the slot's state after the last planned step
  int32_t last_left = 0;           // prefix length of the state that it left last at a step's begin; 0: none
  std::vector<StateMark> marks;    // ascending
  std::vector<int32_t> pages;      // of its first tokens; some behind num_tokens may be there already
  int32_t num_tree_pages = 0;      // leading pages that are nodes of the prefix tree
  int32_t num_computed_pages = 0;  // of these, leading ones that are computed

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_output() const { return num_published - prompt_len; }
};

}  // namespace headrace
