#include "headrace/engine/decoding_checks.h"

#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/decoding/decoding_option.h"
#include "headrace/decoding/reference_loop.h"
#include "headrace/ops/top_tokens.h"
#include "headrace/sampling/acceptance.h"

namespace headrace {
namespace {

void check_guidance(const DecodingParams& params, const DiffusionInfo& info) {
  HR_REQUIRE(params.cfg_scale == 0 || info.guidance != DiffusionInfo::Guidance::kNone, ErrorCode::kInvalidArgument,
             "cfg_scale is ", params.cfg_scale, ", expected 0 with this model, whose published loop has no guidance");
}

void check_ids(const SamplingParams& params, int32_t vocab, std::string_view otherwise) {
  for (const int32_t id : params.stop_token_ids) {
    HR_REQUIRE(id < vocab, ErrorCode::kInvalidArgument, "stop_token_ids: ", id, otherwise, vocab);
  }
  for (const LogitBias& one : params.logit_bias) {
    HR_REQUIRE(one.id < vocab, ErrorCode::kInvalidArgument, "logit_bias: ", one.id, otherwise, vocab);
  }
}

// A pass of the other strategies decides several tokens of a text, each as if it did not know the others.
bool decides_in_order(std::string_view strategy) { return strategy == "autoregressive"; }

void check_logprobs(const SamplingParams& params, std::string_view strategy) {
  static_assert(kMostLogprobs == TopTokensArgs::kMostTokens);
  if (decides_in_order(strategy)) return;
  HR_REQUIRE(params.top_logprobs == 0, ErrorCode::kInvalidArgument, "top_logprobs is ", params.top_logprobs,
             ", expected 0 with the strategy '", strategy, "', which decides several tokens in a pass");
  HR_REQUIRE(!params.prompt_logprobs, ErrorCode::kInvalidArgument, "prompt_logprobs is ",
             params.prompt_logprobs.value_or(0), ", expected none with the strategy '", strategy,
             "', whose prompts do not predict the next token");
}

}  // namespace

std::unique_ptr<DecodingStrategy> strategy_of(const ModelInfo& model, const EngineConfig& c) {
  StrategyConfig config = c.decoding;
  config.model = model.diffusion;
  auto strategy = make_strategy(c.strategy, config);
  const int32_t mask = config.mask_token_id.value_or(0), block = config.block_size.value_or(0);
  HR_REQUIRE(mask < model.vocab_size, ErrorCode::kInvalidArgument, "strategy '", c.strategy, "': mask_token_id is ",
             mask, ", expected 0 to ", model.vocab_size - 1);
  HR_REQUIRE(block <= c.max_context_len, ErrorCode::kInvalidArgument, "strategy '", c.strategy, "': block_size is ",
             block, ", expected at most ", c.max_context_len, ", what the context holds");
  HR_REQUIRE(strategy->traits().runs_tokens_once || model.num_gdn_layers == 0, ErrorCode::kUnsupported, "strategy '",
             c.strategy, "' runs rows more than once, which the recurrent layers of ", model.architecture,
             " cannot take back");
  return strategy;
}

void check_scores(const ModelInfo& model) {
  HR_REQUIRE(!model.diffusion || decodes("autoregressive", *model.diffusion), ErrorCode::kInvalidArgument,
             "perplexity: ", model.architecture,
             " is trained to see what is behind a token too, so that it has no probability of the next one");
}

void check_params(const SamplingParams& params, std::string_view strategy, const ModelInfo& model) {
  validate(params);
  HR_REQUIRE(params.end_of_text != SamplingParams::EndOfText::kBanned || !model.eos_ids.empty(),
             ErrorCode::kInvalidArgument, "end tokens are banned, but the model names none");
  check_ids(params, model.vocab_size, " is outside the model's vocabulary of ");
  check_logprobs(params, strategy);
  refuse_unread(strategy, asked_options(params.decoding));
  if (!model.diffusion) return;
  check_reference(params.decoding, *model.diffusion);
  check_threshold(params.decoding, *model.diffusion);
  check_semi_complete(params.decoding, *model.diffusion);
  check_guidance(params.decoding, *model.diffusion);
}

void check_chosen_ids(const SamplingParams& params, int32_t vocab) {
  check_ids(params, vocab, " is never chosen: the tokenizer has ids below ");
}

void check_constraint(std::string_view strategy) {
  HR_REQUIRE(decides_in_order(strategy), ErrorCode::kInvalidArgument,
             "a constraint of the output is not possible with the strategy '", strategy,
             "', which decides several tokens in a pass");
}

void check_prompt(std::span<const int32_t> prompt, const SamplingParams& params, const ModelInfo& model,
                  std::optional<int32_t> mask_token_id) {
  for (const int32_t id : prompt) {
    HR_REQUIRE(id >= 0 && id < model.vocab_size, ErrorCode::kInvalidArgument, "prompt: token id ", id,
               " is outside the vocabulary of ", model.vocab_size);
  }
  if (!model.diffusion || params.decoding.schedule != DecodingParams::Schedule::kReference) return;
  if (!mask_token_id) mask_token_id = model.diffusion->mask_token_id;
  const auto mask = mask_token_id ? std::ranges::find(prompt, *mask_token_id) : prompt.end();
  HR_REQUIRE(mask == prompt.end(), ErrorCode::kInvalidArgument, "prompt: token ", mask - prompt.begin(),
             " is the mask, expected none with the schedule 'reference': the published loop would decide it, and a "
             "prompt is never changed here");
}

void check_graphs(const SamplingParams& params, RunnerConfig::Graphs graphs) {
  HR_REQUIRE(
      params.decoding.cfg_scale == 0 || graphs != RunnerConfig::Graphs::kRequired, ErrorCode::kOutOfMemory,
      "graphs of all steps behind prompts are required, but those of a guided request run without: cfg_scale is ",
      params.decoding.cfg_scale);
}

}  // namespace headrace
