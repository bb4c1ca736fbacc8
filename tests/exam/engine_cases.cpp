// Group D of the exam: load, the engine, and what runs out.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "exam/broken_model.h"
#include "exam/exam.h"
#include "support/random.h"

namespace headrace::exam {
namespace {

using testing_support::Random;

std::string answer_of(const RawHttpResponse& response) {
  require_answer(response);
  return text_at(response.body, "/choices/0/text");
}

// Refused at once, and told when to come back.
void require_full(const ExamServer& server, std::string_view body) {
  const auto begin = Clock::now();
  const RawHttpResponse response = post(server.port(), kCompletions, body);
  const auto time = std::chrono::duration_cast<Milliseconds>(Clock::now() - begin);
  require_refusal(response, 429, "", "queue");
  const std::string after = response.header("retry-after");
  require(!after.empty() && std::stoi(after) >= 1 && std::stoi(after) <= 60, str("Retry-After is '", after, "'"));
  require(time < patient(Milliseconds(50)), str("429 took ", time.count(), " ms"));
}

void full_queue(Exam& exam) {
  const int queue = exam.is_quick() ? 4 : 512;
  ExamServer server(exam.command({"--max-num-seqs", "1", "--max-queued-requests", std::to_string(queue)}));
  exam.check(server);
  require_within(Milliseconds(1000), "an empty queue", [&] { return live(server) == 0; });  // the canary has left it
  std::vector<RawHttpClient> live_ones;
  for (int i = 0; i < 1 + queue; ++i)
    live_ones.push_back(begin_post(server.port(), kCompletions, stream_of(kStory, 1000)));
  require_within(Milliseconds(5000), "a full queue", [&] { return live(server) == 1 + queue; });
  for (int i = 0; i < 5; ++i) require_full(server, completion("\"max_tokens\": 1"));
  require_refusal(get(server.port(), "/readyz"), 503, "", "full");
  live_ones.clear();
  exam.check(server);
}

void full_of_tokens(Exam& exam) {
  ExamServer server(exam.command({"--max-num-seqs", "1", "--max-queued-tokens", "400", "--max-model-len", "4096"}));
  exam.check(server);
  RawHttpClient running = begin_post(server.port(), kCompletions, stream_of(kStory, 4000));
  require(!running.receive_until("data: {").empty(), "a stream does not begin");
  RawHttpClient waiting = begin_post(server.port(), kCompletions, stream_of(ids_prompt(300), 5));
  require_within(Milliseconds(1000), "a request waits", [&] { return live(server) == 2; });
  require_full(server, completion_of(ids_prompt(300), "\"max_tokens\": 1"));
  running.close();
  require(waiting.response().is_complete, "the request that waited has no response");
  waiting.close();
  exam.check(server);
}

// A load takes less than a tenth of a second: the exam asks at once, and again with another server if it was late.
void while_loading(Exam& exam) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    const uint16_t port = free_port();
    ExamServer server(exam.command({"--port", std::to_string(port)}), ExamServer::Wait::kNot);
    RawHttpResponse response;
    require_within(Milliseconds(20'000), "the server listens", [&] {
      require(server.is_alive(), str("the server has ended: ", server.log()));
      try {
        response = post(port, kCompletions, canary_body());
      } catch (const Error&) {
        return false;
      }
      return true;
    });
    if (response.status == 200) continue;
    require_refusal(response, 503, "", "oading");
    require(!response.header("retry-after").empty(), "503 without Retry-After");
    require_within(Milliseconds(60'000), "the model is loaded", [&] { return get(port, "/readyz").status == 200; });
    return;
  }
  throw ExamFailure("no server of 20 was seen while it loads");
}

void timeouts(Exam& exam) {
  ExamServer server(exam.command(
      {"--max-num-seqs", "1", "--queue-timeout", "200ms", "--request-timeout", "700ms", "--max-model-len", "4096"}));
  exam.check(server);
  RawHttpClient running = begin_post(server.port(), kCompletions, stream_of(kStory, 4000));
  require(!running.receive_until("data: {").empty(), "a stream does not begin");
  const RawHttpResponse waited = post(server.port(), kCompletions, completion("\"max_tokens\": 1"));
  require_refusal(waited, 503, "", "waited");
  require(!waited.header("retry-after").empty(), "503 without Retry-After");
  const std::string rest = running.receive_until("[DONE]");
  require(rest.find("\"error\"") != rest.npos && rest.ends_with("[DONE]"),
          "a stream beyond its time ends without an error");
  require_refusal(post(server.port(), kCompletions, completion(R"("max_tokens": 4000, "ignore_eos": true)")), 504, "",
                  "");
  running.close();
  exam.check(server);
}

// One client's requests one after the other, until the time is over; counts the tokens of those that were answered.
struct Load {
  int64_t tokens = 0, answered = 0, refused = 0, other = 0;
  void add(const Load& more) {
    tokens += more.tokens, answered += more.answered, refused += more.refused, other += more.other;
  }
};

constexpr int kLoadTokens = 16;

Load load_by_one(uint16_t port, Clock::time_point end, Milliseconds pause_when_refused) {
  Load load;
  RawHttpClient client(port);
  const std::string body = completion(str(R"("ignore_eos": true, "max_tokens": )", kLoadTokens));
  while (Clock::now() < end) {
    const RawHttpResponse response =
        client.request(raw_request("POST", kCompletions, body, "Content-Type: application/json\r\n"));
    if (response.status == 200)
      load.tokens += kLoadTokens, ++load.answered;
    else if (response.status == 429)
      ++load.refused, std::this_thread::sleep_for(pause_when_refused);
    else
      ++load.other;
  }
  return load;
}

Load load_by(int clients, uint16_t port, Milliseconds time) {
  std::vector<Load> loads(static_cast<size_t>(clients));
  std::vector<std::jthread> threads;
  const auto end = Clock::now() + time;
  for (Load& one : loads) threads.emplace_back([&one, port, end] { one = load_by_one(port, end, Milliseconds(200)); });
  threads.clear();
  Load sum;
  for (const Load& one : loads) sum.add(one);
  return sum;
}

// Ten times as many clients as can be served: those that are accepted have as much as without the others.
void overload(Exam& exam) {
  const Milliseconds time(exam.is_quick() ? 1000 : 60'000);
  ExamServer server(exam.command({"--max-queued-requests", "16"}));
  exam.check(server);
  const Load peak = load_by(8, server.port(), std::min(time, Milliseconds(10'000)));
  const int64_t before = server.resident_bytes();
  const Load over = load_by(80, server.port(), time);
  const double scale = static_cast<double>(time.count()) / static_cast<double>(std::min<int64_t>(time.count(), 10'000));
  const double share = static_cast<double>(over.tokens) / (static_cast<double>(peak.tokens) * scale);
  require(over.other == 0, str(over.other, " requests were neither answered nor refused with 429"));
  require(over.refused > 0, "no request was refused");
  require(share >= 0.9, str("goodput is ", share, " of the peak"));
  const int64_t growth = server.resident_bytes() - before;
  require(growth < (int64_t{16} << 20), str("memory has grown by ", growth >> 20, " MB"));
  exam.check(server);
}

ServerCommand with_few_pages(const Exam& exam) {
  return exam.command({"--kv-cache-memory-bytes", "10M", "--max-num-batched-tokens", "128"});
}

std::string prompt_number(int i) { return str("\"There was a ", kMarker, " number ", i, "\""); }
std::string body_of(int i) {
  return completion_of(prompt_number(i), R"("temperature": 0, "ignore_eos": true, "max_tokens": 200)");
}

void few_pages(Exam& exam) {
  std::vector<std::string> alone;
  for (int i = 0; i < 8; ++i) alone.push_back(answer_of(post(exam.port(), kCompletions, body_of(i))));
  ExamServer server(with_few_pages(exam));
  exam.check(server);
  std::vector<RawHttpClient> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(begin_post(server.port(), kCompletions, body_of(i)));
  for (size_t i = 0; i < clients.size(); ++i)
    require(answer_of(clients[i].response(Milliseconds(60'000))) == alone[i],
            str("request ", i, " has another text than alone"));
  require(figure(figures_of(server), "headrace_preemptions_total") > 0, "no request was preempted");
  clients.clear();
  exam.check(server);
}

void too_small_a_cache(Exam& exam) {
  ExamServer server(exam.command({"--kv-cache-memory-bytes", "3M", "--max-num-seqs", "1"}), ExamServer::Wait::kNot);
  const std::optional<int> status = server.wait(Milliseconds(20'000));
  require(status == 4, str("status ", status.value_or(-1), ", expected 4: ", server.log()));
  require(server.log().find("3145728") != std::string::npos && server.log().find("1024") != std::string::npos,
          str("the message has no numbers: ", server.log()));
}

// Clients go at random times, also while their requests are preempted.
void random_aborts(Exam& exam) {
  ExamServer server(with_few_pages(exam));
  exam.check(server);
  Random random(1);
  const int rounds = exam.is_quick() ? 12 : 200;
  for (int round = 0; round < rounds; ++round) {
    std::vector<RawHttpClient> clients;
    for (int64_t i = 0, most = 1 + random.below(12); i < most; ++i) {
      const std::string prompt = random.below(3) == 0 ? ids_prompt(static_cast<size_t>(1 + random.below(600))) : kStory;
      const auto tokens = static_cast<int>(1 + random.below(250));
      std::string body = stream_of(prompt, tokens, str("\"n\": ", 1 + random.below(3)));
      if (random.below(3) == 0) body = completion_of(prompt, str(R"("ignore_eos": true, "max_tokens": )", tokens));
      clients.push_back(begin_post(server.port(), kCompletions, body));
    }
    std::this_thread::sleep_for(Milliseconds(random.below(80)));
    for (RawHttpClient& client : clients) random.below(2) == 0 ? client.reset() : client.close();
    require_within(Milliseconds(5000), "all requests have ended", [&] { return live(server) == 0; });
  }
  exam.check(server);
}

// A response that is complete but not read when its client goes; choices of which some have ended.
void late_aborts(Exam& exam) {
  for (int i = 0; i < (exam.is_quick() ? 8 : 40); ++i) {
    RawHttpClient done = begin_post(exam.port(), kCompletions, stream_of(kStory, 1 + i % 3));
    done.receive_until("[DONE]", Milliseconds(i % 4));
    RawHttpClient half = begin_post(exam.port(), kCompletions,
                                    stream_of(kStory, 40, R"("n": 4, "temperature": 1, "stop": [" the", "."])"));
    half.receive_until("\"stop\"", Milliseconds(200));
    i % 2 == 0 ? half.reset() : half.close();
    done.reset();
  }
  exam.check_shared();
}

// A server in the least address space in which one starts, and a little more. Those in less must say why they end.
std::unique_ptr<ExamServer> in_little_memory(const Exam& exam) {
  constexpr int64_t kMiB = 1 << 20, kMore = 64 * kMiB;
  ServerCommand command = exam.command({});
  int64_t least = 0;
  for (int64_t space = 128 * kMiB; space < 8192 * kMiB; space += kMore) {
    command.address_space = space;
    auto server = std::make_unique<ExamServer>(command, ExamServer::Wait::kNot);
    if (server->serves()) {
      if (least > 0 && space > least) return server;
      if (least == 0) least = space;
      continue;
    }
    const int status = server->wait(Milliseconds(0)).value_or(-1);
    const bool is_loader = status == 127;  // before the program begins
    require(status == 4 || is_loader, str("in ", space / kMiB, " MB the status is ", status, ": ", server->log()));
  }
  throw ExamFailure("no server starts in 8 GB of address space");
}

// Bodies for which there is no memory: each is refused, and nothing else happens.
void little_memory(Exam& exam) {
  const std::unique_ptr<ExamServer> running = in_little_memory(exam);
  ExamServer& server = *running;
  exam.check(server);
  const std::string body = completion_of(str('"', std::string(30 << 20, 'a'), '"'), "");
  int served = 0;
  for (int i = 0; i < 3; ++i) {
    std::vector<RawHttpClient> clients;
    for (int j = 0; j < 4; ++j) clients.push_back(begin_post(server.port(), kCompletions, body));
    for (RawHttpClient& client : clients) {
      const RawHttpResponse response = client.response();
      require(response.status == 0 || response.status == 400 || response.status == 500 || response.status == 503,
              str("a body without memory has status ", response.status));
      if (response.status != 400) continue;
      require_refusal(response, 400, "prompt", "context");
      ++served;
    }
    require(server.is_alive(), str("without memory the server ends: ", server.log()));
  }
  require(served < 12, "all bodies had memory: this case tests nothing");
  exam.check(server);
}

void small_address_space(Exam& exam) {
  ServerCommand command = exam.command({"--max-model-len", "4096", "--kv-cache-memory-bytes", "6G"});
  command.address_space = int64_t{4} << 30;
  ExamServer server(command, ExamServer::Wait::kNot);
  const std::optional<int> status = server.wait(Milliseconds(60'000));
  require(status == 4, str("status ", status.value_or(-1), ", expected 4: ", server.log()));
  require(server.log().find("GB") != std::string::npos || server.log().find("MB") != std::string::npos,
          str("no numbers: ", server.log()));
}

void nan_logits(Exam& exam) {
  const BrokenModel broken(exam.model());
  ServerCommand command = exam.command({});
  command.model = broken.directory();
  ExamServer server(command);
  exam.check(server);
  RawHttpClient beside = begin_post(server.port(), kCompletions, canary_body(R"("ignore_eos": true)"));
  const std::string bad = completion_of(str('[', 5, ',', broken.token(), ",7]"), R"("max_tokens": 4)");
  require_refusal(post(server.port(), kCompletions, bad), 500, "", "NaN");
  require(answer_of(beside.response()) == exam.golden(), "a request beside one whose logits are NaN has another text");
  require(answer_of(post(server.port(), kCompletions, canary_body())) == exam.golden(),
          "a request after it has another text");
  require_refusal(post(server.port(), kCompletions, bad), 500, "", "NaN");
  exam.check(server);
}

// The program beside a side library whose device fails.
class FailingDevice {
 public:
  explicit FailingDevice(const Exam& exam) {
    require(!exam.side_library().empty(), "--side-library is missing");
    std::filesystem::copy_file(exam.program(), directory_ / "headrace");
    std::filesystem::copy_file(exam.side_library(), directory_ / "libheadrace_cuda.so");
  }
  ServerCommand command(const Exam& exam, const std::vector<std::string>& flags) const {
    ServerCommand command = exam.command(flags);
    command.flags.insert(command.flags.end(), {"--device", "cuda", "--no-graphs"});
    command.program = directory_ / "headrace";
    return command;
  }

 private:
  test::TempDir directory_;
};

void device_fails(Exam& exam) {
  const FailingDevice device(exam);
  ExamServer server(device.command(exam, {}));
  RawHttpClient stream = begin_post(server.port(), kCompletions, stream_of(kStory, 500));
  const RawHttpResponse response = stream.response();
  const bool is_stream = response.status == 200;  // else the device failed before the first token was sent
  require(is_stream ? response.body.ends_with("data: [DONE]\n\n") : response.status == 500,
          str("the stream does not end: ", response.status, " ", response.body));
  require(response.body.find("\"error\"") != std::string::npos, str("no error: ", response.body));
  const std::optional<int> status = server.wait(Milliseconds(10'000));
  require(status == 6, str("the status is ", status.value_or(-1), ", expected 6: ", server.log()));
  require(server.log().find("the device has failed") != std::string::npos, server.log());
}

void step_hangs(Exam& exam) {
  const FailingDevice device(exam);
  ServerCommand command = device.command(exam, {"--watchdog-timeout", "2500ms"});
  command.environment.emplace_back("HANGING_DEVICE=1");
  ExamServer server(command);
  RawHttpClient stream = begin_post(server.port(), kCompletions, stream_of(kStory, 500));
  require(!stream.receive_until("data: {").empty(), "a stream does not begin");
  require_within(Milliseconds(3000), "/readyz is 503", [&] { return get(server.port(), "/readyz").status == 503; });
  require(get(server.port(), "/livez").status == 200, "/livez is not 200 while a step hangs");
  require_refusal(get(server.port(), "/readyz"), 503, "", "step");
  const std::optional<int> status = server.wait(Milliseconds(5000));
  require(status == 70, str("the watchdog's status is ", status.value_or(-1), ", expected 70"));
  require(server.log().find("pages free") != std::string::npos,
          str("the watchdog says nothing of the state: ", server.log()));
}

void no_device(Exam& exam) {
  ExamServer server(exam.command({"--device", "cuda:7"}), ExamServer::Wait::kNot);
  const std::optional<int> status = server.wait(Milliseconds(20'000));
  require(status == 6, str("status ", status.value_or(-1), ", expected 6: ", server.log()));
  require(server.log().find("cuda") != std::string::npos, server.log());
}

// A server without work does not spin.
void idles(Exam& exam) {
  const double before = exam.server().cpu_seconds();
  std::this_thread::sleep_for(Milliseconds(500));
  const double used = exam.server().cpu_seconds() - before;
  require(used < 0.05, str("an idle server takes ", used * 2, " s of a core in a second"));
}

}  // namespace

const std::vector<ExamCase>& engine_cases() {
  using enum ExamCase::When;
  static const std::vector<ExamCase> kCases = {
      {"D43a", "a full queue: 429 and Retry-After in 50 ms", full_queue},
      {"D43b", "a queue full of tokens", full_of_tokens},
      {"D43c", "503 while the model loads", while_loading},
      {"D43d", "times of the queue and of requests", timeouts},
      {"D44", "ten times the load: goodput 90 % of the peak", overload, kWhenLong},
      {"D45a", "fewer pages than eight requests want: preempted, and the same texts", few_pages},
      {"D45b", "a cache that cannot hold one context", too_small_a_cache},
      {"D46a", "clients that go at random times", random_aborts},
      {"D46b", "clients that go as their responses end", late_aborts},
      {"D47", "no memory for bodies", little_memory},
      {"D48", "logits that are NaN in one request", nan_logits},
      {"D49", "a step that hangs: not ready in 3 s, and the watchdog", step_hangs},
      {"D50a", "a device that fails", device_fails},
      {"D50b", "a device that is not there", no_device},
      {"D52a", "less address space than the plan", small_address_space},
      {"D52b", "an idle server takes no CPU", idles},
  };
  return kCases;
}

}  // namespace headrace::exam
