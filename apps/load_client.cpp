#include "load_client.h"

#include <simdjson.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "seconds_since.h"
#include "sse_reader.h"
#include "thread_cpu_time.h"

namespace headrace::app {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using IoError = boost::system::error_code;

constexpr std::chrono::milliseconds kHealthInterval{100};
constexpr int kHealthPerMetrics = 5;  // reads of /health for one of /metrics
constexpr size_t kMostErrorBytes = 4096;

// The reader of a body's bytes as they come.
using Sink = std::function<void(std::string_view)>;

struct SinkBody {
  using value_type = Sink;
  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(http::header<kIsRequest, Fields>& /*head*/, Sink& sink) : sink_(sink) {}
    void init(const boost::optional<uint64_t>& /*length*/, IoError& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, IoError& error) {
      error = {};
      for (const asio::const_buffer part : beast::buffers_range_ref(buffers))
        sink_({static_cast<const char*>(part.data()), part.size()});
      return beast::buffer_bytes(buffers);
    }
    void finish(IoError& error) { error = {}; }

   private:
    Sink& sink_;
  };
};

std::string text_or_empty(simdjson::dom::element object, std::string_view key) {
  std::string_view text;
  return object[key].get(text) == simdjson::SUCCESS ? std::string(text) : "";
}

// The message in the body of an error, or its begin.
std::string message_of(simdjson::dom::parser& parser, const std::string& body) {
  std::string_view message;
  simdjson::dom::element root;
  if (parser.parse(body).get(root) == simdjson::SUCCESS && root["error"]["message"].get(message) == simdjson::SUCCESS)
    return printable(message);
  return printable(body.substr(0, 200));
}

// Reads a stream of OpenAI's API into a result.
class AnswerReader {
 public:
  AnswerReader(simdjson::dom::parser& parser, Clock::time_point begin, RequestResult& result)
      : parser_(parser), begin_(begin), result_(result) {}

  void take(std::string_view bytes) {
    const double now = seconds_since(begin_);
    raw_.append(bytes.substr(0, kMostErrorBytes - std::min(kMostErrorBytes, raw_.size())));
    events_.push(bytes, [&](std::string_view data) { on_event(data, now); });
  }
  void finish(int status, const IoError& error) {
    result_.status = status;
    result_.end_s = seconds_since(begin_);
    if (error) {
      result_.error = str("the connection failed: ", error.message());
    } else if (status != 200) {
      result_.error = str("status ", status, ": ", message_of(parser_, raw_));
    } else if (result_.error.empty() && !has_ended_) {
      result_.error = str("the answer is no complete stream of events: ", printable(raw_.substr(0, 200)));
    }
  }
  bool has_begun() const { return !raw_.empty(); }  // a byte of the body has come

 private:
  void on_event(std::string_view data, double now) {
    if (data == "[DONE]") {
      has_ended_ = true;
      return;
    }
    simdjson::dom::element root;
    if (parser_.parse(data.data(), data.size()).get(root) != simdjson::SUCCESS) {
      result_.error = str("an event is no JSON: ", printable(data.substr(0, 200)));
      return;
    }
    if (std::string_view message; root["error"]["message"].get(message) == simdjson::SUCCESS)
      result_.error = str("the stream ended with an error: ", printable(message));
    read_usage(root);
    read_choice(root, now);
  }

  void read_usage(simdjson::dom::element root) {
    simdjson::dom::element usage;
    if (root["usage"].get(usage) != simdjson::SUCCESS || !usage.is_object()) return;
    int64_t tokens = 0;
    if (usage["prompt_tokens"].get(tokens) == simdjson::SUCCESS) result_.prompt_tokens = tokens;
    if (usage["completion_tokens"].get(tokens) == simdjson::SUCCESS) result_.output_tokens = tokens;
    if (usage["prompt_tokens_details"]["cached_tokens"].get(tokens) == simdjson::SUCCESS)
      result_.cached_tokens = tokens;
  }

  // Thinking counts as output, and is no part of the answer that a later turn sends back.
  void read_choice(simdjson::dom::element root, double now) {
    simdjson::dom::element choice, delta;
    if (root["choices"].at(0).get(choice) != simdjson::SUCCESS) return;
    std::string text = text_or_empty(choice, "text"), thought;
    if (choice["delta"].get(delta) == simdjson::SUCCESS) {
      text += text_or_empty(delta, "content");
      thought = text_or_empty(delta, "reasoning_content") + text_or_empty(delta, "reasoning");
    }
    if (!text.empty() || !thought.empty()) result_.pieces_s.push_back(now);
    result_.answer += text;
  }

  simdjson::dom::parser& parser_;
  const Clock::time_point begin_;
  RequestResult& result_;
  SseReader events_;
  std::string raw_;  // the first bytes
  bool has_ended_ = false;
};

// A number of Prometheus' text format, without labels.
std::optional<double> metric(const std::string& text, const std::string& name) {
  const size_t at = text.starts_with(name + ' ') ? 0 : text.find('\n' + name + ' ');
  if (at == text.npos) return std::nullopt;
  return std::strtod(text.c_str() + text.find(' ', at) + 1, nullptr);
}

// A connection, and bytes of it that were read too far.
struct Link {
  explicit Link(asio::io_context& io) : socket(io) {}
  void close() {
    IoError ignored;
    socket.close(ignored);
    buffer.clear();
  }

  tcp::socket socket;
  beast::flat_buffer buffer = {};
};

// One load: its clock, its event loop, and its coroutines.
class Session {
 public:
  // Does not own the things that it refers to.
  Session(const ServerUrl& url, const std::string& api_key, const std::vector<tcp::endpoint>& addresses)
      : url_(url), api_key_(api_key), addresses_(addresses) {}

  asio::io_context& io() { return io_; }

  // Sends a request on an open connection or a new one, and gives the body of its response to `sink`. Returns the
  // status; 0: `error` says why the response is not complete.
  asio::awaitable<int> exchange(Link& link, const http::request<http::string_body>& request, Sink sink,
                                IoError& error) {
    error = {};
    auto into_error = asio::redirect_error(asio::use_awaitable, error);
    if (!link.socket.is_open()) {
      co_await asio::async_connect(link.socket, addresses_, into_error);
      if (!error) link.socket.set_option(tcp::no_delay(true), error);
    }
    http::response_parser<SinkBody> parser;
    parser.body_limit(boost::none);
    parser.get().body() = std::move(sink);
    if (!error) co_await http::async_write(link.socket, request, into_error);
    if (!error) co_await http::async_read(link.socket, link.buffer, parser, into_error);
    if (error || !parser.keep_alive()) link.close();
    co_return error ? 0 : static_cast<int>(parser.get().result_int());
  }

  asio::awaitable<RequestResult> ask(Link& link, const std::string& path, const std::string& body) {
    RequestResult result{.begin_s = seconds_since(begin_)};
    AnswerReader reader(json_, begin_, result);
    const Sink sink = [&reader](std::string_view bytes) { reader.take(bytes); };
    const auto request = request_of(http::verb::post, path, body);
    const bool was_open = link.socket.is_open();
    IoError error;
    int status = co_await exchange(link, request, sink, error);
    // The server may have closed a connection that was idle.
    if (error && was_open && !reader.has_begun()) status = co_await exchange(link, request, sink, error);
    reader.finish(status, error);
    co_return result;
  }

  asio::awaitable<std::optional<std::string>> get(Link& link, const std::string& path) {
    std::string text;
    const Sink sink = [&text](std::string_view bytes) { text += bytes; };
    const auto request = request_of(http::verb::get, path, "");
    IoError error;
    const int status = co_await exchange(link, request, sink, error);
    if (error || status != 200) co_return std::nullopt;
    co_return text;
  }

  void run(const LoadPlan& plan, LoadOutcome& outcome) {
    num_all_ = std::ssize(plan.begin_s) * plan.num_turns;
    const auto on_end = [](const std::exception_ptr& fault) {
      if (fault) std::rethrow_exception(fault);
    };
    asio::co_spawn(io_, watch(outcome), on_end);
    asio::co_spawn(io_, begin_all(plan, outcome), on_end);
    outcome.client_cpu_s = 1e-6 * cpu_microseconds_of([this] { io_.run(); });
  }

 private:
  http::request<http::string_body> request_of(http::verb method, const std::string& path,
                                              const std::string& body) const {
    http::request<http::string_body> request(method, url_.prefix + path, 11, body);
    request.set(http::field::host, url_.host + ':' + url_.port);
    if (!api_key_.empty()) request.set(http::field::authorization, "Bearer " + api_key_);
    if (!body.empty()) request.set(http::field::content_type, "application/json");
    request.prepare_payload();
    return request;
  }

  asio::awaitable<void> converse(const LoadPlan& plan, size_t conversation, LoadOutcome& outcome) {
    Link link(io_);
    std::string answer;
    for (int32_t turn = 0; turn < plan.num_turns; ++turn) {
      const std::string body = plan.body(conversation, turn, answer);
      RequestResult result = co_await ask(link, plan.path, body);
      result.turn = turn;
      answer = std::exchange(result.answer, {});
      outcome.num_pieces += std::ssize(result.pieces_s);
      const bool is_complete = result.is_complete();
      outcome.results.push_back(std::move(result));
      if (plan.progress) plan.progress(std::ssize(outcome.results), num_all_);
      if (!is_complete) break;
    }
  }

  asio::awaitable<void> begin_all(const LoadPlan& plan, LoadOutcome& outcome) {
    asio::steady_timer timer(io_);
    for (size_t i = 0; i < plan.begin_s.size(); ++i) {
      const std::chrono::duration<double> after(plan.begin_s[i]);
      timer.expires_at(begin_ + std::chrono::duration_cast<Clock::duration>(after));
      co_await timer.async_wait(asio::use_awaitable);
      while (plan.max_concurrency > 0 && num_running_ >= plan.max_concurrency) co_await a_place();
      ++num_running_;
      asio::co_spawn(io_, converse(plan, i, outcome), [this](const std::exception_ptr& fault) {
        if (fault) std::rethrow_exception(fault);
        end_one();
      });
    }
    has_begun_all_ = true;
    end_if_over();
  }

  asio::awaitable<void> a_place() {
    IoError woken;
    place_.expires_at(Clock::time_point::max());
    co_await place_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }

  void end_one() {
    --num_running_;
    place_.cancel();
    end_if_over();
  }

  void end_if_over() {
    is_over_ = has_begun_all_ && num_running_ == 0;
    if (is_over_) next_look_.cancel();
  }

  // Looks at the server until the load ends, and at its process once more then.
  asio::awaitable<void> watch(LoadOutcome& outcome) {
    static const std::string kHealth = "/health", kMetrics = "/metrics";
    Link link(io_);
    for (int64_t look = 0;; ++look) {
      const bool is_last = is_over_;
      if (is_last || look % kHealthPerMetrics == 0) {
        const auto metrics = co_await get(link, kMetrics);
        if (metrics) read_process(*metrics, outcome);
      }
      if (is_last) co_return;
      const double sent = seconds_since(begin_);
      const auto health = co_await get(link, kHealth);
      if (health) outcome.health_s.push_back(seconds_since(begin_) - sent);
      IoError woken;
      next_look_.expires_after(is_over_ ? Clock::duration(0) : kHealthInterval);
      co_await next_look_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    }
  }

  void read_process(const std::string& metrics, LoadOutcome& outcome) {
    const auto bytes = metric(metrics, "process_resident_memory_bytes"),
               cpu_s = metric(metrics, "process_cpu_seconds_total");
    if (!bytes || !cpu_s) return;
    if (!outcome.process) outcome.process = {.begin_bytes = *bytes}, first_cpu_s_ = *cpu_s;
    outcome.process->cpu_s = *cpu_s - first_cpu_s_, outcome.process->end_bytes = *bytes;
    outcome.process->most_bytes = std::max(outcome.process->most_bytes, *bytes);
  }

  const ServerUrl& url_;
  const std::string& api_key_;
  const std::vector<tcp::endpoint>& addresses_;
  asio::io_context io_{1};
  const Clock::time_point begin_ = Clock::now();
  simdjson::dom::parser json_;
  asio::steady_timer place_{io_}, next_look_{io_};
  int64_t num_running_ = 0, num_all_ = 0;
  bool has_begun_all_ = false, is_over_ = false;
  double first_cpu_s_ = 0;
};

}  // namespace

struct LoadClient::Parts {
  Session session() const { return {url, api_key, addresses}; }

  ServerUrl url;
  std::string api_key;
  std::vector<tcp::endpoint> addresses = {};
};

LoadClient::LoadClient(const ServerUrl& url, std::string api_key)
    : parts_(std::make_unique<Parts>(Parts{.url = url, .api_key = std::move(api_key)})) {
  asio::io_context io;
  IoError error;
  for (const auto& entry : tcp::resolver(io).resolve(url.host, url.port, error))
    parts_->addresses.push_back(entry.endpoint());
  HR_REQUIRE(!parts_->addresses.empty(), ErrorCode::kIo, "--url: the host ", printable(url.host),
             " has no address: ", error.message());
}

LoadClient::~LoadClient() = default;

RequestResult LoadClient::send(const std::string& path, const std::string& body) {
  Session session = parts_->session();
  Link link(session.io());
  RequestResult result;
  asio::co_spawn(session.io(), session.ask(link, path, body), [&result](std::exception_ptr fault, RequestResult r) {
    if (fault) std::rethrow_exception(std::move(fault));
    result = std::move(r);
  });
  session.io().run();
  return result;
}

LoadOutcome LoadClient::run(const LoadPlan& plan) {
  LoadOutcome outcome;
  parts_->session().run(plan, outcome);
  return outcome;
}

std::string LoadClient::first_model() {
  Session session = parts_->session();
  Link link(session.io());
  std::optional<std::string> list;
  const std::string path = "/v1/models";  // lives as long as the coroutine
  asio::co_spawn(session.io(), session.get(link, path),
                 [&list](std::exception_ptr fault, std::optional<std::string> text) {
                   if (fault) std::rethrow_exception(std::move(fault));
                   list = std::move(text);
                 });
  session.io().run();
  simdjson::dom::parser parser;
  std::string_view name;
  HR_REQUIRE(list && parser.parse(*list)["data"].at(0)["id"].get(name) == simdjson::SUCCESS, ErrorCode::kIo, "http://",
             printable(parts_->url.host), ":", parts_->url.port,
             "/v1/models names no model; is the server up, and --api-key right?");
  return std::string(name);
}

}  // namespace headrace::app
