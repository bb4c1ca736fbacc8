#include "sampling_flags.h"

#include <limits>

#include "option_values.h"

namespace headrace::app {

void add_sampling_flags(CLI::App& app, SamplingFlags& f) {
  const auto of_model = [](const std::string& what, const char* otherwise) {
    return what + " (default: the model's generation_config.json, else " + otherwise + ")";
  };
  app.option_defaults()->group("Sampling");
  app.add_option("-n,--max-tokens,--n-predict", f.params.max_tokens,
                 "new tokens at most; -1: until the context is full; 0: read the prompt alone")
      ->check(
          integer_in(0, kUntilFull,
                     "an integer from 1 to 1073741824, 0 (reads the prompt alone) or -1 (until the context is full)"))
      ->capture_default_str();
  app.add_option("--temperature,--temp", f.temperature, of_model("randomness; 0: always the most likely token", "1"));
  app.add_option("--top-k", f.top_k, of_model("draw from the N most likely tokens; 0: from all", "0"));
  app.add_option("--top-p", f.top_p,
                 of_model("draw from the likeliest tokens that together have this probability", "1"));
  app.add_option("--min-p", f.min_p,
                 of_model("draw from tokens with at least this share of the likeliest one's probability", "0"));
  app.add_option("--repetition-penalty", f.repetition_penalty,
                 of_model("above 1: tokens that occurred become less likely", "1"));
  app.add_option("-s,--seed", f.params.seed, "the same seed draws the same tokens; -1: another seed each time")
      ->check(integer_in<uint64_t>(0, std::numeric_limits<uint64_t>::max(),
                                   "an integer from 0 to 18446744073709551615, or -1 (another one each time)"))
      ->capture_default_str();
  app.add_option("--stop", f.params.stop, "end the output in front of this text; may be given several times")
      ->allow_extra_args(false);  // or it takes the model behind it for another one
  app.add_option("--stop-token-ids", f.params.stop_token_ids, "token ids that end the output, as in 1,2")
      ->delimiter(',')
      ->allow_extra_args(false);
  using EndOfText = SamplingParams::EndOfText;
  CLI::Option* ignored = app.add_flag_callback(
      "--ignore-eos", [&f] { f.params.end_of_text = EndOfText::kIgnored; }, "go on behind an end token");
  app.add_flag_callback(
         "--ban-end-tokens", [&f] { f.params.end_of_text = EndOfText::kBanned; },
         "never choose an end token (llama.cpp's --ignore-eos, LLaDA's logits_eos_inf)")
      ->excludes(ignored);
}

SamplingParams params_of(const SamplingFlags& f, const SamplingParams& defaults) {
  SamplingParams params = f.params;
  params.temperature = f.temperature.value_or(defaults.temperature);
  params.top_k = f.top_k.value_or(defaults.top_k);
  params.top_p = f.top_p.value_or(defaults.top_p);
  params.min_p = f.min_p.value_or(defaults.min_p);
  params.repetition_penalty = f.repetition_penalty.value_or(defaults.repetition_penalty);
  return params;
}

}  // namespace headrace::app
