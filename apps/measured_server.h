// The server that `headrace bench serve` and `bench agent` measure.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "load_client.h"
#include "load_flags.h"
#include "load_request.h"
#include "load_text.h"
#include "model_flags.h"
#include "thread_group.h"

namespace headrace::app {

class ModelServer;

// The one at --url, or MODEL behind a free port of 127.0.0.1, served by this process until the object ends.
class MeasuredServer {
 public:
  // Loads the model, if this process serves it, and sends a few requests to count tokens of words. Errors: as loading a
  // model; kIo if the server does not answer.
  MeasuredServer(const ModelFlags& model, const LoadFlags& load, std::string path);
  ~MeasuredServer();
  MeasuredServer(const MeasuredServer&) = delete;
  MeasuredServer& operator=(const MeasuredServer&) = delete;

  LoadClient& client() { return *client_; }
  const std::string& path() const { return path_; }  // of requests
  const std::string& model_name() const { return model_; }
  const TokenRatio& tokens() const { return tokens_; }
  // Returns a request's body for the answer to `history`.
  std::string body(const LoadHistory& history, int64_t max_tokens) const;

  // Seconds of CPU time so far of the threads that speak HTTP and of the one that makes texts, if they are of this
  // process.
  struct HttpCpu {
    double event_loop_s = 0, replies_s = 0;
  };
  std::optional<HttpCpu> http_cpu() const;

 private:
  void serve(const ModelFlags& model, const LoadFlags& load);
  TokenRatio::Count count_tokens(int64_t words);

  const std::string path_;
  std::string model_;
  bool only_letters_ = false;
  std::unique_ptr<ModelServer> own_;  // null: --url
  ThreadGroup event_loop_, replies_;
  std::unique_ptr<LoadClient> client_;
  TokenRatio tokens_;
};

}  // namespace headrace::app
