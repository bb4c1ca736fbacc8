// The server of a model: routes of OpenAI's and Ollama's APIs. It knows HTTP by its exchanges alone.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/http/http_server.h"
#include "headrace/serve/admission.h"
#include "headrace/serve/api_keys.h"
#include "headrace/serve/call.h"
#include "headrace/serve/cross_origin.h"
#include "headrace/serve/metrics.h"
#include "headrace/serve/request_runner.h"
#include "headrace/serve/served_model.h"
#include "headrace/serve/worker_pool.h"

namespace headrace {

// Texts of requests in records: none; the first characters of the body and the output; all.
enum class RecordedTexts : uint8_t { kNone, kBegin, kAll };

struct ServerConfig {
  std::string version;
  std::vector<std::string> api_keys = {};                 // none: no key is asked for
  std::vector<std::string> cors_origins = {"localhost"};  // see CrossOrigin
  AdmissionConfig admission;
  RunnerTimes times;
  enum class UnknownFields : uint8_t { kIgnored, kRefused } unknown_fields = UnknownFields::kIgnored;
  RecordedTexts recorded_texts = RecordedTexts::kNone;
  bool records_params = false;
  int num_workers = 2;                                        // threads that read, render and tokenise requests
  std::function<void(const RequestRecord&)> on_request = {};  // of each that has ended; from any thread
};

// Four kinds of threads meet here: the event loop calls handle() and nothing else; workers read, render and tokenise;
// the engine runs; the runner's thread makes texts and sends them. The members are thread-safe.
class Server {
 public:
  explicit Server(ServerConfig config);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  // The HttpHandler. Answers at once, or hands the request to a worker.
  void handle(std::shared_ptr<HttpExchange> exchange);
  // The HttpErrorBody.
  static std::string error_body(int status, std::string_view message);

  // For /metrics. `http` is not owned, and calls handle() as long as this refers to it.
  void count_connections(const HttpServer& http) { http_ = &http; }
  // Until this is called, the model is loading and requests are refused. Once.
  void open(std::shared_ptr<const ServedModel> model);
  void drain();          // refuses new requests from now on
  bool is_idle() const;  // all requests have been answered
  void end_all();        // with an error: the server is shutting down
  void close();          // ends all threads; the model may go after that

  bool is_draining() const { return is_draining_; }
  double stalled_s() const { return runner_.stalled_s(); }  // see RequestRunner
  std::optional<std::string> fault() const { return runner_.fault(); }
  // Why the server is not ready; nothing if it is.
  std::optional<std::string> unready_reason() const;
  // One line for a watchdog to print.
  std::string state() const;

 private:
  using CallPtr = std::shared_ptr<Call>;
  struct Route;

  static const std::vector<Route>& routes();
  static const Route* find_route(std::string_view path);
  void route(const CallPtr& call, const Route* found);
  void authenticate(Call& call) const;
  void refuse(Call& call, const RequestError& error) const;
  void ended(const RequestRecord& record);

  // Answered at once.
  void health(Call& call) const;
  void livez(Call& call) const;
  void readyz(Call& call) const;
  void root(Call& call) const;
  void version(Call& call) const;
  void metrics(Call& call) const;
  void openapi(Call& call) const;
  void models(Call& call) const;
  void model(Call& call) const;
  void tokenizer_info(Call& call) const;
  void tags(Call& call) const;
  void running(Call& call) const;

  void queue(const CallPtr& call, const Route& route);
  void work(const CallPtr& call, const Route& route, std::unique_ptr<Admission::Ticket> ticket);
  void submit(const CallPtr& call, Work work, std::unique_ptr<Admission::Ticket> ticket);
  static std::string params_text(const ApiRequest& request);
  std::shared_ptr<const ServedModel> served() const;  // throws RequestError 503 while it loads

  const ServerConfig config_;
  const ApiKeys keys_;
  const CrossOrigin cors_;
  Admission admission_;
  Metrics metrics_;
  RequestRunner runner_;
  WorkerPool workers_;
  std::atomic<bool> is_draining_ = false;
  std::atomic<const HttpServer*> http_ = nullptr;  // not owned
  mutable std::mutex mutex_;
  std::shared_ptr<const ServedModel> model_;  // null: it loads, or the server is closed
};

}  // namespace headrace
