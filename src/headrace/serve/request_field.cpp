#include "headrace/serve/request_field.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "headrace/core/printable.h"
#include "headrace/serve/decoding_fields.h"

namespace headrace {
namespace {

constexpr int32_t kMostStopId = std::numeric_limits<int32_t>::max();
constexpr size_t kMostStops = 16, kMostStopBytes = 1024, kMostBiases = 1024;
constexpr double kMostBias = 100;
constexpr std::string_view kStopText = "a string or a list of strings",
                           kBiases = "an object of token ids and numbers from -100 to 100";

using CommonField = RequestField<ApiRequest>;

int32_t id_of(std::string_view key) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || end != key.data() + key.size() || id < 0)
    throw RequestError(400, str("logit_bias has the key '", printable(key), "', expected a token id"), "logit_bias");
  return id;
}

void read_biases(ApiRequest& r, const JsonNode& biases) {
  constexpr std::string_view kPrefix = "logit_bias.";
  if (!biases.is_object()) biases.refuse(kBiases);
  const std::vector<JsonNode> entries = biases.members(kPrefix);
  if (entries.size() > kMostBiases)
    throw RequestError(400, str("logit_bias has ", entries.size(), " entries, expected at most ", kMostBiases),
                       "logit_bias");
  for (const JsonNode& entry : entries) {
    const int32_t id = id_of(std::string_view(entry.name()).substr(kPrefix.size()));
    r.params.logit_bias.push_back({id, static_cast<float>(entry.number(-kMostBias, kMostBias))});
  }
}

void read_stop_ids(ApiRequest& r, const JsonNode& ids) { r.params.stop_token_ids = ids.integers(0, kMostStopId); }

void read_stream_options(ApiRequest& r, const JsonNode& options) {
  for (const JsonNode& option : options.members("stream_options.")) {
    if (option.name() == "stream_options.include_usage" && !option.is_null()) r.include_usage = option.flag();
  }
}

void read_ignore_eos(ApiRequest& r, const JsonNode& flag) {
  using EndOfText = SamplingParams::EndOfText;
  r.params.end_of_text = flag.flag() ? EndOfText::kIgnored : EndOfText::kStops;
}

void read_stream_mode(ApiRequest& r, const JsonNode& mode) {
  const std::string text = mode.is_string() ? mode.text() : "";
  if (text != "text" && text != "denoise") mode.refuse("\"text\" or \"denoise\"");
  r.shows_denoising = text == "denoise";
}

void read_own(ApiRequest& r, const JsonNode& own) {
  for (const JsonNode& option : own.members("headrace.")) {
    const bool is_decoding = option.name() == "headrace.decoding";
    require_field(is_decoding || option.name() == "headrace.explain_cache", option.name(),
                  str(printable(option.name()), " is unknown, expected headrace.explain_cache or headrace.decoding"));
    if (option.is_null()) continue;
    if (is_decoding) {
      read_decoding(r.params.decoding, option);
    } else {
      r.explains_cache = option.flag();
    }
  }
}

void set_min_tokens(ApiRequest& r, int64_t value) { r.params.min_tokens = static_cast<int32_t>(value); }
void set_n(ApiRequest& r, int64_t value) { r.n = static_cast<int32_t>(value); }
void set_seed(ApiRequest& r, int64_t value) { r.params.seed = static_cast<uint64_t>(value); }
void set_top_k(ApiRequest& r, int64_t value) { r.params.top_k = std::max(0, static_cast<int32_t>(value)); }

constexpr std::array kCommonFields = {
    CommonField{"model", CommonField::Text{&ApiRequest::model}, "the model that runs"},
    // OpenAI's.
    CommonField{"temperature", CommonField::Number{0, 100, &SamplingParams::temperature}, "the model's, else 1"},
    CommonField{"top_p", CommonField::Number{1e-6, 1, &SamplingParams::top_p}, "the model's, else 1"},
    CommonField{"n", CommonField::Integer{1, kMostChoices, set_n}, "1"},
    CommonField{
        "stop",
        CommonField::Other{
            kStopText, read_stop,
            R"({"anyOf": [{"type": "string", "minLength": 1, "maxLength": 1024}, {"type": "array", "maxItems": 16, )"
            R"("items": {"type": "string", "minLength": 1, "maxLength": 1024}}]})"},
        "none"},
    CommonField{"presence_penalty", CommonField::Number{-2, 2, &SamplingParams::presence_penalty}, "0"},
    CommonField{"frequency_penalty", CommonField::Number{-2, 2, &SamplingParams::frequency_penalty}, "0"},
    CommonField{
        "logit_bias",
        CommonField::Other{kBiases, read_biases,
                           R"({"type": "object", "maxProperties": 1024, "propertyNames": {"pattern": "^[0-9]{1,9}$"}, )"
                           R"("additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}})"},
        "none"},
    CommonField{"seed", CommonField::Integer{0, std::numeric_limits<int64_t>::max(), set_seed}, "drawn"},
    CommonField{"stream", CommonField::Flag{&ApiRequest::stream}, "false"},
    CommonField{
        "stream_options",
        CommonField::Other{"an object", read_stream_options,
                           R"({"type": "object", "properties": {"include_usage": {"type": ["boolean", "null"]}}})"},
        "none"},
    // vLLM's.
    CommonField{"top_k", CommonField::Integer{-1, kMostTokens, set_top_k}, "the model's, else 0: all"},
    CommonField{"min_p", CommonField::Number{0, 1, &SamplingParams::min_p}, "the model's, else 0"},
    CommonField{"repetition_penalty", CommonField::Number{0.01, 100, &SamplingParams::repetition_penalty},
                "the model's, else 1"},
    CommonField{"min_tokens", CommonField::Integer{0, kMostTokens, set_min_tokens}, "0"},
    CommonField{
        "stop_token_ids",
        CommonField::Other{"a list of token ids", read_stop_ids,
                           R"({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2147483647}})"},
        "none"},
    CommonField{"ignore_eos", CommonField::Other{"true or false", read_ignore_eos, R"({"type": "boolean"})"}, "false"},
    CommonField{"skip_special_tokens", CommonField::Flag{&ApiRequest::skip_special_tokens}, "true"},
    CommonField{"cache_salt", CommonField::Text{&ApiRequest::cache_salt}, "none"},
    // headrace's own.
    CommonField{"stream_mode",
                CommonField::Other{"\"text\" or \"denoise\"", read_stream_mode, R"({"enum": ["text", "denoise"]})"},
                "\"text\""},
    CommonField{"headrace",
                CommonField::Other{
                    "an object", read_own,
                    R"({"type": "object", "properties": {"explain_cache": {"type": ["boolean", "null"]}, "decoding": )"
                    R"({"anyOf": [{"$ref": "#/components/schemas/Decoding"}, {"type": "null"}]}}, )"
                    R"("additionalProperties": false})"},
                "none"},
    // Without effect on the response.
    CommonField{"user", CommonField::Ignored{}},
    CommonField{"metadata", CommonField::Ignored{}},
    CommonField{"store", CommonField::Ignored{}},
    CommonField{"service_tier", CommonField::Ignored{}},
    CommonField{"request_id", CommonField::Ignored{}},
    CommonField{"priority", CommonField::Ignored{}},
    CommonField{"spaces_between_special_tokens", CommonField::Ignored{}},
    // They would change the text.
    CommonField{"use_beam_search", CommonField::Refused{}},
    CommonField{"include_stop_str_in_output", CommonField::Refused{}},
    CommonField{"truncate_prompt_tokens", CommonField::Refused{}},
    CommonField{"allowed_token_ids", CommonField::Refused{}},
    CommonField{"bad_words", CommonField::Refused{}},
    CommonField{"logits_processors", CommonField::Refused{}},
    CommonField{"prompt_embeds", CommonField::Refused{}},
    CommonField{"structured_outputs", CommonField::Refused{}},
    CommonField{"guided_json", CommonField::Refused{}},
    CommonField{"guided_regex", CommonField::Refused{}},
    CommonField{"guided_choice", CommonField::Refused{}},
    CommonField{"guided_grammar", CommonField::Refused{}},
};

}  // namespace

std::span<const RequestField<ApiRequest>> common_fields() { return kCommonFields; }

void require_field(bool holds, std::string_view param, const std::string& sentence) {
  if (!holds) throw RequestError(400, sentence, std::string(param));
}

void require_none(const JsonNode& value) {
  const bool is_empty = value.is_array() && value.items(1).empty();
  require_field(value.is_false() || is_empty, value.name(), str(value.name(), " is not supported"));
}

std::string schema_of_number(double least, double most) {
  return str(R"({"type": "number", "minimum": )", least, R"(, "maximum": )", most, "}");
}
std::string schema_of_integer(int64_t least, int64_t most) {
  return str(R"({"type": "integer", "minimum": )", least, R"(, "maximum": )", most, "}");
}

void read_stop(ApiRequest& r, const JsonNode& stop) {
  if (!stop.is_string() && !stop.is_array()) stop.refuse(kStopText);
  const std::vector<JsonNode> texts = stop.is_array() ? stop.items(kMostStops + 1) : std::vector{stop};
  if (texts.size() > kMostStops)
    throw RequestError(400, str("stop has more than ", kMostStops, " texts, expected at most so many"), "stop");
  for (const JsonNode& text : texts) {
    r.params.stop.push_back(text.text());
    const size_t bytes = r.params.stop.back().size();
    if (bytes < 1 || bytes > kMostStopBytes)
      throw RequestError(400, str(text.name(), " has ", bytes, " bytes, expected 1 to ", kMostStopBytes), "stop");
  }
}

void check_common(const ApiRequest& r) {
  require_field(r.no_output || r.params.min_tokens <= r.params.max_tokens, "min_tokens",
                str("min_tokens is ", r.params.min_tokens, ", expected at most max_tokens, ", r.params.max_tokens));
  require_field(r.stream || !r.include_usage, "stream_options",
                "stream_options asks for the usage, expected none without stream");
  require_field(r.stream || !r.shows_denoising, "stream_mode", "stream_mode is denoise, expected stream to be true");
  require_field(r.n == 1 || !r.shows_denoising, "n", str("n is ", r.n, ", expected 1 with stream_mode denoise"));
}

}  // namespace headrace
