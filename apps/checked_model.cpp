#include "checked_model.h"

#include "decoding_flags.h"
#include "headrace/engine/decoding_checks.h"
#include "model_options.h"
#include "model_path.h"
#include "sampling_flags.h"

namespace headrace::app {
namespace {

// Flags come first: the engine sees fields, and would name a default to go back to where a flag is to be left out.
void refuse_params(const GenerateFlags& flags, const ModelDescription& model, const LLMOptions& options) {
  const StrategyConfig unasked;
  LLMOptions named = options;
  named.decoding.num_blocks = unasked.num_blocks;
  named.decoding.merge = unasked.merge;
  refuse_unread(checked_strategy(model, named, {}), asked_options(flags.decoding));
  checked_strategy(model, options, params_of(flags.sampling, {}));
}

}  // namespace

CheckedModel checked_model(const GenerateFlags& flags, const std::string& demo) {
  validate(params_of(flags.sampling, {}));
  check_decoding(flags.decoding, flags.sampling.params.decoding);
  LLMOptions options = options_of(flags.model);
  set_decoding(options, flags.decoding);
  ModelDescription description = read_description(model_directory(flags.model, demo), options.random_weights);
  refuse_params(flags, description, options);
  return {std::move(options), std::move(description)};
}

}  // namespace headrace::app
