#include "sampling_flags.h"

#include <charconv>
#include <limits>
#include <optional>

#include "option_values.h"

namespace headrace::app {
namespace {

template <class T>
bool reads(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// "15+2.5", "15-2.5" or "15-inf", as llama.cpp writes them.
std::optional<LogitBias> bias_of(std::string_view text) {
  const size_t sign = text.find_first_of("+-");
  if (sign == std::string_view::npos) return std::nullopt;
  const std::string_view number = text.substr(sign + 1);
  LogitBias one;
  if (number.starts_with('-') || !reads(text.substr(0, sign), one.id) || !reads(number, one.bias)) return std::nullopt;
  if (text[sign] == '-') one.bias = -one.bias;
  return one;
}

CLI::Validator bias() {
  const std::string expected = "a token id and its bias, as 15+2.5 or 15-inf";
  return {[expected](const std::string& text) {
            return bias_of(text) ? std::string() : "is '" + text + "', expected " + expected;
          },
          expected};
}

void add_penalty_flags(CLI::App& app, SamplingParams& params) {
  app.add_option("--presence-penalty", params.presence_penalty,
                 "subtract this from the logits of tokens that the output has; -2 to 2")
      ->capture_default_str();
  app.add_option("--frequency-penalty", params.frequency_penalty,
                 "subtract this for each time that the output has the token; -2 to 2")
      ->capture_default_str();
  const auto add = [&params](const std::vector<std::string>& biases) {
    for (const std::string& text : biases) params.logit_bias.push_back(*bias_of(text));
  };
  app.add_option_function<std::vector<std::string>>(
         "-l,--logit-bias", add,
         "add a number from -100 to 100, or -inf, to a token's logit; may be given several times")
      ->check(bias())
      ->allow_extra_args(false);
}

void add_distribution_flags(CLI::App& app, SamplingFlags& f) {
  const auto of_model = [](const std::string& what, const char* otherwise) {
    return what + " (default: the model's generation_config.json, else " + otherwise + ")";
  };
  app.add_option("--temperature,--temp", f.temperature, of_model("randomness; 0: always the most likely token", "1"));
  app.add_option("--top-k", f.top_k, of_model("draw from the N most likely tokens; 0: from all", "0"));
  app.add_option("--top-p", f.top_p,
                 of_model("draw from the likeliest tokens that together have this probability", "1"));
  app.add_option("--min-p", f.min_p,
                 of_model("draw from tokens with at least this share of the likeliest one's probability", "0"));
  app.add_option("--repetition-penalty", f.repetition_penalty,
                 of_model("above 1: tokens that occurred become less likely", "1"));
}

}  // namespace

void add_default_sampling_flags(CLI::App& app, SamplingFlags& f) {
  app.option_defaults()->group("Sampling of requests that do not say otherwise");
  add_distribution_flags(app, f);
}

void add_sampling_flags(CLI::App& app, SamplingFlags& f) {
  app.option_defaults()->group("Sampling");
  app.add_option("-n,--max-tokens,--n-predict", f.params.max_tokens,
                 "new tokens at most; -1: until the context is full; 0: read the prompt alone")
      ->check(
          integer_in(0, kUntilFull,
                     "an integer from 1 to 1073741824, 0 (reads the prompt alone) or -1 (until the context is full)"))
      ->capture_default_str();
  app.add_option("--min-tokens", f.params.min_tokens, "before so many new tokens, choose none that ends the output")
      ->capture_default_str();
  add_distribution_flags(app, f);
  add_penalty_flags(app, f.params);
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
