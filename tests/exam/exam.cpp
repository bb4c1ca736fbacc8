#include "exam/exam.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>

namespace headrace::exam {
namespace {

namespace dom = simdjson::dom;

constexpr int64_t kMostGrowth = int64_t{64} << 20;
const std::vector<std::string> kSameBits = {"-t", "1", "--dtype", "float32", "--deterministic"};  // of all runs
constexpr Milliseconds kReady{100}, kFree{5'000};

struct Parsed {
  dom::parser parser;
  dom::element root;

  explicit Parsed(std::string_view json) {
    const simdjson::error_code error = parser.parse(simdjson::padded_string(json)).get(root);
    require(error == simdjson::SUCCESS, str("no JSON (", simdjson::error_message(error), "): ", json.substr(0, 400)));
  }
};

template <class T>
T value_at(std::string_view json, std::string_view path) {
  const Parsed parsed(json);
  T value{};
  const simdjson::error_code error = parsed.root.at_pointer(path).get(value);
  require(error == simdjson::SUCCESS, str(path, ": ", simdjson::error_message(error), " in ", json.substr(0, 400)));
  return value;
}

std::string_view type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

int64_t count(std::string_view text, std::string_view word) {
  int64_t found = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + word.size())) ++found;
  return found;
}

}  // namespace

void require(bool holds, const std::string& sentence) {
  if (!holds) throw ExamFailure(sentence);
}

std::string text_at(std::string_view json, std::string_view path) {
  const Parsed parsed(json);
  std::string_view value;
  require(parsed.root.at_pointer(path).get(value) == simdjson::SUCCESS, str("no text ", path, " in ", json));
  return std::string(value);
}

int64_t number_at(std::string_view json, std::string_view path) { return value_at<int64_t>(json, path); }
size_t length_at(std::string_view json, std::string_view path) {
  const Parsed parsed(json);
  dom::array array;
  require(parsed.root.at_pointer(path).get(array) == simdjson::SUCCESS, str("no array ", path, " in ", json));
  return array.size();
}

bool has(std::string_view json, std::string_view path) {
  const Parsed parsed(json);
  dom::element value;
  return parsed.root.at_pointer(path).get(value) == simdjson::SUCCESS && !value.is_null();
}

void require_json(std::string_view json) { const Parsed parsed(json); }

std::vector<std::string> events_of(std::string_view stream) {
  std::vector<std::string> events;
  while (!stream.empty()) {
    const size_t end = stream.find("\n\n");
    require(end != stream.npos, str("the stream ends within an event: ", stream.substr(0, 200)));
    const std::string_view event = stream.substr(0, end);
    stream.remove_prefix(end + 2);
    if (event.starts_with(':')) continue;  // a comment
    require(event.starts_with("data: ") && event.find('\n') == event.npos, str("no event: ", event.substr(0, 200)));
    events.emplace_back(event.substr(6));
    if (events.back() != "[DONE]") require_json(events.back());
  }
  return events;
}

Figures figures_of(uint16_t port, std::string_view headers) {
  const RawHttpResponse response = get(port, "/metrics", headers);
  require(response.status == 200, str("/metrics has status ", response.status));
  Figures figures;
  std::string_view text = response.body;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty() || line.front() == '#') continue;
    const std::string_view name = line.substr(0, line.find_first_of("{ "));
    const double value = std::stod(std::string(line.substr(line.rfind(' ') + 1)));
    figures[std::string(name)] += value;
    figures[std::string(line.substr(0, line.rfind(' ')))] += value * static_cast<double>(name.size() < line.rfind(' '));
  }
  return figures;
}

double figure(const Figures& figures, std::string_view name) {
  const auto found = figures.find(name);
  return found == figures.end() ? 0 : found->second;
}

double live(const Figures& figures) {
  return figure(figures, "headrace_requests_running") + figure(figures, "headrace_requests_waiting");
}

RawHttpResponse get(uint16_t port, std::string_view path, std::string_view headers) {
  return RawHttpClient(port).request(raw_request("GET", path, {}, headers));
}

RawHttpResponse post(uint16_t port, std::string_view path, std::string_view body, std::string_view headers) {
  const std::string all =
      str("Content-Type: application/json\r\n", body.empty() ? "Content-Length: 0\r\n" : "", headers);
  return RawHttpClient(port).request(raw_request("POST", path, body, all));
}

RawHttpClient begin_post(uint16_t port, std::string_view path, std::string_view body, std::string_view headers) {
  RawHttpClient client(port);
  client.send(raw_request("POST", path, body, str("Content-Type: application/json\r\n", headers)));
  return client;
}

std::string stream_of(std::string_view prompt, int tokens, std::string_view fields) {
  return completion_of(
      prompt, str(R"("stream": true, "ignore_eos": true, "max_tokens": )", tokens, fields.empty() ? "" : ", ", fields));
}

std::string completion_of(std::string_view prompt, std::string_view fields) {
  return str(R"({"prompt": )", prompt, fields.empty() ? "" : ", ", fields, '}');
}

std::string completion(std::string_view fields) {
  return completion_of(str('"', "There was a ", kMarker, " who", '"'), fields);
}

std::string ids_prompt(size_t tokens) {
  std::string list = "[";
  for (size_t i = 0; i < tokens; ++i) list += str(i == 0 ? "" : ",", 100 + i % 1000);
  return list + ']';
}

std::string canary_body(std::string_view fields) {
  return completion_of(str('"', kCanary, '"'),
                       str(R"("temperature": 0, "max_tokens": )", kCanaryTokens, fields.empty() ? "" : ", ", fields));
}

void require_refusal(const RawHttpResponse& response, int status, std::string_view param, std::string_view words) {
  require(response.status == status, str("status ", response.status, ", expected ", status, ": ", response.body));
  require(response.is_complete, "the refusal is not complete");
  require(response.header("content-type").starts_with("application/json"), "the refusal is not of application/json");
  require(!response.header("x-request-id").empty(), "the refusal has no x-request-id");
  require(text_at(response.body, "/error/type") == type_of(status),
          str("type ", text_at(response.body, "/error/type"), ", expected ", type_of(status)));
  const std::string message = text_at(response.body, "/error/message");
  require(!message.empty() && message.size() < 1024, str("the message has ", message.size(), " bytes"));
  require(message.find(words) != message.npos, str("'", message, "' does not say '", words, "'"));
  require(response.body.find("\"param\"") != std::string::npos && response.body.find("\"code\"") != std::string::npos,
          str("param or code is missing: ", response.body));
  if (!param.empty()) {
    require(has(response.body, "/error/param") && text_at(response.body, "/error/param") == param,
            str("param is not ", param, ": ", response.body));
  }
}

void require_answer(const RawHttpResponse& response) {
  require(response.status == 200 && response.is_complete, str("status ", response.status, ": ", response.body));
  require_json(response.body);
}

Exam::Exam(Files files, bool is_quick) : files_(std::move(files)), is_quick_(is_quick) {
  std::vector<std::string> words = {files_.program,
                                    "generate",
                                    files_.model,
                                    "-p",
                                    std::string(kCanary),
                                    "-n",
                                    std::to_string(kCanaryTokens),
                                    "--temperature",
                                    "0",
                                    "--json",
                                    "--log-level",
                                    "off"};
  words.insert(words.end(), kSameBits.begin(), kSameBits.end());
  const ProgramResult run = run_program(words);
  require(run.status == 0, str("headrace generate has failed: ", run.output));
  golden_ = text_at(run.output, "/text");
}

ServerCommand Exam::command(const std::vector<std::string>& flags) const {
  ServerCommand command{.program = files_.program, .model = files_.model};
  command.flags = {"--served-model-name", "exam",
                   "--log-format",        "json",
                   "--log-level",         "debug",
                   "--chat-template",     "{% for message in messages %}{{ message.content }}{% endfor %}"};
  command.flags.insert(command.flags.end(), kSameBits.begin(), kSameBits.end());
  command.flags.insert(command.flags.end(), flags.begin(), flags.end());
  const auto is_given = [&](std::string_view name) { return std::ranges::find(flags, name) != flags.end(); };
  if (!is_given("--port")) command.flags.insert(command.flags.end(), {"--port", "0"});
  if (!is_given("--max-num-seqs")) command.flags.insert(command.flags.end(), {"--max-num-seqs", "8"});
  if (!is_given("--max-model-len")) command.flags.insert(command.flags.end(), {"--max-model-len", "1024"});
  return command;
}

ExamServer& Exam::server() {
  if (!server_) {
    server_ = std::make_unique<ExamServer>(command({"--header-timeout", "400ms", "--body-timeout", "400ms",
                                                    "--stall-timeout", "500ms", "--max-queued-requests", "64"}));
    remember(*server_);
  }
  return *server_;
}

void Exam::remember(ExamServer& server) {
  for (int i = 0; i < 3; ++i) require_answer(post(server.port(), kCompletions, canary_body(), server.authorization()));
  const Figures figures = figures_of(server);
  baselines_[server.pid()] = {.pages = figure(figures, "headrace_free_pages"),
                              .states = figure(figures, "headrace_free_states"),
                              .resident = server.resident_bytes(),
                              .files = server.num_files()};
}

void Exam::refused(std::string_view path, std::string_view body, int status, std::string_view param,
                   std::string_view words) {
  const Figures before = figures_of(port());
  const RawHttpResponse response = post(port(), path, body);
  const std::string_view shown = body.substr(0, 200);
  try {
    require_refusal(response, status, param, words);
  } catch (const ExamFailure& failure) {
    throw ExamFailure(str(path, " ", shown, ": ", failure.what()));
  }
  Figures after;
  const auto moved = [&](std::string_view name) { return figure(after, name) - figure(before, name); };
  require_within(Milliseconds(1000), str(shown, " is counted"), [&] {  // it is when it has been answered
    after = figures_of(port());
    return moved("headrace_requests_failed_total") >= 1;
  });
  require(moved("headrace_rows_total") == 0, str(shown, ": the engine ran for a refused request"));
  require(moved("headrace_requests_failed_total") == 1,
          str(shown, ": requests_failed_total moved by ", moved("headrace_requests_failed_total"), ", expected 1"));
}

void Exam::wait_until_free(ExamServer& server) const {
  const Baseline& baseline = baselines_.at(server.pid());
  Figures figures;
  const auto is_free = [&] {
    figures = figures_of(server);
    return figure(figures, "headrace_requests_running") == 0 && figure(figures, "headrace_requests_waiting") == 0 &&
           figure(figures, "headrace_free_pages") == baseline.pages &&
           figure(figures, "headrace_free_states") == baseline.states && server.num_files() <= baseline.files + 1;
  };
  const auto end = Clock::now() + kFree;
  bool frees = is_free();
  for (; !frees && Clock::now() < end; frees = is_free()) usleep(5000);
  require(frees, str("after ", kFree.count(), " ms there are ", figure(figures, "headrace_requests_running"),
                     " running and ", figure(figures, "headrace_requests_waiting"), " waiting choices, ",
                     figure(figures, "headrace_free_pages"), " of ", baseline.pages, " pages free, ",
                     figure(figures, "headrace_free_states"), " of ", baseline.states, " states free, ",
                     server.num_files(), " open files (", baseline.files, " before)"));
}

void Exam::check_log(ExamServer& server) const {
  double responses = 0;
  int64_t lines = 0;
  const auto agree = [&] {  // a response is counted, and logged, behind its last byte
    responses = figure(figures_of(server), "headrace_responses_total");
    lines = count(server.log(), R"("status": )");
    return static_cast<double>(lines) == responses || static_cast<double>(lines) == responses + 1;
  };
  const auto end = Clock::now() + Milliseconds(2000);
  bool agrees = agree();
  for (; !agrees && Clock::now() < end; agrees = agree()) usleep(5000);
  require(agrees, str("the log has ", lines, " lines for ", responses, " responses"));
  const std::string log = server.log();
  for (const std::string_view word :
       {kMarker, std::string_view("Sanitizer"), std::string_view("runtime error:"), std::string_view("headrace: bug")})
    require(log.find(word) == log.npos, str("the log has '", word, "'"));
}

void Exam::check(ExamServer& server) {
  if (!server.is_alive()) {
    const std::string log = server.log();
    throw ExamFailure(str("the server has ended with status ", server.wait(Milliseconds(0)).value_or(-1), ": ",
                          log.substr(log.size() - std::min<size_t>(log.size(), 800))));
  }
  if (!baselines_.contains(server.pid())) remember(server);
  wait_until_free(server);
  const auto is_ready_in_time = [&] {  // on a machine with other work the first of several may be late
    const auto begin = Clock::now();
    return get(server.port(), "/readyz").status == 200 && Clock::now() - begin < kReady;
  };
  require(is_ready_in_time() || is_ready_in_time() || is_ready_in_time(), "/readyz has no 200 within 100 ms");
  const RawHttpResponse canary = post(server.port(), kCompletions, canary_body(), server.authorization());
  require_answer(canary);
  require(text_at(canary.body, "/choices/0/text") == golden_,
          str("the canary is '", text_at(canary.body, "/choices/0/text"), "', expected '", golden_, "'"));
  check_log(server);
  const int64_t growth = server.resident_bytes() - baselines_.at(server.pid()).resident;
  require(growth < kMostGrowth, str("the server has grown by ", growth >> 20, " MB"));
}

}  // namespace headrace::exam
