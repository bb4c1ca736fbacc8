// What an engine asks of a configuration and of a request; answered without one too, before weights are read.
#pragma once
#include <memory>
#include <string_view>

#include "headrace/engine/engine.h"

namespace headrace {

// The strategy of an engine with this configuration, of which it reads max_context_len, strategy and decoding. Errors
// as make_strategy; kInvalidArgument for a mask token that the vocabulary lacks, or a block that the context does not
// hold; kUnsupported for recurrent layers, where the strategy runs rows more than once.
std::unique_ptr<DecodingStrategy> strategy_of(const ModelInfo& model, const EngineConfig& config);

// Error kInvalidArgument for a model whose tokens see what is behind them too: a score needs next tokens'
// probabilities.
void check_scores(const ModelInfo& model);

// Error kInvalidArgument for what a request of this strategy and model cannot ask.
void check_params(const SamplingParams& params, std::string_view strategy, const ModelInfo& model);

// Error kInvalidArgument for ids outside the vocabulary, and for a mask token in the prompt of a request of the
// schedule 'reference': the published loops decide it as they do their own, and a prompt is never changed here.
// `mask_token_id` is the strategy's; absent: the model's.
void check_prompt(std::span<const int32_t> prompt, const SamplingParams& params, const ModelInfo& model,
                  std::optional<int32_t> mask_token_id);

// Error kOutOfMemory, as ModelRunner's, for a request whose steps have no graphs where these are required.
void check_graphs(const SamplingParams& params, RunnerConfig::Graphs graphs);

}  // namespace headrace
