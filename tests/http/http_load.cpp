// The server under many streams: memory of a connection, the answer to /health meanwhile, CPU time of a piece.
// Usage: http_load [--streams N] [--active N] [--steps N] [--check]
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "headrace/http/open_file_limit.h"
#include "headrace/http/sse.h"
#include "http/test_server.h"

namespace headrace::testing_support {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct LoadArguments {
  int64_t streams = 5000, active = 256, steps = 1000;
  bool checks = false;  // the goals, by the exit status
};

// The observations of the clients' process.
struct ClientReport {
  double health_median_ms = 0, health_p99_ms = 0, health_max_ms = 0;
  int64_t health_answers = 0, bytes = 0;
};

class Pipe {
 public:
  Pipe() { HR_REQUIRE(pipe(ends_.data()) == 0, ErrorCode::kIo, "no pipe"); }
  template <class T>
  void write(const T& value) const {
    HR_REQUIRE(::write(ends_[1], &value, sizeof(value)) == sizeof(value), ErrorCode::kIo, "the pipe is closed");
  }
  template <class T>
  T read() const {
    T value{};
    HR_REQUIRE(::read(ends_[0], &value, sizeof(value)) == sizeof(value), ErrorCode::kIo, "the pipe is closed");
    return value;
  }

 private:
  std::array<int, 2> ends_{};
};

// Asks /health, one request behind the other.
class HealthClient {
 public:
  explicit HealthClient(uint16_t port) : thread_([this, port](const std::stop_token& stop) { run(port, stop); }) {}
  void report(ClientReport& out) {
    thread_.request_stop();
    thread_.join();
    std::ranges::sort(times_ms_);
    const auto at = [&](double share) { return times_ms_[static_cast<size_t>(share * double(times_ms_.size() - 1))]; };
    out.health_answers = std::ssize(times_ms_);
    out.health_median_ms = at(0.5), out.health_p99_ms = at(0.99), out.health_max_ms = at(1);
  }

 private:
  void run(uint16_t port, const std::stop_token& stop) {
    RawHttpClient client(port);
    while (!stop.stop_requested()) {
      const Clock::time_point begin = Clock::now();
      HR_REQUIRE(client.request(raw_request("GET", "/health")).status == 200, ErrorCode::kIo, "/health failed");
      times_ms_.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
      std::this_thread::sleep_for(2ms);
    }
  }
  std::vector<double> times_ms_;
  std::jthread thread_;
};

// The other process: opens streams, reads what comes until every byte of `total` is here.
void run_clients(const LoadArguments& a, const Pipe& to, const Pipe& from) {
  const auto port = to.read<uint16_t>();
  std::vector<RawHttpClient> clients;
  const int epoll = epoll_create1(0);
  for (int64_t i = 0; i < a.streams; ++i) {
    clients.emplace_back(port);
    clients.back().send(raw_request("GET", "/hold", R"({"model":"a","messages":[{"role":"user","content":"hello"}]})",
                                    "User-Agent: http_load\r\nContent-Type: application/json\r\nAccept: */*\r\n"));
    epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<uint64_t>(i)}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, clients.back().fd(), &event);
  }
  ClientReport report;
  HealthClient health(port);
  std::array<epoll_event, 256> events{};
  std::string buffer(1 << 16, ' ');
  std::atomic<int64_t> total = -1;
  std::jthread control([&] { total = to.read<int64_t>(); });
  while (total < 0 || report.bytes < total) {
    const int ready = epoll_wait(epoll, events.data(), static_cast<int>(events.size()), 10);
    for (int i = 0; i < ready; ++i) {
      const int fd = clients[events.at(static_cast<size_t>(i)).data.u64].fd();
      const ssize_t size = recv(fd, buffer.data(), buffer.size(), 0);
      HR_REQUIRE(size > 0, ErrorCode::kIo, "a stream ended");
      report.bytes += size;
    }
  }
  health.report(report);
  from.write(report);
}

int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// As OpenAI's API sends a token.
std::string token_event(int64_t step) {
  return sse_event(str(R"({"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,)",
                       R"("model":"model","choices":[{"index":0,"delta":{"content":" token)", step,
                       R"("},"logprobs":null,"finish_reason":null}]})"));
}

// `active` streams get a piece each step, as an engine gives it; returns microseconds of one core per piece. Steps
// begin 10 ms apart at least.
double send_steps(const std::vector<std::shared_ptr<HttpExchange>>& streams, int64_t active, int64_t steps,
                  int64_t& bytes) {
  const double cpu = cpu_seconds();
  for (int64_t step = 0; step < steps; ++step) {
    const Clock::time_point begin = Clock::now();
    const std::string event = token_event(step);
    for (int64_t i = 0; i < active; ++i) streams[static_cast<size_t>(i)]->send(event);
    bytes += active * std::ssize(event);
    std::this_thread::sleep_until(begin + 10ms);
  }
  return 1e6 * (cpu_seconds() - cpu) / double(active * steps);
}

int run_server(const LoadArguments& a, const Pipe& to, const Pipe& from) {
  TestServer server;
  RawHttpClient(server.port()).request(raw_request("GET", "/"));
  const int64_t before = resident_bytes();
  to.write(server.port());
  std::vector<std::shared_ptr<HttpExchange>> streams;
  for (int64_t i = 0; i < a.streams; ++i) {
    streams.push_back(server.held());
    streams.back()->begin_stream(200, kSseContentType, {{"Cache-Control", "no-cache"}});
    streams.back()->send(sse_comment("ping"));
  }
  while (server->stats().connections < a.streams + 1) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(200ms);
  const double bytes_each = double(resident_bytes() - before) / double(a.streams);
  int64_t bytes = 0;
  const double piece_us = send_steps(streams, std::min(a.active, a.streams), a.steps, bytes);
  to.write(bytes);
  const auto report = from.read<ClientReport>();
  const double mb = bytes_each * double(a.streams) / (1 << 20);
  std::printf("%lld streams: %.1f MB, %.0f bytes each\n", static_cast<long long>(a.streams), mb, bytes_each);
  std::printf("%lld of them active: %.2f us of one core per piece\n", static_cast<long long>(a.active), piece_us);
  std::printf("/health meanwhile: median %.2f ms, p99 %.2f ms, most %.2f ms of %lld\n", report.health_median_ms,
              report.health_p99_ms, report.health_max_ms, static_cast<long long>(report.health_answers));
  const bool is_good = bytes_each <= 64.0 * (1 << 20) / 5000 && report.health_p99_ms < 50;
  if (a.checks && !is_good) std::printf("the goals are 13421 bytes each, and 50 ms for 99 %% of /health\n");
  return a.checks && !is_good ? 1 : 0;
}

LoadArguments load_arguments(int argc, char** argv) {
  LoadArguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--check") {
      a.checks = true;
      continue;
    }
    int64_t* const value = name == "--streams"  ? &a.streams
                           : name == "--active" ? &a.active
                           : name == "--steps"  ? &a.steps
                                                : nullptr;
    HR_REQUIRE(value != nullptr && i + 1 < argc, ErrorCode::kInvalidArgument, "unknown option '", name, "'");
    const char* const text = argv[++i];
    HR_REQUIRE(std::from_chars(text, text + std::strlen(text), *value).ec == std::errc(), ErrorCode::kInvalidArgument,
               name, " is '", text, "'");
  }
  return a;
}

int run_load(const LoadArguments& a) {
  HR_REQUIRE(raise_open_file_limit() > a.streams + 100, ErrorCode::kIo, "too few files may be open");
  const Pipe to, from;
  const pid_t child = fork();  // its sockets and buffers are not the server's
  if (child == 0) {
    try {
      run_clients(a, to, from);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "the clients: %s\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  const int status = run_server(a, to, from);
  waitpid(child, nullptr, 0);
  return status;
}

}  // namespace
}  // namespace headrace::testing_support

int main(int argc, char** argv) {
  try {
    return headrace::testing_support::run_load(headrace::testing_support::load_arguments(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "http_load: %s\n", error.what());
    return 2;
  }
}
