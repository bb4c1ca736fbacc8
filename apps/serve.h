// headrace serve: the model behind OpenAI's and Ollama's APIs.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "headrace/chat/chat_template.h"
#include "headrace/http/http_server.h"
#include "headrace/llm/async_llm.h"
#include "headrace/serve/server.h"
#include "many_requests.h"
#include "settings.h"

namespace CLI {
class App;
}

namespace headrace::app {

struct ServeFlags {
  ModelFlags model;
  ManyRequestsFlags many;
  SamplingFlags sampling;  // of requests that do not say otherwise
  HttpServerConfig http;
  std::vector<std::string> api_keys, cors_origins = {"localhost"};
  std::string api_key_file, chat_template, log_format = "text", config;
  int32_t max_queued_requests = 512, log_requests = 0;
  int64_t max_queued_tokens = 0;  // 0: any number
  // Milliseconds; 0: never.
  int64_t queue_timeout = 60'000, request_timeout = 0, shutdown_timeout = 30'000, watchdog_timeout = 120'000,
          sse_ping_interval = 30'000, header_timeout = 10'000, body_timeout = 30'000, idle_timeout = 75'000,
          stall_timeout = 30'000;
  bool strict_api = false, print_config = false, no_prefix_caching = false;
};

// A model behind HTTP, from its files to its end: first it listens, then it is loaded, then it answers.
class ModelServer {
 public:
  // Listens, and answers with status 503. Errors: as HttpServer's, and the chat template's.
  ModelServer(const ServeFlags& flags, const ModelDescription& description, const LLMOptions& options);
  ~ModelServer();
  ModelServer(const ModelServer&) = delete;
  ModelServer& operator=(const ModelServer&) = delete;

  void load();  // the model, with its progress on standard error
  void open();  // it answers from now on

  Server& server() { return server_; }
  HttpServer& http() { return *http_; }
  AsyncLLM& llm() { return *llm_; }
  const std::vector<std::string>& names() const { return names_; }  // of the model

 private:
  const SamplingFlags sampling_;  // of requests that do not say otherwise
  const ModelDescription description_;
  const LLMOptions options_;
  const std::vector<std::string> names_;
  const std::string template_text_;  // of the command line; empty: the model's own
  std::optional<ChatTemplate> chat_;
  std::unique_ptr<AsyncLLM> llm_;  // null until it is loaded; outlives what uses it
  Server server_;
  std::unique_ptr<HttpServer> http_;
};

void add_serve_flags(CLI::App& command, ServeFlags& flags);

// Serves until it is interrupted. `command`: the one whose flags these are, with the origins of their values. Returns
// 0, kPortInUse, kDevice if the device fails, or kBug if a step of the engine hangs.
int serve(const ServeFlags& flags, const CLI::App& command, const Origins& origins);

}  // namespace headrace::app
