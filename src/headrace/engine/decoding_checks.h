// Checks of a configuration and of requests. They need no weights, so that errors come before these are read.
#pragma once
#include <memory>
#include <string_view>

#include "headrace/engine/engine.h"

namespace headrace {

// Creates the strategy of an engine with this configuration. Reads only max_context_len, strategy and decoding. Errors
// as make_strategy; kInvalidArgument if the vocabulary lacks the mask token or the context is shorter than a block;
// kUnsupported for a model with recurrent layers whose strategy runs tokens more than once.
std::unique_ptr<DecodingStrategy> strategy_of(const ModelInfo& model, const EngineConfig& config);

// Error kInvalidArgument for a model whose tokens also attend to later ones: a score needs next-token probabilities.
void check_scores(const ModelInfo& model);

// Error kInvalidArgument for parameters that this strategy and model do not support.
void check_params(const SamplingParams& params, std::string_view strategy, const ModelInfo& model);

// Error kInvalidArgument for tokens of stop_token_ids or logit_bias from `vocab` on, which are never chosen.
void check_chosen_ids(const SamplingParams& params, int32_t vocab);

// Error kInvalidArgument for a strategy under which a request may have no TokenConstraint.
void check_constraint(std::string_view strategy);

// Error kInvalidArgument for ids outside the vocabulary, and for a mask token in the prompt of a request of the
// schedule 'reference': the published loops would decide that position, and headrace never changes a prompt.
// `mask_token_id` is the strategy's; absent: the model's.
void check_prompt(std::span<const int32_t> prompt, const SamplingParams& params, const ModelInfo& model,
                  std::optional<int32_t> mask_token_id);

// Error kOutOfMemory, as ModelRunner's, if graphs are required and the request's steps have none.
void check_graphs(const SamplingParams& params, RunnerConfig::Graphs graphs);

}  // namespace headrace
