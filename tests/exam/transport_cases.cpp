// Group C of the exam: HTTP and the connections under it. One file for the group, so that it reads beside the list.
#include <algorithm>
#include <array>
#include <thread>

#include "exam/exam.h"

namespace headrace::exam {
namespace {

constexpr std::string_view kPostHead = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";
constexpr Milliseconds kSoon{50}, kAbort{100};
constexpr Milliseconds kPromptStep{300};  // a step of 512 prompt tokens takes 110 ms on two slow cores

// `send` is answered by an error of `status`, and the connection ends.
void require_ended(Exam& exam, std::string_view bytes, int status, std::string_view words = "") {
  RawHttpClient client(exam.port());
  client.send(bytes);
  const RawHttpResponse response = client.response();
  try {
    require_refusal(response, status, "", words);
  } catch (const ExamFailure& failure) {
    throw ExamFailure(str(bytes.substr(0, 80), ": ", failure.what()));
  }
  require(client.is_closed(), str("the connection stays open behind ", status));
}

Milliseconds time_of_health(uint16_t port) {
  const auto begin = Clock::now();
  require(get(port, "/health").status == 200, "/health is not 200");
  return std::chrono::duration_cast<Milliseconds>(Clock::now() - begin);
}

// The 99th percentile of `requests`.
Milliseconds p99_of_health(uint16_t port, int requests = 100) {
  std::vector<Milliseconds> times;
  for (int i = 0; i < requests; ++i) times.push_back(time_of_health(port));
  std::ranges::sort(times);
  return times[times.size() - 1 - times.size() / 100];
}

void long_heads(Exam& exam) {
  require_ended(exam, str("GET /health HTTP/1.1\r\nHost: a\r\nX: ", std::string(64 << 10, 'a'), "\r\n\r\n"), 431);
  std::string many = "GET /health HTTP/1.1\r\nHost: a\r\n", few = many;
  for (int i = 0; i < 10'000; ++i) many += str("X", i, ": 1\r\n");
  for (int i = 0; i < 100; ++i) few += str("X", i, ": 1\r\n");
  require_ended(exam, many + "\r\n", 431);
  require_ended(exam, few + "\r\n", 431, "at most 100");
  require_ended(exam, str("GET /", std::string(64 << 10, 'a'), " HTTP/1.1\r\nHost: a\r\n\r\n"), 414);
  require_ended(exam, str("GET /health?", std::string(64 << 10, 'a')), 414);
}

void slow_heads(Exam& exam) {
  RawHttpClient slow(exam.port());
  const auto begin = Clock::now();
  const std::string head = "GET /health HTTP/1.1\r\n";
  for (size_t i = 0; i < head.size() && Clock::now() - begin < patient(Milliseconds(1500)); ++i) {
    if (!slow.send(head.substr(i, 1)) || slow.receive(Milliseconds(100))) break;
  }
  require_refusal(slow.response(), 408, "", "head");
  require(Clock::now() - begin < patient(Milliseconds(1500)), "a slow head is cut off late");
}

// Connections that send nothing, or the begin of a head, do not make others wait.
void many_slow_heads(Exam& exam) {
  const int sockets = exam.is_quick() ? 300 : 1000;
  const Milliseconds alone = p99_of_health(exam.port());
  std::vector<RawHttpClient> slow;
  for (int i = 0; i < sockets; ++i) {
    slow.emplace_back(exam.port());
    if (i % 2 == 0) slow.back().send("GET /hea");
  }
  const Milliseconds beside = p99_of_health(exam.port());
  require(beside <= std::max(patient(kSoon), 2 * alone),
          str("/health takes ", beside.count(), " ms beside slow heads"));
  for (size_t i = 0; i < slow.size(); i += 2) require_refusal(slow[i].response(), 408, "", "");
}

void slow_bodies(Exam& exam) {
  RawHttpClient slow(exam.port());
  const auto begin = Clock::now();
  slow.send(str(kPostHead, "Content-Length: 1000\r\n\r\n"));
  while (Clock::now() - begin < patient(Milliseconds(2000))) {
    if (!slow.send("a") || slow.receive(Milliseconds(50))) break;
  }
  require_refusal(slow.response(), 408, "", "body");
  RawHttpClient silent(exam.port());
  silent.send(str(kPostHead, "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"pro"));
  require_refusal(silent.response(), 408, "", "body");
}

void chunks(Exam& exam) {
  const std::string head = str(kPostHead, "Transfer-Encoding: chunked\r\n\r\n");
  for (const std::string_view size : {"-2", "FFFFFFFFFFFFFFFF", "+5", "10000000000000000", "0x5", " 5", "", "g"})
    require_ended(exam, str(head, size, "\r\nabcde\r\n0\r\n\r\n"), 400);
  require_ended(exam, str(head, "5\r\nabcdeX\r\n0\r\n\r\n"), 400);
  require_ended(exam, str(head, "5;", std::string(32 << 10, 'e'), "\r\nabcde\r\n0\r\n\r\n"), 400);
  RawHttpClient endless(exam.port());
  endless.send(head + "0\r\n");
  for (int i = 0; i < 10'000 && endless.send(str("X", i, ": ", std::string(100, 'a'), "\r\n")); ++i) {
  }
  require_refusal(endless.response(), 400, "", "");
  RawHttpClient single(exam.port());
  std::string bytes = head;
  for (const char c : completion("\"max_tokens\": 1")) bytes += str("1\r\n", c, "\r\n");
  require_answer(single.request(bytes + "0\r\n\r\n"));
}

void a_million_chunks(Exam& exam) {
  const int64_t before = exam.server().resident_bytes();
  std::string bytes = str(kPostHead, "Transfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 1'000'000; ++i) bytes += "1\r\na\r\n";
  require_refusal(RawHttpClient(exam.port()).request(bytes + "0\r\n\r\n"), 400, "", "JSON");
  const int64_t growth = exam.server().resident_bytes() - before;
  require(growth < (int64_t{32} << 20), str("a million chunks took ", growth >> 20, " MB"));
}

// Two programs in a row must not see different requests.
void smuggling(Exam& exam) {
  const auto post_with = [](std::string_view headers) {
    return str(kPostHead, headers, "\r\n5\r\nabcde\r\n0\r\n\r\n");
  };
  for (const std::string_view headers :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n", "Content-Length: -5\r\n", "Content-Length: +5\r\n",
        "Content-Length: 18446744073709551616\r\n", "Transfer-Encoding : chunked\r\n", "X: a\r\n folded\r\n",
        "Host: b\r\n"})
    require_ended(exam, post_with(headers), 400);
  require_ended(exam, post_with("Transfer-Encoding: gzip, chunked\r\n"), 501);
  require_ended(exam, "GET /health HTTP/1.1\r\n\r\n", 400, "Host");
  require_ended(exam, "GET /health HTTP/1.1\nHost: a\n\n", 400);
}

// 8 streams run, many wait.
void idle_streams(Exam& exam) {
  const size_t idle = exam.is_quick() ? 500 : 5000;
  ExamServer server(exam.command({"--max-queued-requests", "6000", "--sse-ping-interval", "300ms", "--queue-timeout",
                                  "0", "--max-model-len", "4096"}));
  exam.check(server);
  const int64_t before = server.resident_bytes();
  std::vector<RawHttpClient> streams;
  for (size_t i = 0; i < 8; ++i) streams.push_back(begin_post(server.port(), kCompletions, stream_of(kStory, 4000)));
  for (RawHttpClient& one : streams) require(!one.receive_until("data: {").empty(), "a stream does not begin");
  for (size_t i = 0; i < idle; ++i) streams.push_back(begin_post(server.port(), kCompletions, stream_of(kStory, 4000)));
  RawHttpClient& last = streams.back();
  require(last.receive_until(": ping\n\n").ends_with(": ping\n\n"), "a stream that waits is not kept alive");
  const Milliseconds time = p99_of_health(server.port());
  require(time < patient(kSoon), str("/health takes ", time.count(), " ms beside ", idle, " idle streams"));
  const int64_t growth = server.resident_bytes() - before;
  require(growth < (int64_t{64} << 20), str(idle, " idle streams take ", growth >> 20, " MB"));
  streams.clear();
  exam.check(server);
}

void most_connections(Exam& exam) {
  ExamServer server(exam.command({"--max-connections", "16"}));
  exam.check(server);
  std::vector<RawHttpClient> open;
  for (int i = 0; i < 16; ++i) {
    open.emplace_back(server.port());
    require(open.back().request(raw_request("GET", "/livez")).status == 200, "a connection below the limit is refused");
  }
  RawHttpClient more(server.port());
  more.send(raw_request("GET", "/livez"));
  require_refusal(more.response(), 503, "", "connections");
  require(more.is_closed(), "a connection beyond the limit stays open");
  open.clear();
  require_within(Milliseconds(1000), "a place for a connection",
                 [&] { return get(server.port(), "/livez").status == 200; });
  exam.check(server);
}

double aborted(uint16_t port) {
  return figure(figures_of(port), R"(headrace_requests_failed_total{model_name="exam",reason="aborted"})");
}

// A client's way to go.
enum class Leaving : uint8_t { kClose, kReset };
void leave(RawHttpClient& client, Leaving how) { how == Leaving::kClose ? client.close() : client.reset(); }

// `begin` returns a client whose request lives; it goes, and behind the step that runs, within `most`, nothing of it is
// left. Of three times one may be this fast: other programs run here, too.
template <class Begin>
void require_aborted(Exam& exam, Leaving how, const Begin& begin, Milliseconds most = kAbort) {
  Milliseconds least{1 << 30};
  for (int i = 0; i < 3 && least > patient(most); ++i) {
    const double before = aborted(exam.port());
    RawHttpClient client = begin();
    const auto left = Clock::now();
    leave(client, how);
    require_within(Milliseconds(3000), "the end of a request whose client has gone",
                   [&] { return live(exam.port()) == 0; });
    least = std::min(least, std::chrono::duration_cast<Milliseconds>(Clock::now() - left));
    require_within(Milliseconds(1000), "reason aborted is counted once",
                   [&] { return aborted(exam.port()) == before + 1; });
  }
  require(least <= patient(most), str("a request whose client has gone ends after ", least.count(), " ms"));
}

void gone_before_request(Exam& exam) {
  for (const Leaving how : {Leaving::kClose, Leaving::kReset}) {
    for (const std::string_view bytes :
         {"", "POST /v1", "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{\"prompt"}) {
      RawHttpClient client(exam.port());
      client.send(bytes);
      leave(client, how);
    }
  }
  require_within(Milliseconds(1000), "one connection left",
                 [&] { return figure(figures_of(exam.port()), "headrace_connections") == 1; });
}

void gone_in_queue(Exam& exam) {
  std::vector<RawHttpClient> active;
  for (int i = 0; i < 8; ++i) active.push_back(begin_post(exam.port(), kCompletions, stream_of(kStory, 1000)));
  require_within(Milliseconds(3000), "eight streams run", [&] { return running(exam.port()) == 8; });
  const double before = aborted(exam.port());
  {
    RawHttpClient queued = begin_post(exam.port(), kCompletions, stream_of(ids_prompt(300), 10));
    RawHttpClient whole = begin_post(exam.port(), kCompletions, completion("\"max_tokens\": 3"));
    require_within(Milliseconds(1000), "two requests wait", [&] { return live(exam.port()) == 10; });
    queued.reset();
    whole.close();
  }
  require_within(Milliseconds(1000), "requests that wait are aborted", [&] { return live(exam.port()) == 8; });
  require(aborted(exam.port()) == before + 2, "the aborted requests are not counted");
  active.clear();
}

void gone_in_prefill(Exam& exam) {
  for (const Leaving how : {Leaving::kClose, Leaving::kReset}) {
    const auto begin = [&] {
      const std::string salt = str(R"("cache_salt": "prefill )", Clock::now().time_since_epoch().count(), '"');
      RawHttpClient client = begin_post(exam.port(), kCompletions, stream_of(ids_prompt(1000), 10, salt));
      require_within(Milliseconds(1000), "a prompt runs", [&] { return live(exam.port()) == 1; });
      return client;
    };
    require_aborted(exam, how, begin, kPromptStep);
  }
}

void gone_in_decode(Exam& exam) {
  for (const Leaving how : {Leaving::kClose, Leaving::kReset}) {
    require_aborted(exam, how, [&] {
      RawHttpClient client = begin_post(exam.port(), kCompletions, stream_of(kStory, 1000));
      require(!client.receive_until("data: {").empty(), "a stream does not begin");
      return client;
    });
  }
  RawHttpClient first =
      begin_post(exam.port(), kCompletions, stream_of(ids_prompt(512), 500, R"("cache_salt": "kept")"));
  require(!first.receive_until("data: {").empty(), "a stream does not begin");
  first.reset();
  const RawHttpResponse again =
      post(exam.port(), kCompletions, completion_of(ids_prompt(512), R"("max_tokens": 1, "cache_salt": "kept")"));
  require_answer(again);
  require(number_at(again.body, "/usage/prompt_tokens_details/cached_tokens") >= 256,
          str("the pages of an aborted request are not in the prefix cache: ", again.body));
}

void gone_without_stream(Exam& exam) {
  for (const Leaving how : {Leaving::kClose, Leaving::kReset}) {
    require_aborted(exam, how, [&] {
      RawHttpClient client =
          begin_post(exam.port(), kCompletions, completion(R"("max_tokens": 1000, "ignore_eos": true, "n": 2)"));
      require_within(Milliseconds(1000), "two choices run", [&] { return running(exam.port()) == 2; });
      return client;
    });
  }
}

// A client that ends only its side waits for the answer.
void half_closed(Exam& exam) {
  const double before = aborted(exam.port());
  RawHttpClient whole = begin_post(exam.port(), kCompletions, canary_body());
  whole.end_sending();
  const RawHttpResponse answer = whole.response();
  require_answer(answer);
  require(text_at(answer.body, "/choices/0/text") == exam.golden(), "a half-closed request has another text");
  RawHttpClient streamed = begin_post(exam.port(), kCompletions, stream_of(kStory, 200));
  streamed.end_sending();
  const RawHttpResponse stream = streamed.response();
  require(stream.is_complete && events_of(stream.body).back() == "[DONE]",
          "a half-closed stream does not end with [DONE]");
  require(aborted(exam.port()) == before, "a half-closed request is aborted");
}

// A reader that takes nothing is cut off when a megabyte waits for it; one beside it has its text.
void slow_readers(Exam& exam) {
  const std::string body = stream_of(kStory, 1000, R"("n": 7, "logprobs": 20)");
  RawHttpClient stopped(exam.port(), 4096);
  const int64_t before = exam.server().resident_bytes();
  stopped.send(raw_request("POST", kCompletions, body, "Content-Type: application/json\r\n"));
  require_within(Milliseconds(3000), "seven choices run", [&] { return running(exam.port()) == 7; });
  const RawHttpResponse beside = post(exam.port(), kCompletions, canary_body());
  require_answer(beside);
  require(text_at(beside.body, "/choices/0/text") == exam.golden(), "the canary beside a slow reader has another text");
  require_within(Milliseconds(20'000), "the end of a stream that nobody reads", [&] { return live(exam.port()) == 0; });
  const int64_t growth = exam.server().resident_bytes() - before;
  require(growth < (int64_t{64} << 20), str("a stream that nobody reads took ", growth >> 20, " MB"));
  require_within(Milliseconds(3000), "its connection is cut off",
                 [&] { return figure(figures_of(exam.port()), "headrace_connections") == 1; });
}

void pipelined(Exam& exam) {
  RawHttpClient client(exam.port());
  client.send(raw_request("GET", "/livez") +
              raw_request("POST", kCompletions, canary_body(), "Content-Type: application/json\r\n") +
              raw_request("GET", "/nothing") + raw_request("GET", "/version"));
  require(client.response().status == 200, "the first of four requests at once is not answered");
  const RawHttpResponse canary = client.response();
  require_answer(canary);
  require(text_at(canary.body, "/choices/0/text") == exam.golden(), "a pipelined canary has another text");
  require_refusal(client.response(), 404, "", "");
  require_answer(client.response());
  require_refusal(client.request(raw_request("POST", kCompletions, "{", "Content-Type: application/json\r\n")), 400, "",
                  "JSON");
  require_answer(client.request(raw_request("GET", "/version")));
}

void methods(Exam& exam) {
  const auto status_of = [&](std::string_view method, std::string_view path) {
    RawHttpClient client(exam.port());
    client.send(raw_request(method, path));
    return client.response(RawHttpClient::kTime, method).status;
  };
  require(status_of("HEAD", "/health") == 200, "HEAD /health is not 200");
  require(status_of("GET", kCompletions) == 405, "GET of completions is not 405");
  for (const std::string_view method : {"TRACE", "CONNECT", "PUT", "DELETE", "BREW", "PATCH"}) {
    const int status = status_of(method, "/health");
    require(status == 405 || status == 400 || status == 501, str(method, " has status ", status));
  }
  const int options = status_of("OPTIONS", kCompletions);
  require(options == 405 || options == 204 || options == 200, str("OPTIONS has status ", options));
}

void expectations(Exam& exam) {
  RawHttpClient patient(exam.port());
  const std::string body = canary_body();
  patient.send(str(kPostHead, "Expect: 100-continue\r\nContent-Length: ", body.size(), "\r\n\r\n"));
  require(patient.receive_until("100 Continue\r\n\r\n").ends_with("100 Continue\r\n\r\n"), "no 100 Continue");
  require_answer(patient.request(body));
  require_ended(exam, str(kPostHead, "Expect: a-miracle\r\nContent-Length: 5\r\n\r\n"), 417);
}

void other_protocols(Exam& exam) {
  require_ended(exam, "GET /health\r\n", 400);  // HTTP/0.9
  require_ended(exam, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505);
  require_ended(exam, std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 0123456789\n", 23), 400);  // TLS
  require_ended(exam, "GET /health HTTP/1.2\r\nHost: a\r\n\r\n", 505);
  require_ended(exam, std::string_view("\x00\x01\x02\x03\n", 5), 400);
  require_ended(exam, "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400);
}

void keys(Exam& exam) {
  constexpr std::string_view kKey = "sk-exam-0123456789";
  ServerCommand command = exam.command({});
  command.key = kKey;
  ExamServer server(command);
  const std::array<std::string_view, 12> paths = {
      "/v1/models",    "/v1/models/exam", "/metrics", "/version",  "/nothing",  "/",
      "/openapi.json", kCompletions,      kChat,      "/api/chat", "/tokenize", "/api/tags"};
  const std::string large(20 << 10, 'k');
  for (const std::string_view path : paths) {
    for (const std::string& shown :
         {std::string(), str("Authorization: Bearer ", kKey.substr(0, 10), "\r\n"),
          str("Authorization: Bearer ", kKey, "x\r\n"), str("Authorization: ", kKey, "\r\n"),
          str("Authorization: Basic ", kKey, "\r\n"), std::string("Authorization: Bearer \r\n"),
          str("Authorization: Bearer ", large, "\r\n"), str("X-Api-Key: wrong\r\n")}) {
      const RawHttpResponse response = get(server.port(), path, shown);
      require(response.status == 401, str(path, " with '", shown.substr(0, 60), "' has status ", response.status));
      require(response.header("www-authenticate").starts_with("Bearer"), "401 without WWW-Authenticate");
    }
    const int status = get(server.port(), str(path, "?api_key=", kKey, "&key=", kKey)).status;
    require(status == 401, str(path, " takes a key in its query: ", status));
  }
  require_refusal(get(server.port(), "/v1/models", "Authorization: Bearer wrong\r\n"), 401, "", "key");
  require(get(server.port(), "/v1/models", str("Authorization: bearer ", kKey, "\r\n")).status == 200,
          "the scheme's case counts");
  require(get(server.port(), "/v1/models", server.authorization()).status == 200, "the right key is refused");
  for (const std::string_view path : {"/health", "/livez", "/readyz"})
    require(get(server.port(), path).status == 200, str(path, " asks for a key"));
  require_ended(
      exam, str("GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ", std::string(1 << 20, 'k'), "\r\n\r\n"),
      431);
  exam.check(server);
  require(server.log().find(kKey) == std::string::npos, "the log has the key");
}

}  // namespace

const std::vector<ExamCase>& transport_cases() {
  using enum ExamCase::When;
  static const std::vector<ExamCase> kCases = {
      {"C32a", "long header lines, 10,000 headers, long targets", long_heads},
      {"C32b", "a head that comes byte by byte", slow_heads},
      {"C32c", "/health beside hundreds of heads that never end", many_slow_heads},
      {"C33", "bodies that come byte by byte, or not", slow_bodies},
      {"C34a", "chunk sizes, endless trailers, no last chunk", chunks},
      {"C34b", "a million chunks of one byte", a_million_chunks},
      {"C34c", "heads that say twice where the body ends", smuggling},
      {"C36a", "idle streams: /health in 50 ms, 64 MB", idle_streams},
      {"C36b", "more connections than --max-connections", most_connections},
      {"C37a", "a client that goes before its request is there", gone_before_request},
      {"C37b", "a client that goes while it is queued", gone_in_queue},
      {"C37c", "a client that goes while its prompt is read", gone_in_prefill},
      {"C37d", "a client that goes within its stream; its pages stay cached", gone_in_decode},
      {"C37e", "a client that goes before a whole response", gone_without_stream},
      {"C37f", "a client that ends only its side", half_closed},
      {"C38", "a reader that reads nothing", slow_readers},
      {"C40a", "requests in one piece, and after an error", pipelined},
      {"C40b", "HEAD, OPTIONS, TRACE and unknown methods", methods},
      {"C40c", "Expect: 100-continue", expectations},
      {"C40d", "HTTP/0.9, HTTP/2, TLS, and bytes of nobody", other_protocols},
      {"C41", "API keys on every route", keys},
  };
  return kCases;
}

}  // namespace headrace::exam
