// Group F of the exam: how a server starts and ends, and that its texts stay the same.
#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "exam/exam.h"
#include "support/random.h"

namespace headrace::exam {
namespace {

namespace fs = std::filesystem;
using testing_support::Random;

void require_status(ExamServer& server, int expected, Milliseconds time) {
  const auto begin = Clock::now();
  const std::optional<int> status = server.wait(time);
  require(status.has_value(), str("the server did not end within ", time.count(), " ms"));
  require(status == expected, str("the status is ", *status, " after ",
                                  std::chrono::duration_cast<Milliseconds>(Clock::now() - begin).count(),
                                  " ms, expected ", expected, ": ", server.log()));
}

// 20 streams at the end of a server: short ones are finished, the others end with an error.
void drain(Exam& exam) {
  ExamServer server(
      exam.command({"--shutdown-timeout", str(patient(Milliseconds(1500)).count(), "ms"), "--max-model-len", "4096"}));
  exam.check(server);
  const uint16_t port = server.port();
  std::vector<RawHttpClient> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(begin_post(port, kCompletions, stream_of(kStory, 100)));
  require_within(Milliseconds(3000), "six streams run", [&] { return running(port) == 6; });
  for (int i = 6; i < 20; ++i) streams.push_back(begin_post(port, kCompletions, stream_of(kStory, 4000)));
  require_within(Milliseconds(3000), "20 streams live", [&] { return live(port) >= 14; });
  RawHttpClient kept(port);
  require(kept.request(raw_request("GET", "/readyz")).status == 200, "/readyz is not 200 before the signal");
  server.signal(SIGTERM);
  require_within(Milliseconds(500), "/readyz is 503", [&] { return get(port, "/readyz").status == 503; });
  const RawHttpResponse late = post(port, kCompletions, canary_body());
  require_refusal(late, 503, "", "shutting down");
  require(late.header("connection") == "close", "503 while the server drains without Connection: close");
  size_t whole = 0, cut = 0;
  for (RawHttpClient& stream : streams) {
    const RawHttpResponse response = stream.response();
    if (response.status == 503) {  // it has not begun
      require_refusal(response, 503, "", "shutting down"), ++cut;
      continue;
    }
    require(response.status == 200 && response.is_complete,
            str("a stream was cut off: ", response.body.substr(0, 200)));
    const std::vector<std::string> events = events_of(response.body);
    require(events.back() == "[DONE]", "a stream ends without [DONE]");
    has(events[events.size() - 2], "/error") ? ++cut : ++whole;
  }
  require(whole >= 6 && cut >= 1, str(whole, " streams were finished and ", cut, " ended with an error"));
  require_status(server, 0, Milliseconds(5000));
}

void drain_idle(Exam& exam) {
  for (const int signal : {SIGTERM, SIGINT}) {
    ExamServer server(exam.command({}));
    require_answer(post(server.port(), kCompletions, canary_body()));
    RawHttpClient kept(server.port());
    require_answer(kept.request(raw_request("GET", "/version")));
    server.signal(signal);
    require_status(server, 0, Milliseconds(1500));
  }
}

void second_signal(Exam& exam) {
  ExamServer server(exam.command({"--max-model-len", "4096"}));
  RawHttpClient stream = begin_post(server.port(), kCompletions, stream_of(kStory, 4000));
  require(!stream.receive_until("data: {").empty(), "a stream does not begin");
  server.signal(SIGTERM);
  require_within(Milliseconds(500), "/readyz is 503", [&] { return get(server.port(), "/readyz").status == 503; });
  server.signal(SIGTERM);
  require_status(server, 130, Milliseconds(500));
}

std::set<std::string> files_in(const fs::path& directory) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) files.insert(entry.path().string());
  return files;
}

void signals_while_loading(Exam& exam) {
  const test::TempDir cache;
  const std::set<std::string> model = files_in(exam.model());
  for (const int wait : {0, 1, 2, 5, 10, 20, 40, 80, 160}) {
    ServerCommand command = exam.command({});
    for (const std::string_view name : {"XDG_CACHE_HOME=", "TMPDIR=", "HF_HOME="})
      command.environment.push_back(str(name, cache.path().string()));
    ExamServer server(command, ExamServer::Wait::kNot);
    std::this_thread::sleep_for(Milliseconds(wait));
    server.signal(SIGTERM);
    const std::optional<int> status = server.wait(Milliseconds(2000));
    require(status.has_value(), str("SIGTERM ", wait, " ms after the start does not end the server within 2 s"));
    require(*status == 0 || *status == 128 + SIGTERM || *status == 130,
            str("the status is ", *status, ": ", server.log()));
  }
  require(files_in(exam.model()) == model, "a load that was ended left files in the model's directory");
  require(files_in(cache.path()).empty(), str("a load that was ended left ", *files_in(cache.path()).begin()));
}

// A port that another server has.
void used_port(Exam& exam) {
  ExamServer second(exam.command({"--port", std::to_string(exam.port())}), ExamServer::Wait::kNot);
  require_status(second, 5, Milliseconds(20'000));
  require(second.log().find(std::to_string(exam.port())) != std::string::npos, "the message does not name the port");
}

struct WrongFlags {
  std::vector<std::string> flags, environment = {};
  std::string words;  // of the message
};

void require_usage(Exam& exam, const WrongFlags& wrong) {
  std::vector<std::string> words = {exam.program(), "serve", exam.model(), "--print-config"};
  words.insert(words.end(), wrong.flags.begin(), wrong.flags.end());
  const ProgramResult result = run_program(words, wrong.environment);
  const std::string name = wrong.flags.empty() ? wrong.environment.front() : wrong.flags.front();
  require(result.status == 2, str(name, " has status ", result.status, ": ", result.output.substr(0, 300)));
  require(result.output.find(wrong.words) != std::string::npos,
          str(name, ": '", result.output.substr(0, 300), "' does not say ", wrong.words));
}

void wrong_flags(Exam& exam) {
  const std::array<WrongFlags, 14> all = {
      {{.flags = {"--max-num-sequences", "4"}, .words = "did you mean"},
       {.flags = {"--port", "8000", "--port", "8001"}, .words = "--port"},
       {.flags = {"--port", "abc"}, .words = "--port"},
       {.flags = {"--port", "65536"}, .words = "65535"},
       {.flags = {"--port", "-1"}, .words = "--port"},
       {.flags = {"--port", ""}, .words = "--port"},
       {.flags = {"--max-num-seqs", "0"}, .words = "--max-num-seqs"},
       {.flags = {"--queue-timeout", "soon"}, .words = "--queue-timeout"},
       {.flags = {"--log-requests", "4"}, .words = "--log-requests"},
       {.flags = {"--temperature", "-1"}, .words = "temperature"},
       {.flags = {"--api-key-file", "/nowhere/keys"}, .words = "/nowhere/keys"},
       {.flags = {"--config", "/nowhere/config.toml"}, .words = "/nowhere/config.toml"},
       {.flags = {}, .environment = {"HEADRACE_PORT=abc"}, .words = "HEADRACE_PORT"},
       {.flags = {}, .environment = {"HEADRACE_MAX_NUM_SEQS=-3"}, .words = "HEADRACE_MAX_NUM_SEQS"}}};
  for (const WrongFlags& one : all) require_usage(exam, one);
}

void wrong_files(Exam& exam) {
  const test::TempDir directory;
  const std::string path = directory / "config.toml";
  const auto wrong = [&](std::string_view text, const std::string& words) {
    test::write_file(path, text);
    require_usage(exam, {.flags = {"--config", path}, .words = words});
  };
  wrong("port = \"abc\"\n", path);
  wrong("nobody_knows = 1\n", path);
  wrong("port = 1\nport = 2\n", path);
  wrong("port: 8000\n", path);  // YAML
  wrong("a: &a [*a, *a]\nb: !!python/object:os.system x\n", path);
  wrong(std::string(1 << 20, 'x') + "\n", path);
  wrong(std::string(1 << 20, '['), path);
  wrong("\xff\xfe\n", path);
}

// Flag before variable before file.
void precedence(Exam& exam) {
  const test::TempDir directory;
  const std::string path = directory / "config.toml";
  test::write_file(path, "port = 7001\nmax-num-seqs = 3\nqueue-timeout = \"5s\"\n");
  const ProgramResult result =
      run_program({exam.program(), "serve", exam.model(), "--print-config", "--config", path, "--port", "7003"},
                  {"HEADRACE_PORT=7002", "HEADRACE_MAX_NUM_SEQS=4"});
  require(result.status == 0, result.output);
  const auto line_of = [&](std::string_view name) {
    const size_t at = result.output.find(str("\n", name, " = "));
    require(at != std::string::npos, str("--print-config has no ", name, ": ", result.output.substr(0, 500)));
    return result.output.substr(at + 1, result.output.find('\n', at + 1) - at - 1);
  };
  require(line_of("port").find("7003") != std::string::npos, line_of("port"));
  require(line_of("max-num-seqs").find('4') != std::string::npos &&
              line_of("max-num-seqs").find("HEADRACE_MAX_NUM_SEQS") != std::string::npos,
          line_of("max-num-seqs"));
  require(line_of("queue-timeout").find(path) != std::string::npos, line_of("queue-timeout"));
  const ProgramResult with_key =
      run_program({exam.program(), "serve", exam.model(), "--print-config", "--api-key", "sk-hidden"}, {});
  require(with_key.status == 0 && with_key.output.find("sk-hidden") == std::string::npos, "--print-config shows a key");
}

std::string fixed_body(int i) {
  return completion_of(str("\"", i, " little ", kMarker, "s went to\""),
                       R"("temperature": 0, "max_tokens": 12, "logprobs": 2)");
}

std::vector<std::string> fixed_answers(uint16_t port) {
  std::vector<std::string> answers;
  for (int i = 0; i < 6; ++i) {
    const RawHttpResponse response = post(port, kCompletions, fixed_body(i));
    require_answer(response);
    answers.push_back(response.body.substr(response.body.find("\"choices\""),
                                           response.body.find("\"usage\"") - response.body.find("\"choices\"")));
  }
  return answers;
}

// Tokens and log-probabilities of fixed prompts, to the digit, before and after other traffic.
void same_texts(Exam& exam) {
  const std::vector<std::string> before = fixed_answers(exam.port());
  Random random(3);
  std::vector<RawHttpClient> clients;
  const int requests = exam.is_quick() ? 60 : 1000;
  for (int i = 0; i < requests; ++i) {
    const auto tokens = 1 + random.below(30);
    std::string body =
        completion(str(R"("temperature": 1, "max_tokens": )", tokens, R"(, "n": )", 1 + random.below(2)));
    if (i % 3 == 0) body = stream_of(ids_prompt(static_cast<size_t>(1 + random.below(200))), static_cast<int>(tokens));
    if (i % 17 == 0) body = "{broken";
    clients.push_back(begin_post(exam.port(), kCompletions, body));
    if (i % 5 == 0) clients.back().reset();
    if (clients.size() == 16) {
      for (RawHttpClient& client : clients) {
        if (client.fd() >= 0) client.response();
      }
      clients.clear();
    }
  }
  clients.clear();
  require(fixed_answers(exam.port()) == before,
          "fixed prompts have other tokens or log-probabilities after other traffic");
}

std::string text_of_ids(uint16_t port, std::string_view salt, int64_t& cached) {
  const RawHttpResponse response =
      post(port, kCompletions,
           completion_of(ids_prompt(300), str(R"("temperature": 0, "max_tokens": 16, "cache_salt": ")", salt, '"')));
  require_answer(response);
  cached = number_at(response.body, "/usage/prompt_tokens_details/cached_tokens");
  return text_at(response.body, "/choices/0/text");
}

void cached_texts(Exam& exam) {
  const std::string salt = str("salt ", getpid(), ' ', Clock::now().time_since_epoch().count());
  int64_t cached = 0;
  const std::string miss = text_of_ids(exam.port(), salt, cached);
  require(cached == 0, str(cached, " tokens of a new salt's prompt are cached"));
  const std::string hit = text_of_ids(exam.port(), salt, cached);
  require(cached > 0, "a prompt that was just read is not cached");
  require(hit == miss, "a cached prompt has another text");
  require(text_of_ids(exam.port(), salt + " B", cached) == miss && cached == 0,
          str("a salt sees ", cached, " tokens of another"));
}

// Each key has a cache of its own.
void keys_share_nothing(Exam& exam) {
  ServerCommand command = exam.command({"--api-key", "sk-second"});
  command.key = "sk-first";
  ExamServer server(command);
  const auto cached = [&](std::string_view key) {
    const RawHttpResponse response =
        post(server.port(), kCompletions, completion_of(ids_prompt(300), "\"max_tokens\": 1"),
             str("Authorization: Bearer ", key, "\r\n"));
    require_answer(response);
    return number_at(response.body, "/usage/prompt_tokens_details/cached_tokens");
  };
  require(cached("sk-first") == 0, "the first prompt is cached");
  require(cached("sk-first") > 0, "a key's own prompt is not cached");
  require(cached("sk-second") == 0, "a key sees the prompt of another");
  exam.check(server);
}

}  // namespace

const std::vector<ExamCase>& lifecycle_cases() {
  using enum ExamCase::When;
  static const std::vector<ExamCase> kCases = {
      {"F62a", "SIGTERM with 20 streams", drain},
      {"F62b", "SIGTERM and SIGINT without any", drain_idle},
      {"F62c", "a second signal", second_signal},
      {"F63", "SIGTERM while the model loads", signals_while_loading},
      {"F66a", "flags and variables that are wrong", wrong_flags},
      {"F66b", "configuration files that are wrong", wrong_files},
      {"F66c", "flag before variable before file", precedence},
      {"F66d", "a port in use", used_port},
      {"F69a", "fixed prompts before and after other traffic", same_texts},
      {"F69b", "cached prompts, and salts", cached_texts},
      {"F69c", "two keys", keys_share_nothing},
  };
  return kCases;
}

}  // namespace headrace::exam
