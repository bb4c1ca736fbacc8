#include "headrace/serve/completion_request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "headrace/core/printable.h"
#include "headrace/serve/json_body.h"

namespace headrace {
namespace {

constexpr int32_t kDefaultTokens = 16;  // OpenAI's
constexpr int32_t kMostTokens = 1 << 30, kMostChoices = 64, kMostLogprobs = 20, kMostPrompts = 1024;
constexpr int32_t kMostId = std::numeric_limits<int32_t>::max();
constexpr size_t kMostStops = 16, kMostStopBytes = 1024, kMostBiases = 1024;
constexpr double kMostBias = 100;

using Request = CompletionRequest;

// Kinds of fields.
struct Flag {
  bool Request::*member;
};
struct Text {
  std::string Request::*member;
};
struct Number {
  double least, most;
  float SamplingParams::*member;
};
struct Integer {
  int64_t least, most;
  void (*set)(Request&, int64_t);
};
struct Other {
  std::string_view expected;
  void (*read)(Request&, const JsonNode&);
};
struct Ignored {};
struct Refused {};  // unless it is false

struct Field {
  std::string_view name;
  std::variant<Flag, Text, Number, Integer, Other, Ignored, Refused> kind;
  std::string_view otherwise = "";
};

constexpr std::string_view kPrompt = "a string, token ids, or a list of either",
                           kStop = "a string or a list of strings",
                           kBiases = "an object of token ids and numbers from -100 to 100";

void read_prompt(Request& r, const JsonNode& prompt) {
  if (prompt.is_string()) {
    r.prompts.emplace_back(prompt.text());
    return;
  }
  if (!prompt.is_array()) prompt.refuse(kPrompt);
  const std::vector<JsonNode> items = prompt.items(kMostPrompts + 1);
  if (items.empty()) throw RequestError(400, str("prompt is an empty list, expected ", kPrompt), "prompt");
  if (!items.front().is_string() && !items.front().is_array()) {
    r.prompts.emplace_back(prompt.integers(0, kMostId));
    return;
  }
  if (items.size() > kMostPrompts)
    throw RequestError(400, str("prompt has more than ", kMostPrompts, " entries, expected at most so many"), "prompt");
  const bool are_texts = items.front().is_string();
  for (const JsonNode& item : items) {
    if (are_texts) {
      r.prompts.emplace_back(item.text());
    } else {
      r.prompts.emplace_back(item.integers(0, kMostId));
    }
  }
}

void read_stop(Request& r, const JsonNode& stop) {
  if (!stop.is_string() && !stop.is_array()) stop.refuse(kStop);
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

int32_t id_of(std::string_view key) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || end != key.data() + key.size() || id < 0)
    throw RequestError(400, str("logit_bias has the key '", printable(key), "', expected a token id"), "logit_bias");
  return id;
}

void read_biases(Request& r, const JsonNode& biases) {
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

void read_stop_ids(Request& r, const JsonNode& ids) { r.params.stop_token_ids = ids.integers(0, kMostId); }

void read_stream_options(Request& r, const JsonNode& options) {
  for (const JsonNode& option : options.members("stream_options.")) {
    if (option.name() == "stream_options.include_usage") r.include_usage = option.flag();
  }
}

void read_ignore_eos(Request& r, const JsonNode& flag) {
  using EndOfText = SamplingParams::EndOfText;
  r.params.end_of_text = flag.flag() ? EndOfText::kIgnored : EndOfText::kStops;
}

void set_max_tokens(Request& r, int64_t value) {
  r.no_output = value == 0;
  r.params.max_tokens = std::max(1, static_cast<int32_t>(value));
}
void set_min_tokens(Request& r, int64_t value) { r.params.min_tokens = static_cast<int32_t>(value); }
void set_n(Request& r, int64_t value) { r.n = static_cast<int32_t>(value); }
void set_best_of(Request& r, int64_t value) { r.best_of = static_cast<int32_t>(value); }
void set_logprobs(Request& r, int64_t value) { r.logprobs = static_cast<int32_t>(value); }
void set_prompt_logprobs(Request& r, int64_t value) { r.prompt_logprobs = static_cast<int32_t>(value); }
void set_seed(Request& r, int64_t value) { r.params.seed = static_cast<uint64_t>(value); }
void set_top_k(Request& r, int64_t value) { r.params.top_k = std::max(0, static_cast<int32_t>(value)); }

using P = SamplingParams;
constexpr std::array kFields = {
    Field{"model", Text{&Request::model}, "the model that runs"},
    Field{"prompt", Other{kPrompt, read_prompt}, "none: it is required"},
    // OpenAI's.
    Field{"max_tokens", Integer{0, kMostTokens, set_max_tokens}, "16"},
    Field{"temperature", Number{0, 100, &P::temperature}, "the model's, else 1"},
    Field{"top_p", Number{1e-6, 1, &P::top_p}, "the model's, else 1"},
    Field{"n", Integer{1, kMostChoices, set_n}, "1"},
    Field{"best_of", Integer{1, kMostChoices, set_best_of}, "n, the only value"},
    Field{"echo", Flag{&Request::echo}, "false"},
    Field{"logprobs", Integer{0, kMostLogprobs, set_logprobs}, "no log-probabilities"},
    Field{"stop", Other{kStop, read_stop}, "none"},
    Field{"presence_penalty", Number{-2, 2, &P::presence_penalty}, "0"},
    Field{"frequency_penalty", Number{-2, 2, &P::frequency_penalty}, "0"},
    Field{"logit_bias", Other{kBiases, read_biases}, "none"},
    Field{"seed", Integer{0, std::numeric_limits<int64_t>::max(), set_seed}, "drawn"},
    Field{"stream", Flag{&Request::stream}, "false"},
    Field{"stream_options", Other{"an object", read_stream_options}, "none"},
    // vLLM's.
    Field{"top_k", Integer{-1, kMostTokens, set_top_k}, "the model's, else 0: all"},
    Field{"min_p", Number{0, 1, &P::min_p}, "the model's, else 0"},
    Field{"repetition_penalty", Number{0.01, 100, &P::repetition_penalty}, "the model's, else 1"},
    Field{"min_tokens", Integer{0, kMostTokens, set_min_tokens}, "0"},
    Field{"stop_token_ids", Other{"a list of token ids", read_stop_ids}, "none"},
    Field{"ignore_eos", Other{"true or false", read_ignore_eos}, "false"},
    Field{"prompt_logprobs", Integer{0, kMostLogprobs, set_prompt_logprobs}, "no log-probabilities"},
    Field{"add_special_tokens", Flag{&Request::add_special_tokens}, "true"},
    Field{"skip_special_tokens", Flag{&Request::skip_special_tokens}, "true"},
    Field{"cache_salt", Text{&Request::cache_salt}, "none"},
    // Without effect on the response.
    Field{"user", Ignored{}},
    Field{"metadata", Ignored{}},
    Field{"store", Ignored{}},
    Field{"service_tier", Ignored{}},
    Field{"request_id", Ignored{}},
    Field{"priority", Ignored{}},
    Field{"spaces_between_special_tokens", Ignored{}},
    // They would change the text.
    Field{"suffix", Refused{}},
    Field{"use_beam_search", Refused{}},
    Field{"include_stop_str_in_output", Refused{}},
    Field{"truncate_prompt_tokens", Refused{}},
    Field{"allowed_token_ids", Refused{}},
    Field{"bad_words", Refused{}},
    Field{"logits_processors", Refused{}},
    Field{"prompt_embeds", Refused{}},
    Field{"response_format", Refused{}},
    Field{"structured_outputs", Refused{}},
    Field{"guided_json", Refused{}},
    Field{"guided_regex", Refused{}},
    Field{"guided_choice", Refused{}},
    Field{"guided_grammar", Refused{}},
};

struct Reader {
  Request& r;
  const JsonNode& node;

  void operator()(const Flag& f) const { r.*f.member = node.flag(); }
  void operator()(const Text& f) const { r.*f.member = node.text(); }
  void operator()(const Number& f) const { r.params.*f.member = static_cast<float>(node.number(f.least, f.most)); }
  void operator()(const Integer& f) const { f.set(r, node.integer(f.least, f.most)); }
  void operator()(const Other& f) const { f.read(r, node); }
  void operator()(const Ignored& /*f*/) const {}
  void operator()(const Refused& /*f*/) const {
    if (!node.is_false()) throw RequestError(400, str(node.name(), " is not supported"), node.name());
  }
};

struct Expected {
  std::string operator()(const Flag& /*f*/) const { return "true or false"; }
  std::string operator()(const Text& /*f*/) const { return "a string"; }
  std::string operator()(const Number& f) const { return str("a number from ", f.least, " to ", f.most); }
  std::string operator()(const Integer& f) const { return str("an integer from ", f.least, " to ", f.most); }
  std::string operator()(const Other& f) const { return std::string(f.expected); }
  std::string operator()(const Ignored& /*f*/) const { return "anything; it is ignored"; }
  std::string operator()(const Refused& /*f*/) const { return "none: it is not supported"; }
};

void check_together(const Request& r) {
  const auto require = [](bool holds, std::string_view param, const std::string& sentence) {
    if (!holds) throw RequestError(400, sentence, std::string(param));
  };
  require(!r.prompts.empty(), "prompt", str("prompt is missing, expected ", kPrompt));
  require(!r.no_output || r.echo, "max_tokens", "max_tokens is 0, expected 1 or more without echo");
  require(r.no_output || r.params.min_tokens <= r.params.max_tokens, "min_tokens",
          str("min_tokens is ", r.params.min_tokens, ", expected at most max_tokens, ", r.params.max_tokens));
  require(r.best_of.value_or(r.n) == r.n, "best_of",
          str("best_of is ", r.best_of.value_or(0), ", expected the value of n, ", r.n));
  require(r.stream || !r.include_usage, "stream_options",
          "stream_options asks for the usage, expected none without stream");
}

// The engine makes the log-probabilities that the response shows: those of an echoed prompt, too.
void set_log_probabilities(Request& r) {
  r.params.top_logprobs = r.logprobs.value_or(0);
  r.params.prompt_logprobs = r.prompt_logprobs;
  if (r.echo && r.logprobs) r.params.prompt_logprobs = std::max(*r.logprobs, r.prompt_logprobs.value_or(0));
}

}  // namespace

CompletionRequest completion_request(const JsonNode& body, const SamplingParams& defaults) {
  CompletionRequest request{.params = defaults};
  request.params.max_tokens = kDefaultTokens;
  for (const JsonNode& member : body.members()) {
    const auto* field = std::ranges::find(kFields, member.name(), &Field::name);
    if (field == kFields.end()) {
      request.unknown_fields.push_back(member.name());
    } else if (!member.is_null()) {
      std::visit(Reader{request, member}, field->kind);
    }
  }
  check_together(request);
  set_log_probabilities(request);
  return request;
}

std::vector<GenerationRequest> generation_requests(const CompletionRequest& request, const Tokenizer& tokenizer,
                                                   int32_t context) {
  const EncodeOptions encoding{
      .special_tokens = SpecialTokens::kParse,
      .add_special_tokens = request.add_special_tokens ? AddSpecialTokens::kYes : AddSpecialTokens::kNo};
  std::vector<GenerationRequest> requests;
  for (const CompletionRequest::Prompt& prompt : request.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    GenerationRequest& one = requests.emplace_back();
    one.prompt_ids = text != nullptr ? tokenizer.encode(*text, encoding) : std::get<std::vector<int32_t>>(prompt);
    one.params = request.params;
    one.n = request.n;
    one.cache_salt = request.cache_salt;
    if (one.prompt_ids.empty())
      throw RequestError(400, "prompt is empty, expected a token or more: none is put in front of it", "prompt");
    if (std::ssize(one.prompt_ids) >= context)
      throw RequestError(400,
                         str("the prompt has ", one.prompt_ids.size(), " tokens, the context holds ", context,
                             " with at least one new token"),
                         "prompt", "context_length_exceeded");
  }
  return requests;
}

std::vector<CompletionField> completion_fields() {
  std::vector<CompletionField> fields;
  fields.reserve(kFields.size());
  for (const Field& field : kFields) {
    fields.push_back({field.name, std::visit(Expected(), field.kind), field.otherwise});
  }
  return fields;
}

}  // namespace headrace
