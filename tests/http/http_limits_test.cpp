// Mistakes of clients, in time, size and number.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <thread>

#include "http/test_server.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;
using testing_support::raw_request;
using testing_support::RawHttpClient;
using testing_support::RawHttpResponse;
using testing_support::TestServer;
using Clock = std::chrono::steady_clock;

// The server answers `bytes` with `status`, a JSON body and the end of the connection, and serves others as before.
void expect_refused(TestServer& server, std::string_view bytes, int status) {
  RawHttpClient client(server.port());
  client.send(bytes);
  const RawHttpResponse response = client.response();
  EXPECT_EQ(response.status, status) << bytes.substr(0, 60);
  EXPECT_TRUE(response.body.starts_with(str("{\"code\":", status))) << response.body;
  EXPECT_EQ(response.header("connection"), "close");
  EXPECT_EQ(response.header("content-type"), "application/json");
  EXPECT_FALSE(response.header("x-request-id").empty());
  EXPECT_TRUE(client.is_closed());
  EXPECT_EQ(RawHttpClient(server.port()).request(raw_request("GET", "/health")).status, 200);
}

TEST(HttpLimits, RefusesLongHeads) {
  TestServer server;
  expect_refused(server, raw_request("GET", "/", {}, str("A: ", std::string(64 << 10, 'a'), "\r\n")), 431);
  expect_refused(server, str("GET /", std::string(64 << 10, 'a'), " HTTP/1.1\r\n\r\n"), 414);
  std::string headers;
  for (int i = 0; i < 10'000; ++i) headers += "a: b\r\n";
  expect_refused(server, raw_request("GET", "/", {}, headers), 431);
  expect_refused(server, raw_request("GET", "/", {}, headers.substr(0, 6 * 100)), 431);
  EXPECT_EQ(server->stats().refused_requests, 4);
}

TEST(HttpLimits, RefusesOtherProtocols) {
  TestServer server;
  expect_refused(server, "GET /\r\n", 400);
  expect_refused(server, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505);
  expect_refused(server, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400);
  expect_refused(server, "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400);
}

TEST(HttpLimits, RefusesABodyBeforeItIsRead) {
  TestServer server({.max_body_bytes = 1000});
  expect_refused(server, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 413);
  expect_refused(server, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n", 413);
  expect_refused(server, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", 413);
}

TEST(HttpLimits, BoundsTheBodiesThatCome) {
  TestServer server({.max_incoming_bytes = 300'000});
  std::vector<RawHttpClient> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back(server.port());
    clients.back().send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + std::string(140'000, 'a'));
  }
  std::this_thread::sleep_for(50ms);
  RawHttpClient more(server.port());
  more.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + std::string(140'000, 'a'));
  EXPECT_EQ(more.response().status, 503);
  clients.clear();
  std::this_thread::sleep_for(50ms);
  RawHttpClient last(server.port());
  EXPECT_EQ(last.request(raw_request("POST", "/", std::string(299'000, 'a'))).status, 200);
}

// A client that sends all of a body before it reads gets the answer, and no reset.
TEST(HttpLimits, TakesTheRestOfARefusedBody) {
  TestServer server({.max_body_bytes = 1000});
  RawHttpClient client(server.port());
  EXPECT_TRUE(client.send(raw_request("POST", "/", std::string(8 << 20, 'a'))));
  EXPECT_EQ(client.response().status, 413);
}

TEST(HttpLimits, RefusesBadChunks) {
  TestServer server;
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string_view size : {"-2\r\n", "+5\r\n", "10000000000000000\r\n", "FFFFFFFFFFFFFFFF\r\n"})
    expect_refused(server, str(head, size), 400);
  expect_refused(server, str(head, "0\r\n", std::string(20'000, 'a')), 400);
}

TEST(HttpLimits, TakesAMillionChunksOfOneByte) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::string chunks;
  for (int i = 0; i < 10'000; ++i) chunks += "1\r\na\r\n";
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(client.send(chunks));
  client.send("0\r\n\r\n");
  EXPECT_EQ(client.response().body.size(), std::string_view("POST /  ").size() + 1'000'000);
}

TEST(HttpLimits, ASlowHeadEnds) {
  TestServer server({.header_time = 100ms});
  RawHttpClient client(server.port());
  const auto begin = Clock::now();
  for (const char c : std::string("GET / HTT")) {
    if (!client.send({&c, 1})) break;
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(client.response().status, 408);
  EXPECT_TRUE(client.is_closed());
  EXPECT_LT(Clock::now() - begin, 5s);
}

TEST(HttpLimits, AThousandSlowHeadsDelayNobody) {
  TestServer server({.header_time = 500ms});
  std::vector<RawHttpClient> slow;
  for (int i = 0; i < 1000; ++i) {
    slow.emplace_back(server.port());
    slow.back().send("GET / HT");
  }
  RawHttpClient client(server.port());
  std::vector<Clock::duration> times;
  for (int i = 0; i < 101; ++i) {
    const auto begin = Clock::now();
    ASSERT_EQ(client.request(raw_request("GET", "/health")).status, 200);
    times.push_back(Clock::now() - begin);
  }
  std::ranges::sort(times);
  EXPECT_LT(times[99], 50ms);
  for (RawHttpClient& one : slow) ASSERT_EQ(one.response().status, 408);
}

TEST(HttpLimits, ASlowBodyEnds) {
  TestServer server({.body_time = 200ms});
  RawHttpClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
  for (int i = 0; i < 12; ++i) {
    client.send("a");
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(client.response().status, 408);
}

// Each KB buys a second: 3 KB in 300 ms are fast enough, although the body takes longer than `body_time`.
TEST(HttpLimits, ABodyOfEnoughBytesMayTakeLonger) {
  TestServer server({.body_time = 150ms});
  RawHttpClient client(server.port());
  client.send(str("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ", 10 * 1024, "\r\n\r\n"));
  for (int i = 0; i < 10; ++i) {
    client.send(std::string(1024, 'a'));
    std::this_thread::sleep_for(40ms);
  }
  EXPECT_EQ(client.response().status, 200);
}

TEST(HttpLimits, AnIdleConnectionEnds) {
  TestServer server({.idle_time = 100ms});
  RawHttpClient fresh(server.port()), used(server.port());
  EXPECT_EQ(used.request(raw_request("GET", "/")).status, 200);
  EXPECT_TRUE(fresh.is_closed(5s));
  EXPECT_TRUE(used.is_closed(5s));
}

TEST(HttpLimits, AnswersConnectionsBeyondTheLimit) {
  TestServer server({.max_connections = 3});
  std::vector<RawHttpClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(server.port());
    EXPECT_EQ(clients.back().request(raw_request("GET", "/")).status, 200);
  }
  RawHttpClient more(server.port());
  more.send(raw_request("GET", "/"));
  EXPECT_EQ(more.response().status, 503);
  EXPECT_TRUE(more.is_closed());
  clients.pop_back();
  const auto until = Clock::now() + 5s;
  while (server->stats().connections > 2 && Clock::now() < until) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(RawHttpClient(server.port()).request(raw_request("GET", "/")).status, 200);
}

TEST(HttpLimits, AReaderThatStopsIsCutOff) {
  TestServer server({.max_unsent_bytes = 100'000, .stall_time = 300ms});
  RawHttpClient client(server.port(), 4096), other(server.port());
  client.send(raw_request("GET", "/hold"));
  const auto exchange = server.held();
  exchange->begin_stream(200, "text/plain");
  const auto until = Clock::now() + 10s;
  size_t most = 0;
  while (!exchange->is_closed() && Clock::now() < until) {
    if (exchange->unsent_bytes() < 100'000) exchange->send(std::string(10'000, 'a'));
    most = std::max(most, exchange->unsent_bytes());
    ASSERT_EQ(other.request(raw_request("GET", "/")).status, 200) << "others go on";
  }
  EXPECT_TRUE(exchange->is_closed());
  EXPECT_GE(most, 100'000U);
  EXPECT_EQ(exchange->unsent_bytes(), 0U);
}

TEST(HttpLimits, AReaderThatIsTooSlowForItsStreamIsCutOff) {
  TestServer server({.max_unsent_bytes = 100'000, .stall_time = 300ms});
  RawHttpClient client(server.port(), 4096);
  client.send(raw_request("GET", "/hold"));
  const auto exchange = server.held();
  exchange->begin_stream(200, "text/plain");
  const auto until = Clock::now() + 10s;
  while (!exchange->is_closed() && Clock::now() < until) {
    while (exchange->unsent_bytes() < 5'000'000 && !exchange->is_closed()) exchange->send(std::string(10'000, 'a'));
    client.receive(1ms);
  }
  EXPECT_TRUE(exchange->is_closed());
}

TEST(HttpLimits, AReaderThatGoesOnGetsAll) {
  TestServer server({.stall_time = 2s});
  RawHttpClient client(server.port(), 4096);
  client.send(raw_request("GET", "/hold"));
  server.held()->respond(200, "text/plain", std::string(20 << 20, 'a'));
  const RawHttpResponse response = client.response();
  EXPECT_TRUE(response.is_complete);
  EXPECT_EQ(response.body.size(), size_t{20} << 20);
}

// accept() fails while there is no file for a connection; the loop does not spin, and goes on when one is free.
TEST(HttpLimits, OutlivesALackOfFiles) {
  TestServer server;
  RawHttpClient before(server.port());
  EXPECT_EQ(before.request(raw_request("GET", "/")).status, 200);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int client_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  rlimit none = limit;
  none.rlim_cur = 3;
  setrlimit(RLIMIT_NOFILE, &none);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(client_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::clock_t cpu = std::clock();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(std::clock() - cpu, CLOCKS_PER_SEC / 10);
  EXPECT_EQ(before.request(raw_request("GET", "/")).status, 200);
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(::send(client_fd, "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
  std::array<char, 16> bytes{};
  EXPECT_GT(recv(client_fd, bytes.data(), bytes.size(), 0), 0);
  close(client_fd);
}

}  // namespace
}  // namespace headrace
