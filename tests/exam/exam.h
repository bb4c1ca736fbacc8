// The exam of a running server: named cases, and what must hold after each.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "exam/exam_server.h"
#include "headrace/core/error.h"
#include "support/raw_http_client.h"

namespace headrace::exam {

using Clock = std::chrono::steady_clock;
using testing_support::raw_request;
using testing_support::RawHttpClient;
using testing_support::RawHttpResponse;

// Thrown by a case: one sentence.
class ExamFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void require(bool holds, const std::string& sentence);

// Values of a JSON text by their path, "/choices/0/text". They throw ExamFailure for text that is no JSON in UTF-8 and
// for a value of another kind.
std::string text_at(std::string_view json, std::string_view path);
int64_t number_at(std::string_view json, std::string_view path);
size_t length_at(std::string_view json, std::string_view path);  // of an array
bool has(std::string_view json, std::string_view path);          // and is not null
void require_json(std::string_view json);

// The data of all events of a stream, "[DONE]" included. Throws ExamFailure for what is no event, and for data that are
// no JSON.
std::vector<std::string> events_of(std::string_view stream);

// Sums of /metrics by name, over labels; and each with its labels: R"(headrace_requests_failed_total{...})".
using Figures = std::map<std::string, double, std::less<>>;
Figures figures_of(uint16_t port, std::string_view headers = {});
inline Figures figures_of(const ExamServer& server) { return figures_of(server.port(), server.authorization()); }
double figure(const Figures& figures, std::string_view name);  // 0: absent
inline double running(uint16_t port) { return figure(figures_of(port), "headrace_requests_running"); }
double live(const Figures& figures);  // requests that run or wait
inline double live(uint16_t port) { return live(figures_of(port)); }
inline double live(const ExamServer& server) { return live(figures_of(server)); }

RawHttpResponse get(uint16_t port, std::string_view path, std::string_view headers = {});
RawHttpResponse post(uint16_t port, std::string_view path, std::string_view body, std::string_view headers = {});
inline constexpr std::string_view kCompletions = "/v1/completions", kChat = "/v1/chat/completions";
// A body of /v1/completions with `fields` behind its prompt, which has kMarker in it.
std::string completion(std::string_view fields);
std::string completion_of(std::string_view prompt, std::string_view fields);  // `prompt` in JSON
std::string ids_prompt(size_t tokens);  // a list of so many ids, for completion_of

// A stream of `tokens` tokens whose prompt, in JSON, is `prompt`.
std::string stream_of(std::string_view prompt, int tokens, std::string_view fields = {});
// Sends a POST and does not wait for its response.
RawHttpClient begin_post(uint16_t port, std::string_view path, std::string_view body, std::string_view headers = {});

// Prompts of the exam have it: a log must not.
inline constexpr std::string_view kMarker = "quillfeather";
inline const std::string kStory = str('"', "There was a ", kMarker, " who", '"');  // a prompt in JSON

// `response` is an error in OpenAI's words, of `status`, that names `param` and has `words` in its message; either may
// be empty: any.
void require_refusal(const RawHttpResponse& response, int status, std::string_view param, std::string_view words);
void require_answer(const RawHttpResponse& response);  // 200 with JSON

class Exam {
 public:
  struct Files {
    std::filesystem::path program, model;
    std::filesystem::path side_library;  // whose device fails or hangs: tests/apps/failing_side_library.cpp
  };
  Exam(Files files, bool is_quick);

  bool is_quick() const { return is_quick_; }
  const std::filesystem::path& program() const { return files_.program; }
  const std::filesystem::path& model() const { return files_.model; }
  const std::filesystem::path& side_library() const { return files_.side_library; }

  // The server that most cases share: it is started when one asks for it.
  ExamServer& server();
  uint16_t port() { return server().port(); }
  // Flags of all servers of the exam, behind which those of a case come.
  ServerCommand command(const std::vector<std::string>& flags) const;

  // A refused request: require_refusal(); the engine does nothing for it; it is counted once.
  void refused(std::string_view path, std::string_view body, int status, std::string_view param = {},
               std::string_view words = {});
  // All of C.3's invariants: the server lives and is ready within 100 ms; it writes the right text; choices, pages and
  // states are free again; its memory is within 64 MB of what it was; its log has a line for each answer and none of
  // the prompts.
  void check(ExamServer& server);
  void check_shared() {
    if (server_) check(*server_);
  }
  void restart() { server_.reset(); }

  // The greedy completion of kCanary as it must be: the text of a run of `headrace generate`.
  const std::string& golden() const { return golden_; }

 private:
  struct Baseline {
    double pages = 0, states = 0;
    int64_t resident = 0, files = 0;
  };
  void remember(ExamServer& server);
  void check_log(ExamServer& server) const;
  void wait_until_free(ExamServer& server) const;

  Files files_;
  bool is_quick_;
  std::string golden_;
  std::map<pid_t, Baseline> baselines_;
  std::unique_ptr<ExamServer> server_;
};

inline constexpr std::string_view kCanary = "Once upon a time there was";
inline constexpr int kCanaryTokens = 8;
// A body that asks for the canary's text.
std::string canary_body(std::string_view fields = {});

struct ExamCase {
  std::string_view name;  // "A3": the exam's letter and number, and one more letter for parts of a case
  std::string_view title;
  void (*run)(Exam& exam);
  enum class When : uint8_t { kAlways, kWhenLong } when = When::kAlways;
};

const std::vector<ExamCase>& request_cases();
const std::vector<ExamCase>& transport_cases();
const std::vector<ExamCase>& engine_cases();
const std::vector<ExamCase>& lifecycle_cases();

// Calls `holds` until it does; throws ExamFailure after `time`.
template <class Holds>
void require_within(Milliseconds time, const std::string& what, const Holds& holds) {
  for (const auto end = Clock::now() + patient(time); !holds();) {
    require(Clock::now() < end, str(what, ": not within ", time.count(), " ms"));
    usleep(2000);
  }
}

}  // namespace headrace::exam
