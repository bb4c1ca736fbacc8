#include "headrace/serve/server.h"

#include <malloc.h>

#include <algorithm>
#include <new>
#include <utility>

#include "headrace/core/printable.h"
#include "headrace/core/scope_end.h"
#include "headrace/serve/api_handlers.h"
#include "headrace/serve/json_body.h"
#include "headrace/serve/openapi.h"
#include "headrace/text/json_string.h"

namespace headrace {
namespace {

constexpr double kReadyHeartbeat = 2;  // seconds
constexpr std::string_view kJson = "application/json";

RequestError unavailable(const std::string& why, const char* code) { return {503, why, "", code}; }

std::string begin_of(const std::string& text, RecordedTexts how) {
  constexpr size_t kBegin = 256;
  if (how == RecordedTexts::kNone) return "";
  return how == RecordedTexts::kAll || text.size() <= kBegin ? text : text.substr(0, kBegin) + "...";
}

// malloc keeps tens of MB a thread of what a large body took.
void give_back_after(size_t body_bytes) {
  constexpr size_t kLarge = size_t{1} << 20;
#ifdef __GLIBC__
  if (body_bytes >= kLarge) malloc_trim(0);
#endif
}

std::string model_json(const ServedModel& model, const std::string& name) {
  return str(R"({"id": )", json_string(name), R"(, "object": "model", "created": )", model.created(),
             R"(, "owned_by": "headrace", "max_model_len": )", model.size().context(), '}');
}

// Ollama's clients read the errors of paths that are not there, too.
ErrorStyle style_of(std::string_view path) {
  return path.starts_with("/api/") ? ErrorStyle::kOllama : ErrorStyle::kOpenAI;
}

}  // namespace

// A path, and what is done with a request to it.
struct Server::Route {
  std::string_view method, path;  // a path that ends with '/' is the beginning of others, too
  ErrorStyle style = ErrorStyle::kOpenAI;
  bool is_open = false;                        // without a key
  void (Server::*now)(Call&) const = nullptr;  // answers on the event loop
  ApiHandler handler = nullptr;                // or a worker does
};

const std::vector<Server::Route>& Server::routes() {
  static const std::vector<Route> kRoutes = {
      {.method = "GET", .path = "/health", .is_open = true, .now = &Server::health},
      {.method = "GET", .path = "/livez", .is_open = true, .now = &Server::livez},
      {.method = "GET", .path = "/readyz", .is_open = true, .now = &Server::readyz},
      {.method = "GET", .path = "/", .now = &Server::root},
      {.method = "GET", .path = "/version", .now = &Server::version},
      {.method = "GET", .path = "/metrics", .now = &Server::metrics},
      {.method = "GET", .path = "/openapi.json", .now = &Server::openapi},
      {.method = "GET", .path = "/v1/models", .now = &Server::models},
      {.method = "GET", .path = "/v1/models/", .now = &Server::model},
      {.method = "POST", .path = "/v1/completions", .handler = answer_completion},
      {.method = "POST", .path = "/v1/chat/completions", .handler = answer_chat},
      {.method = "POST", .path = "/tokenize", .handler = answer_tokenize},
      {.method = "GET", .path = "/tokenizer_info", .now = &Server::tokenizer_info},
      {.method = "POST", .path = "/detokenize", .handler = answer_detokenize},
      {.method = "GET", .path = "/api/version", .style = ErrorStyle::kOllama, .now = &Server::version},
      {.method = "GET", .path = "/api/tags", .style = ErrorStyle::kOllama, .now = &Server::tags},
      {.method = "GET", .path = "/api/ps", .style = ErrorStyle::kOllama, .now = &Server::running},
      {.method = "POST", .path = "/api/show", .style = ErrorStyle::kOllama, .handler = answer_ollama_show},
      {.method = "POST", .path = "/api/chat", .style = ErrorStyle::kOllama, .handler = answer_ollama_chat},
      {.method = "POST", .path = "/api/generate", .style = ErrorStyle::kOllama, .handler = answer_ollama_generate},
  };
  return kRoutes;
}

Server::Server(ServerConfig config)
    : config_(std::move(config)),
      keys_(config_.api_keys),
      cors_(config_.cors_origins),
      admission_(config_.admission),
      runner_(config_.times, metrics_),
      workers_(config_.num_workers) {}

Server::~Server() { close(); }

void Server::open(std::shared_ptr<const ServedModel> model) {
  runner_.start(model->llm());
  const std::lock_guard lock(mutex_);
  model_ = std::move(model);
}

void Server::drain() { is_draining_ = true; }

bool Server::is_idle() const { return admission_.num_live() == 0 && runner_.is_idle(); }

void Server::end_all() { runner_.fail_all(unavailable("the server is shutting down", "shutting_down")); }

void Server::close() {
  is_draining_ = true;
  workers_.stop();
  runner_.stop();
  const std::lock_guard lock(mutex_);
  model_ = nullptr;
}

std::string Server::error_body(int status, std::string_view message) {
  return RequestError(status, std::string(message)).json();
}

const Server::Route* Server::find_route(std::string_view path) {
  const Route* found = nullptr;
  for (const Route& route : routes()) {
    if (route.path == path) return &route;
    if (route.path.size() > 1 && route.path.ends_with('/') && path.starts_with(route.path)) found = &route;
  }
  return found;
}

void Server::handle(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->request();
  const Route* const found = find_route(request.path);
  HttpHeaders headers = cors_.headers(request);
  const auto call =
      std::make_shared<Call>(std::move(exchange), found != nullptr ? found->style : style_of(request.path),
                             std::move(headers), [this](const RequestRecord& record) { ended(record); });
  try {
    route(call, found);
  } catch (const RequestError& error) {
    refuse(*call, error);
  }
}

void Server::route(const CallPtr& call, const Route* found) {
  const HttpRequest& request = call->request();
  if (CrossOrigin::is_preflight(request) && cors_.allows(request)) {
    call->respond(204, "", "", CrossOrigin::preflight_headers(request));
    return;
  }
  if (found == nullptr || !found->is_open) {
    authenticate(*call);
    if (!cors_.allows(request))
      throw RequestError(403, "pages of this origin may not use the server; --cors-origins allows it");
  }
  if (found == nullptr)
    throw RequestError(404, str("there is no ", printable(request.path), "; /openapi.json lists what there is"));
  const bool matches = request.method == found->method || (request.method == "HEAD" && found->method == "GET");
  if (!matches) {
    const RequestError error(405, str("the method is ", printable(request.method), ", expected ", found->method));
    call->refuse(error, {{"allow", std::string(found->method)}});
  } else if (found->now != nullptr) {
    (this->*found->now)(*call);
  } else {
    queue(call, *found);
  }
}

void Server::authenticate(Call& call) const {
  if (keys_.empty()) return;
  const std::string* shown = call.request().header("authorization");
  call.key = shown != nullptr ? keys_.find(*shown) : std::nullopt;
  if (call.key) return;
  throw RequestError(401,
                     shown == nullptr ? "no API key is shown, expected the header 'Authorization: Bearer KEY'"
                                      : "the API key is none of the server's",
                     "", "invalid_api_key");
}

void Server::refuse(Call& call, const RequestError& error) const {
  HttpHeaders headers;
  if (error.status() == 401) headers.emplace_back("www-authenticate", "Bearer");
  if (error.status() == 429 || error.status() == 503)
    headers.emplace_back("retry-after", std::to_string(admission_.retry_after()));
  if (error.status() == 503 && is_draining_) headers.emplace_back("connection", "close");
  call.refuse(error, std::move(headers));
}

void Server::ended(const RequestRecord& record) {
  metrics_.count_response(record.status);
  if (!record.error.empty()) metrics_.count_failure(record.error_code);
  if (config_.on_request) config_.on_request(record);
}

std::shared_ptr<const ServedModel> Server::served() const {
  if (is_draining_) throw unavailable("the server is shutting down", "shutting_down");
  const std::lock_guard lock(mutex_);
  if (!model_) throw unavailable("Loading model", "loading");
  return model_;
}

std::optional<std::string> Server::unready_reason() const {
  if (is_draining_) return "the server is shutting down";
  {
    const std::lock_guard lock(mutex_);
    if (!model_) return "Loading model";
  }
  if (const auto fault = runner_.fault()) return "the device has failed: " + *fault;
  if (const double stalled = runner_.stalled_s(); stalled > kReadyHeartbeat)
    return str("a step of the engine has run for ", static_cast<int64_t>(stalled), " s");
  if (admission_.is_full()) return "the queue is full";
  return std::nullopt;
}

std::string Server::state() const {
  std::shared_ptr<const ServedModel> model;
  {
    const std::lock_guard lock(mutex_);
    model = model_;
  }
  if (!model) return "the model is loading";
  const EngineStats s = model->llm().stats();
  return str("step ", s.steps, ", ", s.running, " running, ", s.waiting, " waiting, ", admission_.num_live(),
             " admitted, ", s.free_pages, " of ", s.num_pages, " pages free, ", s.free_states, " of ", s.num_states,
             " states free, ", s.preemptions, " preemptions, heartbeat ", s.heartbeat, ", stalled for ", stalled_s(),
             " s");
}

void Server::health(Call& call) const {
  bool is_loading = false;
  {
    const std::lock_guard lock(mutex_);
    is_loading = !model_;
  }
  if (is_loading) {
    call.respond(503, kJson, R"({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})");
  } else if (const auto fault = runner_.fault()) {
    refuse(call, unavailable("the device has failed: " + *fault, "device_failed"));
  } else {
    call.respond_json(R"({"status": "ok"})");
  }
}

void Server::livez(Call& call) const { call.respond_json(R"({"status": "ok"})"); }

void Server::readyz(Call& call) const {
  if (const auto why = unready_reason()) throw unavailable(*why, "not_ready");
  call.respond_json(R"({"status": "ok"})");
}

void Server::root(Call& call) const { call.respond(200, "text/plain", "headrace is running\n"); }

void Server::version(Call& call) const { call.respond_json(str(R"({"version": )", json_string(config_.version), '}')); }

void Server::metrics(Call& call) const {
  Metrics::Outside outside;
  std::shared_ptr<const ServedModel> model;
  {
    const std::lock_guard lock(mutex_);
    model = model_;
  }
  if (model) outside.engine = model->llm().stats(), outside.model = model->names().front();
  if (const HttpServer* http = http_) outside.http = http->stats();
  outside.queued = std::max(0, admission_.num_live() - outside.engine.running);
  call.respond(200, "text/plain; version=0.0.4; charset=utf-8", metrics_.text(outside));
}

void Server::openapi(Call& call) const { call.respond_json(openapi_json(config_.version)); }

void Server::models(Call& call) const {
  const auto model = served();
  std::string body = R"({"object": "list", "data": )";
  append_list(model->names(), body, [&](const std::string& name) { body += model_json(*model, name); });
  call.respond_json(body + '}');
}

void Server::model(Call& call) const {
  const auto model = served();
  const std::string name = call.request().path.substr(std::string_view("/v1/models/").size());
  if (name.empty()) return models(call);
  call.respond_json(model_json(*model, model->name_for(name)));
}

void Server::tokenizer_info(Call& call) const { call.respond_json(tokenizer_info_json(*served())); }
void Server::tags(Call& call) const { call.respond_json(ollama_tags_json(*served())); }
void Server::running(Call& call) const { call.respond_json(ollama_running_json(*served())); }

void Server::queue(const CallPtr& call, const Route& route) {
  const std::string* type = call->request().header("content-type");
  if (route.style == ErrorStyle::kOpenAI && type != nullptr && !type->starts_with(kJson))
    throw RequestError(415, str("the content type is '", printable(*type), "', expected ", kJson));
  served();
  auto ticket = std::make_shared<std::unique_ptr<Admission::Ticket>>(std::make_unique<Admission::Ticket>(admission_));
  workers_.post([this, call, &route, ticket] { work(call, route, std::move(*ticket)); });
}

void Server::work(const CallPtr& call, const Route& route, std::unique_ptr<Admission::Ticket> ticket) {
  if (call->exchange().is_closed()) {
    call->record.error = "the client has gone", call->record.error_code = "aborted";
    call->end(499);
    return;
  }
  const ScopeEnd trim([size = call->request().body.size()] { give_back_after(size); });
  try {
    const auto model = served();
    call->record.input = begin_of(call->request().body, config_.recorded_texts);
    const JsonBody body(call->request().body, "the body");
    Answer answer = route.handler(body.root(), *model, *call);
    if (auto* const json = std::get_if<std::string>(&answer)) {
      ticket.reset();
      call->respond_json(std::move(*json));
    } else {
      submit(call, std::get<Work>(std::move(answer)), std::move(ticket));
    }
  } catch (const RequestError& error) {
    refuse(*call, error);
  } catch (const Error& error) {
    refuse(*call, request_error_of(error));
  } catch (const std::bad_alloc&) {
    refuse(*call, unavailable("there is no memory left for the request", "out_of_memory"));
  } catch (const std::exception& error) {
    refuse(*call, RequestError(500, error.what()));
  }
}

std::string Server::params_text(const ApiRequest& r) {
  const SamplingParams& p = r.params;
  return str("n ", r.n, ", max_tokens ", p.max_tokens, ", temperature ", p.temperature, ", top_p ", p.top_p, ", top_k ",
             p.top_k, ", min_p ", p.min_p, ", penalties ", p.repetition_penalty, ' ', p.presence_penalty, ' ',
             p.frequency_penalty, r.stream ? ", streamed" : "");
}

void Server::submit(const CallPtr& call, Work work, std::unique_ptr<Admission::Ticket> ticket) {
  const ApiRequest& request = work.response->request();
  if (config_.unknown_fields == ServerConfig::UnknownFields::kRefused && !request.unknown_fields.empty()) {
    const std::string& name = request.unknown_fields.front();
    throw RequestError(400, str(printable(name), " is unknown; without --strict-api it would be ignored"), name);
  }
  if (config_.records_params) call->record.params = params_text(request);
  int32_t choices = 0;
  int64_t tokens = 0;
  for (GenerationRequest& one : work.requests) {
    choices += one.n, tokens += std::ssize(one.prompt_ids);
    if (keys_.size() > 1) one.cache_salt = str("key ", call->key.value_or(0), ": ", one.cache_salt);
  }
  ticket->grow(choices, tokens);
  runner_.submit(call, std::move(work), std::move(ticket));
}

}  // namespace headrace
