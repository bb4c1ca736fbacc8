#include "serve.h"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "answer_length.h"
#include "exit_status.h"
#include "headrace/chat/chat_template.h"
#include "headrace/core/file_exists.h"
#include "headrace/core/human_bytes.h"
#include "headrace/http/open_file_limit.h"
#include "headrace/llm/sampling_defaults.h"
#include "interrupt.h"
#include "load_model.h"
#include "model_files.h"
#include "model_flags.h"
#include "model_options.h"
#include "model_path.h"
#include "option_values.h"
#include "output.h"
#include "request_log.h"
#include "sampling_flags.h"
#include "seconds_since.h"
#include "version.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr const char* kDemoModel = "fairy-hybrid";  // served if none is named
constexpr milliseconds kLook{50};                   // for signals and the engine's heartbeat

LogFormat format_of(const ServeFlags& flags) {
  return flags.log_format == "json" ? LogFormat::kJson : LogFormat::kText;
}

// One key a line; blank lines and those that begin with # are none.
std::vector<std::string> keys_in(const std::string& path) {
  std::ifstream file(path);
  HR_REQUIRE(file.is_open(), ErrorCode::kInvalidArgument, "--api-key-file: ", path, " cannot be read");
  std::vector<std::string> keys;
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.pop_back();
    if (!line.empty() && line.front() != '#') keys.push_back(line);
  }
  HR_REQUIRE(!keys.empty(), ErrorCode::kInvalidArgument, "--api-key-file: ", path, " has no key");
  return keys;
}

std::vector<std::string> all_keys(const ServeFlags& flags) {
  std::vector<std::string> keys = flags.api_keys;
  if (!flags.api_key_file.empty()) std::ranges::copy(keys_in(flags.api_key_file), std::back_inserter(keys));
  return keys;
}

SamplingParams defaults_of(const SamplingFlags& flags, const SamplingParams& of_model) {
  SamplingParams params = params_of(flags, of_model);
  validate(params);
  return params;
}

ServerConfig config_of(const ServeFlags& flags, int32_t max_num_seqs, const LogCallback& log) {
  std::string version = version_text();  // its first line is "headrace 0.1.0"
  version = version.substr(0, version.find('\n'));
  return {.version = version.substr(version.find(' ') + 1),
          .api_keys = all_keys(flags),
          .cors_origins = flags.cors_origins,
          .admission = {.max_running = max_num_seqs,
                        .max_queued_requests = flags.max_queued_requests,
                        .max_queued_tokens = flags.max_queued_tokens},
          .times = {.queue = milliseconds(flags.queue_timeout),
                    .request = milliseconds(flags.request_timeout),
                    .ping = milliseconds(flags.sse_ping_interval)},
          .unknown_fields =
              flags.strict_api ? ServerConfig::UnknownFields::kRefused : ServerConfig::UnknownFields::kIgnored,
          .recorded_texts = flags.log_requests >= 3   ? RecordedTexts::kAll
                            : flags.log_requests == 2 ? RecordedTexts::kBegin
                                                      : RecordedTexts::kNone,
          .records_params = flags.log_requests >= 1,
          .on_request = request_log(log, format_of(flags))};
}

std::string url_of(const ServeFlags& flags, uint16_t port) {
  if (flags.http.hosts.empty()) return "unix:" + flags.http.uds;
  const std::string& host = flags.http.hosts.front();
  return fmt::format(fmt::runtime(host.find(':') == std::string::npos ? "http://{}:{}" : "http://[{}]:{}"), host, port);
}

// The lines that people copy into reports.
std::string start_report(const AsyncLLM& llm, const std::vector<std::string>& names, const std::string& url) {
  const ModelInfo& model = llm.model_info();
  const EngineConfig& engine = llm.config();
  const int64_t tokens = int64_t{llm.memory_plan().num_pages} * engine.runner.page_size;
  const double at_once = std::min<double>(static_cast<double>(tokens) / engine.max_context_len, engine.max_requests);
  std::string states;
  if (llm.memory_plan().num_states > 0) states = fmt::format(", {} recurrent states", llm.memory_plan().num_states);
  return fmt::format(
      "model    {} ({}) on {}\n"
      "weights  {} in {}\n"
      "cache    {}: {} pages of {} tokens{}; {} tokens fit\n"
      "context  {} tokens; {:.1f} requests of that length at a time, {} shorter ones\n"
      "url      {}\n",
      names.front(), model.architecture, to_string(llm.device()), human_bytes(model.weight_bytes), model.weight_types(),
      human_bytes(llm.memory_plan().bytes), llm.memory_plan().num_pages, engine.runner.page_size, states, tokens,
      engine.max_context_len, at_once, engine.max_requests, url);
}

// The settings of the model's generation_config.json for drawing tokens, by option; nothing of a model that is not
// here.
std::map<std::string, std::string> settings_of_model(const ModelFlags& flags, const LLMOptions& options) {
  const std::string revision = flags.revision.empty() ? "" : "@" + flags.revision;
  const auto directory = find_model(flags.model.empty() ? kDemoModel : flags.model + revision);
  std::map<std::string, std::string> values;
  if (!directory) return values;
  const SamplingParams of_model = sampling_defaults(read_description(*directory, options.random_weights), options.log);
  const SamplingParams none;
  const auto add = [&values](const char* name, auto value, auto otherwise) {
    if (value != otherwise) values[name] = fmt::format("{:g}", static_cast<double>(value));
  };
  add("temperature", of_model.temperature, none.temperature);
  add("top-k", of_model.top_k, none.top_k);
  add("top-p", of_model.top_p, none.top_p);
  add("min-p", of_model.min_p, none.min_p);
  add("repetition-penalty", of_model.repetition_penalty, none.repetition_penalty);
  return values;
}

// The text of --chat-template; empty without it.
std::string template_text(const std::string& given) {
  if (given.empty() || given.find('{') != std::string::npos) return given;
  std::ifstream file(given, std::ios::binary);
  HR_REQUIRE(file.is_open(), ErrorCode::kInvalidArgument, "--chat-template: ", given,
             " is no file that can be read, nor a template, which has {{ or {%");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A template of the command line reads the same tokens as the model's own.
ChatTemplate template_of(const std::string& text, const AsyncLLM& llm) {
  const Tokenizer& tokenizer = llm.tokenizer();
  const auto name_of_first = [&tokenizer](std::span<const int32_t> ids) {
    return ids.empty() ? std::string() : tokenizer.id_to_token(ids.front()).value_or("");
  };
  return ChatTemplate::from_text(text, name_of_first(tokenizer.prefix_ids()), name_of_first(llm.model_info().eos_ids));
}

// The loop of the program's own thread. Returns its status.
int watch(const ServeFlags& flags, Server& server) {
  while (!interrupted()) {
    std::this_thread::sleep_for(kLook);
    if (const auto fault = server.fault()) {
      write_err(fmt::format("headrace: the device has failed: {}\n", without_controls(*fault)));
      return kDevice;
    }
    const double stalled = server.stalled_s();
    if (flags.watchdog_timeout == 0 || stalled * 1000 < static_cast<double>(flags.watchdog_timeout)) continue;
    write_err(fmt::format("headrace: bug: a step of the engine has run for {:.0f} s: {}\n", stalled, server.state()));
    _exit(kBug);  // its thread does not end
  }
  return 0;
}

void wait_until_idle(const Server& server, milliseconds time) {
  const auto end = Clock::now() + time;
  while (!server.is_idle() && Clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
}

void shut_down(const ServeFlags& flags, Server& server, HttpServer& http, const LogCallback& log) {
  constexpr milliseconds kForEnds{2000}, kForSockets{2000};
  if (log) log(LogLevel::kInfo, "shutting down; a second signal ends the program at once");
  server.drain();
  wait_until_idle(server, milliseconds(flags.shutdown_timeout));
  server.end_all();
  wait_until_idle(server, kForEnds);
  http.stop_accepting();
  http.wait_until_idle(kForSockets);
}

// A connection's deadline of a flag whose 0 means none.
milliseconds deadline(int64_t flag) {
  constexpr int64_t kYears = int64_t{1} << 38;  // eight
  return milliseconds(flag == 0 ? kYears : std::min(flag, kYears));
}

std::unique_ptr<HttpServer> listening(const ServeFlags& flags, Server& server) {
  HttpServerConfig config = flags.http;
  config.header_time = deadline(flags.header_timeout), config.body_time = deadline(flags.body_timeout);
  config.idle_time = deadline(flags.idle_timeout), config.stall_time = deadline(flags.stall_timeout);
  return std::make_unique<HttpServer>(
      config, [&server](std::shared_ptr<HttpExchange> exchange) { server.handle(std::move(exchange)); },
      Server::error_body);
}

// Large bodies go back to the system when they are freed; otherwise malloc would keep 60 MB of them in each thread.
void keep_no_large_blocks() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 8 << 20);   // NOLINT(concurrency-mt-unsafe): no other thread runs yet
  mallopt(M_TRIM_THRESHOLD, 16 << 20);  // NOLINT(concurrency-mt-unsafe)
#endif
}

// From the begin to the end.
int serve_model(const ServeFlags& flags, const ModelDescription& description, const LLMOptions& options) {
  ModelServer model(flags, description, options);
  model.load();
  model.open();
  finish_when_interrupted();
  write_out(start_report(model.llm(), model.names(), url_of(flags, model.http().port())));
  const int status = watch(flags, model.server());
  shut_down(flags, model.server(), model.http(), options.log);
  return status;
}

void add_listening_flags(CLI::App& command, ServeFlags& f) {
  command.option_defaults()->group("Server");
  command.add_option("--host", f.http.hosts, "addresses to listen on")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("ADDRESS")
      ->capture_default_str();
  command.add_option("--port", f.http.port, "port to listen on; 0: a free one")
      ->check(integer_in(0, 65535))
      ->capture_default_str();
  command.add_option("--uds", f.http.uds, "a Unix socket to listen on, besides the addresses")->type_name(kFile);
  command
      .add_option("--cors-origins,--allowed-origins", f.cors_origins,
                  "web pages that may use the server; localhost: those of this machine; *: all")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("ORIGIN")
      ->capture_default_str();
  command
      .add_option("--api-key", f.api_keys,
                  "a key that clients must show; may be given several times: each has a prefix cache of its own")
      ->allow_extra_args(false)
      ->type_name("KEY");
  command.add_option("--api-key-file", f.api_key_file, "a file of such keys, one in each line")->type_name(kFile);
  command.add_option("--max-connections", f.http.max_connections, "connections at a time; others get status 503")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--max-body-bytes", f.http.max_body_bytes, "of a request; larger ones get status 413")
      ->type_name(kSize)
      ->transform(memory_size());
}

void add_queue_flags(CLI::App& command, ServeFlags& f) {
  command
      .add_option("--max-queued-requests", f.max_queued_requests,
                  "requests that may wait besides those that run; others get status 429")
      ->check(integer_in(0, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--max-queued-tokens", f.max_queued_tokens, "tokens of prompts that may wait (default: any number)")
      ->check(integer_in<uint64_t>(0, uint64_t{1} << 40));
  const auto add_time = [&command](const char* name, int64_t& value, const char* what) {
    command.add_option(name, value, what)
        ->type_name(kTime)
        ->transform(duration())
        ->default_str(std::to_string(value / 1000) + "s");
  };
  add_time("--queue-timeout", f.queue_timeout, "a request that has not begun by then gets status 503; 0: never");
  add_time("--request-timeout", f.request_timeout, "a request that has not ended by then is ended; 0: never");
  add_time("--shutdown-timeout", f.shutdown_timeout, "after SIGTERM or Ctrl-C: for the requests that run");
  add_time("--watchdog-timeout", f.watchdog_timeout,
           "a step of the engine that takes longer ends the program; 0: none");
  add_time("--header-timeout", f.header_timeout, "for a request's head; then status 408; 0: any");
  add_time("--body-timeout", f.body_timeout,
           "for its body, and again for each KB a second that comes; then status 408; 0: any");
  add_time("--idle-timeout", f.idle_timeout, "a connection without requests for so long is closed; 0: never");
  add_time("--stall-timeout", f.stall_timeout,
           "a client that does not read its response for so long is cut off; 0: never");
  add_time("--sse-ping-interval", f.sse_ping_interval, "a stream without tokens for so long gets a comment; 0: none");
}

void add_api_flags(CLI::App& command, ServeFlags& f) {
  command
      .add_option("--chat-template", f.chat_template,
                  "a file with the chat template, or its text (default: the model's)")
      ->type_name("TEMPLATE");
  command.add_flag("--strict-api", f.strict_api, "refuse unknown fields of requests, which are ignored without it");
  add_many_requests_flags(command, f.many);
  command.add_flag("--no-enable-prefix-caching", f.no_prefix_caching, "compute every prompt as a whole");
  command.add_option("--config", f.config, "a file of options, in TOML: port = 8080")->type_name(kFile);
  command.add_flag("--print-config", f.print_config, "print each option's value and where it comes from, and end");
}

void add_log_flags(CLI::App& command, ServeFlags& f) {
  command.add_option("--log-format", f.log_format, "text or json: one object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command
      .add_option("--log-requests", f.log_requests,
                  "0: no texts; 1: parameters, too; 2: also the begin of the texts; 3: all of them")
      ->check(integer_in(0, 3))
      ->capture_default_str();
}

}  // namespace

ModelServer::ModelServer(const ServeFlags& flags, const ModelDescription& description, const LLMOptions& options)
    : sampling_(flags.sampling),
      description_(description),
      options_(options),
      names_(model_names(flags.many, flags.model, description.directory)),
      template_text_(template_text(flags.chat_template)),
      chat_(template_text_.empty() ? ChatTemplate::of_model(description.directory)
                                   : ChatTemplate::from_text(template_text_, "", "")),
      server_(config_of(flags, options.max_num_seqs, options.log)),
      http_(listening(flags, server_)) {
  keep_no_large_blocks();
  raise_open_file_limit();
  server_.count_connections(*http_);
}

ModelServer::~ModelServer() {
  http_.reset();  // no more calls of the server
  server_.close();
}

void ModelServer::load() {
  llm_ = load_with_progress<AsyncLLM>(description_, options_);
  if (!template_text_.empty()) chat_ = template_of(template_text_, *llm_);
}

void ModelServer::open() {
  SamplingParams defaults = defaults_of(sampling_, llm_->default_params());
  defaults.max_tokens = default_max_tokens(description_, llm_->config(), llm_->model_info());
  server_.open(std::make_shared<ServedModel>(*llm_, names_, std::move(chat_), defaults));
}

void add_serve_flags(CLI::App& command, ServeFlags& f) {
  f.model.log_level = "info";
  add_listening_flags(command, f);
  add_queue_flags(command, f);
  add_api_flags(command, f);
  add_default_sampling_flags(command, f.sampling);
  add_model_flags(command, f.model);
  add_log_flags(command, f);
}

int serve(const ServeFlags& flags, const CLI::App& command, const Origins& origins) {
  validate(params_of(flags.sampling, {}));
  all_keys(flags);
  LLMOptions options = options_of(flags.model);
  if (flags.no_prefix_caching) options.keep_text = SchedulerConfig::KeepText::kNo;
  options.log = timed_log(flags.model.log_level, format_of(flags));
  if (flags.print_config) {
    write_out(settings_text(command, origins, settings_of_model(flags.model, options)));
    return 0;
  }
  const fs::path directory = model_directory(flags.model, kDemoModel);
  const ModelDescription description = read_description(directory, options.random_weights);
  if (!options.random_weights) require_model_files(directory);
  try {
    return serve_model(flags, description, for_many_requests(flags.many, description, std::move(options)));
  } catch (const Error& error) {
    if (!is_address_in_use(error)) throw;
    write_err(fmt::format("headrace: {}\n", without_controls(error.what())));
    return kPortInUse;
  }
}

}  // namespace headrace::app
