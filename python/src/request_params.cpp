#include "request_params.h"

#include <cmath>

#include "fields.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;
using Rule = DecodingParams::Rule;
using Schedule = DecodingParams::Schedule;

constexpr int32_t kUntilFull = 1 << 30;  // tokens: the context is full before

void read_distribution(const Fields& given, SamplingParams& p) {
  given.read("temperature", p.temperature);
  given.read("top_k", p.top_k);
  if (p.top_k == -1) p.top_k = 0;  // all tokens, as vLLM writes it too
  given.read("top_p", p.top_p);
  given.read("min_p", p.min_p);
  given.read("repetition_penalty", p.repetition_penalty);
  given.read("presence_penalty", p.presence_penalty);
  given.read("frequency_penalty", p.frequency_penalty);
  given.read("seed", p.seed);
}

void read_end(const Fields& given, SamplingParams& p) {
  given.read("max_tokens", p.max_tokens);
  if (p.max_tokens == -1) p.max_tokens = kUntilFull;
  given.read("min_tokens", p.min_tokens);
  given.read("stop", p.stop);
  given.read("stop_token_ids", p.stop_token_ids);
  bool ignores = false, bans = false;
  given.read("ignore_eos", ignores);
  given.read("ban_end_tokens", bans);
  HR_REQUIRE(!ignores || !bans, ErrorCode::kInvalidArgument,
             "ignore_eos and ban_end_tokens are both True, expected at most one");
  if (ignores) p.end_of_text = SamplingParams::EndOfText::kIgnored;
  if (bans) p.end_of_text = SamplingParams::EndOfText::kBanned;
}

void read_biases(const nb::dict& given, SamplingParams& p) {
  if (!given.contains("logit_bias") || nb::object(given["logit_bias"]).is_none()) return;
  nb::dict biases;
  HR_REQUIRE(nb::try_cast(given["logit_bias"], biases), ErrorCode::kInvalidArgument, "logit_bias is ",
             shown(given["logit_bias"]), ", expected a dict of token ids and numbers");
  for (const auto& [id, bias] : biases) {
    LogitBias one;
    HR_REQUIRE(nb::try_cast(id, one.id) && nb::try_cast(bias, one.bias), ErrorCode::kInvalidArgument, "logit_bias has ",
               shown(id), ": ", shown(bias), ", expected a token id and a number");
    p.logit_bias.push_back(one);
  }
}

void read_rule(const Fields& given, DecodingParams& d) {
  static constexpr std::array<std::string_view, 6> kRules = {"confidence",    "margin",   "entropy",
                                                             "entropy_bound", "leftmost", "random"};
  static constexpr std::array kValues = {Rule::kConfidence,   Rule::kMargin,   Rule::kEntropy,
                                         Rule::kEntropyBound, Rule::kLeftmost, Rule::kRandom};
  if (const auto rule = given.choice("accept", kRules)) d.rule = kValues[*rule];
}

void read_decoding(const Fields& given, DecodingParams& d) {
  read_rule(given, d);
  given.read("steps", d.steps);
  given.read("max_passes", d.max_passes);
  given.read("threshold", d.threshold);
  given.read("add_block", d.add_block);
  given.read("stability", d.stability);
  given.read("semi_complete", d.semi_complete);
  given.read("edit_threshold", d.edit_threshold);
  given.read("remask_threshold", d.remask_threshold);
  given.read("max_edits", d.max_edits);
  given.read("order_temperature", d.order_temperature);
  given.read("merge_candidates", d.merge_candidates);
  given.read("copy_penalty", d.copy_penalty);
  given.read("cfg_scale", d.cfg_scale);
}

}  // namespace

Schedule schedule_of(const nb::dict& given) {
  static constexpr std::array<std::string_view, 2> kSchedules = {"threshold", "reference"};
  return Fields(given).choice("schedule", kSchedules).value_or(0) == 0 ? Schedule::kThreshold : Schedule::kReference;
}

RequestParams params_of(const nb::dict& given, const SamplingParams& defaults) {
  const Fields fields(given);
  RequestParams request{.sampling = defaults};
  SamplingParams& p = request.sampling;
  read_distribution(fields, p);
  read_end(fields, p);
  read_biases(given, p);
  fields.read("logprobs", p.top_logprobs);
  HR_REQUIRE(p.top_logprobs >= 0 && p.top_logprobs <= kMostLogprobs, ErrorCode::kInvalidArgument, "logprobs is ",
             p.top_logprobs, ", expected 0 to ", kMostLogprobs);
  fields.read("prompt_logprobs", p.prompt_logprobs);
  p.decoding.schedule = schedule_of(given);
  read_decoding(fields, p.decoding);
  fields.read("n", request.n);
  fields.read("trace", request.reports_steps);
  bool skips = true;
  fields.read("skip_special_tokens", skips);
  request.special_text = skips ? SpecialText::kSkip : SpecialText::kKeep;
  validate(p);
  return request;
}

}  // namespace headrace::python
