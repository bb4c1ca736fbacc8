#include "sampling_flags.h"

namespace headrace::app {

void add_sampling_flags(CLI::App& app, SamplingFlags& f) {
  const auto of_model = [](const std::string& what) { return what + "default: generation_config.json's, else "; };
  app.option_defaults()->group("Sampling");
  app.add_option("-n,--max-tokens,--n-predict", f.params.max_tokens, "new tokens at most")->capture_default_str();
  app.add_option("--temperature,--temp", f.temperature, of_model("0: the most likely token; ") + "1");
  app.add_option("--top-k", f.top_k, of_model("0: all; ") + "0");
  app.add_option("--top-p", f.top_p, of_model("") + "1");
  app.add_option("--min-p", f.min_p, of_model("") + "0");
  app.add_option("--repetition-penalty", f.repetition_penalty, of_model("") + "1");
  app.add_option("-s,--seed", f.params.seed, "the same seed draws the same tokens")->capture_default_str();
  app.add_option("--stop", f.params.stop, "text that ends the output; may be given several times")
      ->allow_extra_args(false);  // or it takes the model behind it for another one
  app.add_option("--stop-token-ids", f.params.stop_token_ids, "token ids that end the output, as in 1,2")
      ->delimiter(',')
      ->allow_extra_args(false);
  using EndOfText = SamplingParams::EndOfText;
  CLI::Option* ignored = app.add_flag_callback(
      "--ignore-eos", [&f] { f.params.end_of_text = EndOfText::kIgnored; }, "go on after an end token");
  app.add_flag_callback(
         "--ban-end-tokens", [&f] { f.params.end_of_text = EndOfText::kBanned; },
         "never choose an end token, as llama.cpp's --ignore-eos and LLaDA's logits_eos_inf")
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
