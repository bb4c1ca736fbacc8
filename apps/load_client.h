// A client of OpenAI's API that sends many requests at once, from one thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "load_stats.h"
#include "server_url.h"

namespace headrace::app {

// Conversations that begin at their times. One of `num_turns` sends its next request when it has the answer to the
// last.
struct LoadPlan {
  std::string path;                  // "/v1/completions"
  std::vector<double> begin_s = {};  // of each conversation, ascending
  int32_t num_turns = 1;
  int32_t max_concurrency = 0;  // conversations at a time; later ones wait for a place. 0: any number
  // Returns the body of a conversation's next request. `answer`: to the one before it.
  std::function<std::string(size_t conversation, int32_t turn, const std::string& answer)> body;
  std::function<void(int64_t ended, int64_t all)> progress = {};
};

struct LoadOutcome {
  std::vector<RequestResult> results;  // of all turns that were sent
  std::vector<double> health_s;        // what /health took, ten times a second meanwhile
  int64_t num_pieces = 0;
  double client_cpu_s = 0;  // of this thread
  // Memory of the server's process, if its /metrics tells: at the begin, at the end, and the most in between.
  struct Process {
    double cpu_s = 0, begin_bytes = 0, end_bytes = 0, most_bytes = 0;
  };
  std::optional<Process> process;
};

// Not thread-safe. What a server answers is data: a status, or a body that cannot be read, becomes a result's error.
class LoadClient {
 public:
  // `api_key` may be empty. Error kIo: the host has no address.
  LoadClient(const ServerUrl& url, std::string api_key);
  ~LoadClient();
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;

  // Sends one request and waits for the end of its stream.
  RequestResult send(const std::string& path, const std::string& body);
  LoadOutcome run(const LoadPlan& plan);
  // Returns the name of the first model that the server has. Error kIo: it does not say.
  std::string first_model();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace headrace::app
