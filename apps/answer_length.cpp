#include "answer_length.h"

#include "commands.h"
#include "headrace/decoding/decoding_strategy.h"
#include "headrace/request/sampling_params.h"

namespace headrace::app {

int32_t default_max_tokens(const ModelDescription& description, const EngineConfig& config, const ModelInfo& model) {
  StrategyConfig decoding = config.decoding;
  decoding.model = model.diffusion;
  const bool grows = make_strategy(config.strategy, decoding)->traits().text_block.has_value();
  const int32_t most = grows ? kUntilFull : SamplingParams().max_tokens;
  const JsonValue* const file = description.generation_config();
  return file == nullptr ? most : static_cast<int32_t>(file->int_or("max_new_tokens", most, 1, kUntilFull));
}

}  // namespace headrace::app
