// Group A of the exam: what a request's JSON may do. One file for the group, so that it reads beside the exam's list.
#include <array>

#include "exam/exam.h"

namespace headrace::exam {
namespace {

std::string repeated(std::string_view text, size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

std::string chat(std::string_view fields) {
  return str(R"({"messages": [{"role": "user", "content": ")", kMarker, R"("}])", fields.empty() ? "" : ", ", fields,
             '}');
}

struct RefusedField {
  std::string_view field, value;  // JSON
  std::string_view words = "";    // of the message
};

// Each makes a completion's request wrong, by the field that it sets.
void require_refused(Exam& exam, std::initializer_list<RefusedField> fields) {
  for (const RefusedField& f : fields)
    exam.refused(kCompletions, completion(str('"', f.field, "\": ", f.value)), 400, f.field, f.words);
}

void require_answered(Exam& exam, std::string_view fields) {
  const RawHttpResponse response = post(exam.port(), kCompletions, completion(fields));
  require(response.status == 200, str(fields, ": ", response.status, ' ', response.body));
  require_json(response.body);
}

void whole_bodies(Exam& exam) {
  for (const std::string_view path : {kCompletions, kChat}) {
    for (const std::string_view body : {"", "{}", "null", "[]", "\"x\"", "1", " ", "\n\n"})
      exam.refused(path, body, 400);
  }
}

void broken_json(Exam& exam) {
  const std::string good = completion("\"max_tokens\": 2");
  const std::array bodies = {good.substr(0, good.size() - 1),
                             good.substr(0, 14),
                             good + " x",
                             good + good,
                             good + '}',
                             "\xEF\xBB\xBF" + good,
                             "/* a comment */" + good,
                             good + "// another",
                             std::string(R"({"prompt": 'a'})"),
                             std::string(R"({prompt: "a"})"),
                             std::string(R"({"prompt": "a",})"),
                             good + std::string(1, '\0')};
  for (const std::string& body : bodies) exam.refused(kCompletions, body, 400, "", "JSON");
}

void nested(Exam& exam) {
  constexpr size_t kDeep = 100'000;
  const std::string open = repeated("[", kDeep), close = repeated("]", kDeep);
  const std::string objects = repeated(R"({"a":)", kDeep) + "1" + repeated("}", kDeep);
  for (const std::string_view field : {"messages", "tools", "metadata", "chat_template_kwargs", "logit_bias"}) {
    for (const std::string& deep : {open + close, objects})
      exam.refused(kChat, str("{\"", field, "\": ", deep, "}"), 400, "", "nesting deeper than 64");
  }
  exam.refused(kCompletions, "{\"prompt\": " + open, 400);
  exam.refused(kCompletions, "{\"prompt\": " + repeated(R"([{"a":)", kDeep), 400);
  exam.refused(kCompletions, open, 400);
}

void bytes_of_text(Exam& exam) {
  for (const std::string_view bytes :
       {"\xff", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "a\xc3"})
    exam.refused(kCompletions, completion_of(str('"', bytes, '"'), "\"max_tokens\": 1"), 400);
  const std::array<std::pair<std::string_view, std::string_view>, 5> texts = {
      {{R"(a\ud800b)",
        "a\xEF\xBF\xBD"
        "b"},
       {R"(a\udc00b)",
        "a\xEF\xBF\xBD"
        "b"},
       {R"(a\ud83d\ude00b)",
        "a\xF0\x9F\x98\x80"
        "b"},
       {R"(\ud800\ud800)", "\xEF\xBF\xBD\xEF\xBF\xBD"},
       {R"(a\u0000b)", std::string_view("a\0b", 3)}}};
  for (const auto& [text, echoed] : texts) {
    const RawHttpResponse response =
        post(exam.port(), kCompletions, completion_of(str('"', text, '"'), R"("max_tokens": 4, "echo": true)"));
    require_answer(response);
    require(text_at(response.body, "/choices/0/text").starts_with(echoed), str(text, " is echoed as ", response.body));
  }
}

void twice(Exam& exam) {
  exam.refused(kCompletions, completion(R"("n": 1, "n": 9)"), 400, "n", "twice");
  exam.refused(kCompletions, completion(R"("prompt": "again")"), 400, "prompt", "twice");
  exam.refused(kCompletions, completion(R"("nobody_knows": 1, "nobody_knows": 1)"), 400, "nobody_knows", "twice");
  exam.refused(kCompletions, completion(R"("\u006e": 1, "n": 2)"), 400, "n", "twice");
  exam.refused(kCompletions,
               completion(R"("stream": true, "stream_options": {"include_usage": true, "include_usage": false})"), 400,
               "stream_options.include_usage", "twice");
  exam.refused(kCompletions, completion(R"("logit_bias": {"5": 1, "5": 2})"), 400, "logit_bias.5", "twice");
  exam.refused(kChat, R"({"messages": [{"role": "user", "role": "system", "content": "a"}]})", 400, "messages[0].role",
               "twice");
}

void long_body(Exam& exam) {
  constexpr size_t kLimit = size_t{32} << 20, kMore = kLimit + (size_t{1} << 20);
  RawHttpClient declared(exam.port());
  declared.send(str("POST ", kCompletions, " HTTP/1.1\r\nHost: a\r\nContent-Length: ", kMore, "\r\n\r\n"));
  require_refusal(declared.response(), 413, "", "longer than");
  require(declared.is_closed(), "the connection stays open behind 413");
  RawHttpClient chunked(exam.port());
  chunked.send(str("POST ", kCompletions, " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"));
  const std::string chunk = "100000\r\n" + std::string(1 << 20, 'a') + "\r\n";
  size_t sent = 0;
  while (sent < kMore && chunked.send(chunk)) sent += size_t{1} << 20;
  require_refusal(chunked.response(), 413, "", "longer than");
  require(chunked.is_closed(), "the connection stays open behind 413");
}

void counts(Exam& exam) {
  require_refused(exam, {{"n", "0"},
                         {"n", "-1"},
                         {"n", "1000000000"},
                         {"n", "4294967297"},
                         {"n", "18446744073709551617"},
                         {"n", "1.5"},
                         {"n", "\"3\""},
                         {"n", "true"},
                         {"n", "65"},
                         {"n", "[1]"},
                         {"best_of", "2"}});
  const RawHttpResponse most = post(exam.port(), kCompletions, completion(R"("n": 64, "max_tokens": 1)"));
  require_answer(most);
  require(length_at(most.body, "/choices") == 64, "n of 64 does not make 64 choices");
}

void token_limits(Exam& exam) {
  require_refused(exam, {{"max_tokens", "-1"},
                         {"max_tokens", "0"},
                         {"max_tokens", "2147483648"},
                         {"max_tokens", "9223372036854775808"},
                         {"max_tokens", "1e3"},
                         {"max_tokens", "\"5\""},
                         {"min_tokens", "-1"},
                         {"min_tokens", "2147483648"},
                         {"min_tokens", "17"}});
  exam.refused(kCompletions, completion(R"("min_tokens": 9, "max_tokens": 8)"), 400, "min_tokens", "max_tokens");
  exam.refused(kCompletions, completion(R"("min_tokens": 100, "max_tokens": null)"), 400, "min_tokens", "max_tokens");
  const RawHttpResponse defaults =
      post(exam.port(), kCompletions, completion(R"("max_tokens": null, "min_tokens": 16)"));
  require_answer(defaults);
  require(number_at(defaults.body, "/usage/completion_tokens") == 16, "a null max_tokens is not 16 tokens");
}

void sampling_values(Exam& exam) {
  require_refused(exam, {{"temperature", "-1"},
                         {"temperature", "2.1e308"},
                         {"temperature", "1e400"},
                         {"temperature", "NaN"},
                         {"temperature", "Infinity"},
                         {"temperature", "-Infinity"},
                         {"temperature", "\"0.7\""},
                         {"top_p", "0"},
                         {"top_p", "-0.1"},
                         {"top_p", "1.1"},
                         {"top_k", "-2"},
                         {"top_k", "8589934592"},
                         {"top_k", "1.5"},
                         {"min_p", "2"},
                         {"min_p", "-0.5"},
                         {"presence_penalty", "1e30"},
                         {"presence_penalty", "-1e30"},
                         {"frequency_penalty", "1e30"},
                         {"frequency_penalty", "-1e30"},
                         {"repetition_penalty", "0"},
                         {"repetition_penalty", "1e30"}});
  const RawHttpResponse greedy = post(exam.port(), kCompletions, canary_body());
  require_answer(greedy);
  const RawHttpResponse cold =
      post(exam.port(), kCompletions,
           completion_of(str('"', kCanary, '"'), R"("temperature": 1e-30, "max_tokens": 8, "logprobs": 1)"));
  require_answer(cold);
  require(text_at(cold.body, "/choices/0/text") == text_at(greedy.body, "/choices/0/text"),
          "a temperature of 1e-30 is not greedy");
}

void biases(Exam& exam) {
  std::string many = "{";
  for (int i = 0; i < 1'000'000; ++i) many += str(i == 0 ? "" : ",", '"', i, "\":1");
  require_refused(exam, {{"logit_bias", many + "}", "1024"},
                         {"logit_bias", R"({"-1": 1})"},
                         {"logit_bias", R"({"4294967296": 1})"},
                         {"logit_bias", R"({"a": 1})"},
                         {"logit_bias", R"({"": 1})"},
                         {"logit_bias", R"({"5x": 1})"},
                         {"logit_bias", "[1]"},
                         {"logit_bias", R"({"99999999": 1})"}});
  exam.refused(kCompletions, completion(R"("logit_bias": {"5": 1e308})"), 400, "logit_bias.5");
  exam.refused(kCompletions, completion(R"("logit_bias": {"5": 101})"), 400, "logit_bias.5");
  exam.refused(kCompletions, completion(R"("logit_bias": {"5": "1"})"), 400, "logit_bias.5");
  require_answered(exam, R"("logit_bias": {"5": 100, "6": -100}, "max_tokens": 2)");
}

void stops(Exam& exam) {
  std::string many = "[", seventeen = "[", sixteen = "[";
  for (int i = 0; i < 100'000; ++i) many += str(i == 0 ? "" : ",", "\"a", i, '"');
  for (int i = 0; i < 17; ++i) seventeen += str(i == 0 ? "" : ",", "\"never", i, '"');
  for (int i = 0; i < 16; ++i) sixteen += str(i == 0 ? "" : ",", "\"never", i, '"');
  const std::string large = str('"', std::string(1 << 20, 'a'), '"');
  require_refused(exam, {{"stop", many + "]"},
                         {"stop", seventeen + "]"},
                         {"stop", "\"\""},
                         {"stop", "[\"\"]"},
                         {"stop", large},
                         {"stop", "1"},
                         {"stop", "{}"}});
  exam.refused(kCompletions, completion(R"("stop": [1])"), 400, "stop[0]");
  exam.refused(kCompletions, completion(R"("stop_token_ids": [-1])"), 400, "stop_token_ids[0]");
  exam.refused(kCompletions, completion(R"("stop_token_ids": [4294967296])"), 400, "stop_token_ids[0]");
  exam.refused(kCompletions, completion(R"("stop_token_ids": [99999999])"), 400, "stop_token_ids");
  require_answered(exam, str(R"("max_tokens": 2, "stop": )", sixteen, ']'));
}

void id_prompts(Exam& exam) {
  const auto refused = [&](std::string_view ids, std::string_view param) {
    exam.refused(kCompletions, completion_of(ids, "\"max_tokens\": 1"), 400, param);
  };
  refused("[-1]", "prompt[0]");
  refused("[5, 2147483648]", "prompt[1]");
  refused("[1.5]", "prompt[0]");
  refused("[]", "prompt");
  refused("[[]]", "");
  refused("[[1], \"a\"]", "");
  refused("[\"a\", 1]", "");
  refused("[99999999]", "");
  refused("[2147483647]", "");
  refused("[true]", "prompt[0]");
  refused("null", "prompt");
  refused("{}", "prompt");
  refused("\"\"", "prompt");
  std::string many = "[1";
  for (int i = 1; i < 10'000'000; ++i) many += ",1";
  refused(many + "]", "prompt");
}

void context_limits(Exam& exam) {
  constexpr size_t kContext = 1024;
  const auto too_long = [&](std::string_view prompt) {
    const Figures before = figures_of(exam.port());
    const RawHttpResponse response = post(exam.port(), kCompletions, completion_of(prompt, "\"max_tokens\": 1"));
    require_refusal(response, 400, "prompt", "1024");
    require(text_at(response.body, "/error/code") == "context_length_exceeded", response.body);
    require(figure(figures_of(exam.port()), "headrace_rows_total") == figure(before, "headrace_rows_total"),
            "the engine ran for a prompt that does not fit");
  };
  too_long(ids_prompt(kContext + 1));
  too_long(ids_prompt(kContext));
  too_long(str('"', repeated("the old man ", 1200), '"'));
  const RawHttpResponse fits =
      post(exam.port(), kCompletions, completion_of(ids_prompt(kContext - 1), "\"max_tokens\": 1"));
  require_answer(fits);
  require(number_at(fits.body, "/usage/prompt_tokens") == kContext - 1, fits.body);
  const RawHttpResponse cut = post(exam.port(), kCompletions,
                                   completion_of(ids_prompt(kContext - 3), R"("max_tokens": 100, "ignore_eos": true)"));
  require_answer(cut);
  require(number_at(cut.body, "/usage/completion_tokens") <= 3, str("beyond the context: ", cut.body));
}

// While a prompt of 31 MB is read, others are answered.
void large_prompts(Exam& exam) {
  for (const std::string& prompt : {repeated("a", 31 << 20), repeated(" ", 31 << 20), repeated("\xCC\x81", 15 << 20)}) {
    RawHttpClient client(exam.port());
    const std::string body = completion_of(str('"', prompt, '"'), "\"max_tokens\": 1");
    client.send(raw_request("POST", kCompletions, body, "Content-Type: application/json\r\n"));
    const auto begin = Clock::now();
    const bool is_healthy = get(exam.port(), "/health").status == 200;
    const auto time = std::chrono::duration_cast<Milliseconds>(Clock::now() - begin);
    require(is_healthy && time < Milliseconds(50), str("/health took ", time.count(), " ms beside a large prompt"));
    require_refusal(client.response(), 400, "prompt", "1024");
  }
}

void messages(Exam& exam) {
  const auto refused = [&](std::string_view value, std::string_view param, std::string_view words = "") {
    exam.refused(kChat, str("{\"messages\": ", value, "}"), 400, param, words);
  };
  refused("[]", "messages");
  refused("\"a\"", "messages");
  refused("[1]", "");
  refused("[{}]", "messages[0].role");
  refused(R"([{"content": "a"}])", "messages[0].role");
  refused(R"([{"role": 1, "content": "a"}])", "messages[0].role");
  refused(R"([{"role": "user", "content": 5}])", "messages[0].content");
  refused(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}])",
          "messages[0].content[0].type", "image_url");
  refused(R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text");
  const std::string many = repeated(R"({"role": "user", "content": "a"},)", 100'001);
  refused(str('[', many.substr(0, many.size() - 1), ']'), "messages");
  const std::string long_chat = repeated(R"({"role": "user", "content": "the old man "},)", 99'999);
  refused(str('[', long_chat.substr(0, long_chat.size() - 1), ']'), "");
  const RawHttpResponse whole = post(exam.port(), kChat, chat(R"("max_tokens": 4, "temperature": 0)"));
  require_answer(whole);
  const RawHttpResponse stream = post(exam.port(), kChat, chat(R"("max_tokens": 4, "temperature": 0, "stream": true)"));
  std::string text;
  for (const std::string& event : events_of(stream.body)) {
    if (event != "[DONE]" && has(event, "/choices/0/delta/content")) text += text_at(event, "/choices/0/delta/content");
  }
  require(text == text_at(whole.body, "/choices/0/message/content"), "a chat's stream has another text than the whole");
}

void tools(Exam& exam) {
  constexpr std::string_view kTool =
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])";
  for (const std::string_view value : {kTool, std::string_view(R"([{"type": "nothing"}])"), std::string_view("[{}]"),
                                       std::string_view("5"), std::string_view("\"a\"")})
    exam.refused(kChat, chat(str("\"tools\": ", value)), 400, "tools");
  exam.refused(kChat,
               chat(R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "("}}})"), 400,
               "response_format");
  exam.refused(kChat, chat(R"("tool_choice": "required")"), 400, "tool_choice");
  exam.refused(kChat, chat(R"("chat_template": "{{ 1 }}")"), 400, "chat_template");
  for (const std::string_view name : {"tokenize", "messages", "__class__", "chat_template", "add_generation_prompt"})
    exam.refused(kChat, chat(str(R"("chat_template_kwargs": {")", name, "\": true}")), 400, "chat_template_kwargs",
                 name);
  exam.refused(kCompletions, completion(R"("guided_json": {"type": "object"})"), 400, "guided_json");
  exam.refused(kCompletions, completion(R"("guided_regex": "(a+)+$")"), 400, "guided_regex");
}

void names_and_types(Exam& exam) {
  exam.refused(kCompletions, completion(R"("model": "nobody/has-this")"), 404, "model", "nobody/has-this");
  exam.refused(kChat, chat(R"("model": "nobody/has-this")"), 404, "model");
  require(get(exam.port(), "/v1/models/nobody").status == 404, "a model that is not there has no 404");
  require_answered(exam, R"("model": "exam", "max_tokens": 1, "nobody_knows_this": {"a": [1]})");
  for (const std::string_view type :
       {"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"}) {
    const RawHttpResponse response =
        RawHttpClient(exam.port())
            .request(raw_request("POST", kCompletions, completion(""), str("Content-Type: ", type, "\r\n")));
    require_refusal(response, 415, "", "application/json");
  }
}

void unknown_fields(Exam& exam) {
  ExamServer strict(exam.command({"--strict-api"}));
  require_refusal(post(strict.port(), kCompletions, completion(R"("nobody_knows_this": 1)")), 400, "nobody_knows_this",
                  "unknown");
  require_answer(post(strict.port(), kCompletions, completion(R"("max_tokens": 1, "user": "a")")));
  exam.check(strict);
}

void odd_fields(Exam& exam) {
  require_refused(exam, {{"seed", "-1"},
                         {"seed", "18446744073709551616"},
                         {"seed", "1.5"},
                         {"stream", "1"},
                         {"stream", "\"true\""},
                         {"echo", "0"},
                         {"logprobs", "21"},
                         {"logprobs", "-1"},
                         {"logprobs", "true"},
                         {"suffix", "\"a\""},
                         {"use_beam_search", "true"},
                         {"bad_words", "[\"a\"]"}});
  exam.refused(kCompletions, completion(R"("stream_options": {"include_usage": true})"), 400, "stream_options");
  exam.refused(kCompletions, completion(R"("stream": true, "stream_options": 5)"), 400, "stream_options");
  require_answered(exam, str(R"("max_tokens": 1, "user": ")", std::string(1 << 20, 'u'), '"'));
  require_answered(exam, R"("max_tokens": 1, "priority": 1180591620717411303424)");
  require_answered(exam, R"("max_tokens": 1, "seed": 9223372036854775807)");
}

struct Feature {
  std::string_view name, fields;
};

constexpr std::array<Feature, 14> kFeatures = {
    {{"presence_penalty", R"("presence_penalty": 1.5)"},
     {"frequency_penalty", R"("frequency_penalty": -1)"},
     {"repetition_penalty", R"("repetition_penalty": 1.2)"},
     {"n", R"("n": 3)"},
     {"logprobs", R"("logprobs": 4)"},
     {"prompt_logprobs", R"("prompt_logprobs": 2)"},
     {"echo", R"("echo": true)"},
     {"stop", R"("stop": [" the", "."])"},
     {"stop_token_ids", R"("stop_token_ids": [12, 300])"},
     {"logit_bias", R"("logit_bias": {"300": 5, "12": -100})"},
     {"min_tokens", R"("min_tokens": 3)"},
     {"seed", R"("seed": 7, "temperature": 1, "top_p": 0.9, "top_k": 20, "min_p": 0.05)"},
     {"ignore_eos", R"("ignore_eos": true)"},
     {"stream", R"("stream": true, "stream_options": {"include_usage": true})"}}};

// A response or a stream of `choices` that ends as one should, or a refusal that says what does not go together.
void require_pair(const RawHttpResponse& response, bool is_stream, size_t choices, const std::string& names) {
  if (response.status == 400) return require_refusal(response, 400, "", "");
  require(response.status == 200 && response.is_complete, str(names, ": ", response.status, ' ', response.body));
  if (!is_stream) return require(length_at(response.body, "/choices") == choices, str(names, ": ", response.body));
  const std::vector<std::string> events = events_of(response.body);
  require(events.size() >= 2 && events.back() == "[DONE]", str(names, ": the stream does not end with [DONE]"));
  size_t ends = 0;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    require(!has(events[i], "/error"), str(names, ": ", events[i]));
    ends += has(events[i], "/choices/0/finish_reason") ? 1 : 0;
  }
  require(ends == choices, str(names, ": ", ends, " choices end, expected ", choices));
  require(has(events[events.size() - 2], "/usage/completion_tokens"), str(names, ": no usage at the end"));
}

void pairs_of_features(Exam& exam) {
  for (size_t a = 0; a < kFeatures.size(); ++a) {
    for (size_t b = a + 1; b < kFeatures.size(); ++b) {
      const std::string names = str(kFeatures[a].name, " with ", kFeatures[b].name);
      const std::string body = completion(str("\"max_tokens\": 5, ", kFeatures[a].fields, ", ", kFeatures[b].fields));
      const bool is_stream = kFeatures[b].name == "stream",
                 has_n = kFeatures[a].name == "n" || kFeatures[b].name == "n";
      require_pair(post(exam.port(), kCompletions, body), is_stream, has_n ? 3 : 1, names);
    }
  }
}

}  // namespace

const std::vector<ExamCase>& request_cases() {
  using enum ExamCase::When;
  static const std::vector<ExamCase> kCases = {
      {"A1", "empty bodies, and bodies that are no object", whole_bodies},
      {"A2", "truncated JSON, trailing garbage, two objects, a BOM, comments", broken_json},
      {"A3", "100,000 nested arrays and objects", nested},
      {"A4", "invalid UTF-8, lone surrogates, NUL", bytes_of_text},
      {"A5", "names that occur twice", twice},
      {"A6", "bodies beyond 32 MB, declared and chunked", long_body},
      {"A7", "values of n", counts},
      {"A8", "values of max_tokens and min_tokens", token_limits},
      {"A9", "values of sampling", sampling_values},
      {"A10", "logit_bias of a million entries, of ids and of values that are none", biases},
      {"A11", "stop texts and stop ids", stops},
      {"A14", "prompts of token ids", id_prompts},
      {"A15a", "prompts around the context", context_limits},
      {"A15b", "31 MB of one character; /health in 50 ms beside it", large_prompts},
      {"A16", "messages", messages},
      {"A17", "tools and schemas, which are refused by name", tools},
      {"A18a", "model names and content types", names_and_types},
      {"A18b", "unknown fields under --strict-api", unknown_fields},
      {"A20", "all pairs of features", pairs_of_features},
      {"A21", "stream_options, seed, user, priority", odd_fields},
  };
  return kCases;
}

}  // namespace headrace::exam
